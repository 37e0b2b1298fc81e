"""Fixtures of the identity tests: a fleet in each of LMCache's modes, with a cache of its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

with warnings.catch_warnings():  # what LMCache's own imports warn about is not ours to change
    warnings.simplefilter("ignore")
    import tests.mp.conftest  # noqa: F401  # loads LMCache's adapters
    from tests.identity.fleet import MODES, Fleet


@pytest.fixture(params=list(MODES))
def fleet(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Fleet]:
    """An empty fleet; its machines are closed at the end."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    running = Fleet(tmp_path, request.param)
    yield running
    running.close()
