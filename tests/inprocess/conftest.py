"""Fixtures of the in-process adapter's tests: an engine on a store in memory, checked for leaks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

with warnings.catch_warnings():  # what LMCache's own imports warn about is not ours to change
    warnings.simplefilter("ignore")
    from tests.inprocess.engine import Engine, start


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine; at the end every memory object is back in LMCache's pool (I7)."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    running = start()
    yield running
    running.store.let_go()
    running.backend.close()
    running.store.join()
    left = running.objects_in_use
    running.close()
    assert left == 0, f"{left} memory objects were not given back"
