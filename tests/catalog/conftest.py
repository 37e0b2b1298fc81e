"""Every test of the catalog runs twice: with the compiled lookup and with the one in Python."""

from __future__ import annotations

import pytest

from tests.datapath.support import compiled


@pytest.fixture(params=["compiled", "python"], autouse=True)
def lookups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled":
        compiled()  # or the test is skipped
    else:
        monkeypatch.setattr("sharedfs_backend.searching.library_path", lambda: None)
