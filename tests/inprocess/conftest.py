"""Fixtures of the in-process adapter's tests: an engine on a store in memory, checked for leaks."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator

import pytest

with warnings.catch_warnings():  # what LMCache's own imports warn about is not ours to change
    warnings.simplefilter("ignore")
    from tests.inprocess.engine import Engine, start


class Complaints(logging.Handler):
    """What LMCache says about references that were lost, or given back twice.

    It frees a lost object when Python collects it, so that a count of what is in use shows nothing.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "garbage collected" in text or "Double" in text:
            self.heard.append(text)


@pytest.fixture(autouse=True)
def no_reference_is_lost_or_given_back_twice() -> Iterator[None]:
    complaints = Complaints()
    logger = logging.getLogger("lmcache.v1.memory_management")
    logger.addHandler(complaints)
    yield
    gc.collect()
    logger.removeHandler(complaints)
    assert complaints.heard == []


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
