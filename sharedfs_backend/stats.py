"""Counters and gauges under stable names, and logging that says a thing once.

Every miss, failure and dropped store is counted by kind here and logged the first time it happens
(then again each time its count has grown tenfold), so that a sick file system fills no log. Pure
arithmetic behind one lock; knows no file and no LMCache.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter

from sharedfs_backend.files import FileFailure

log = logging.getLogger("sharedfs_backend")


class Stats:
    """Thread-safe counters. `snapshot()` is what `/metrics`, `why` and the tests read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> int:
        """The counter's new value."""
        with self._lock:
            self._counts[name] += amount
            return self._counts[name]

    def get(self, name: str) -> int:
        return self._counts[name]

    def failed(self, failure: FileFailure, doing: str) -> None:
        """Count a file-system failure by kind and say once what happened."""
        self.once(f"failures_{failure.kind.name.lower()}", "%s failed: %s", doing, failure)

    def once(self, name: str, message: str, *args: object) -> None:
        """Count under `name`; log a warning the 1st, 10th, 100th, ... time."""
        count = self.add(name)
        if count == 10 ** (len(str(count)) - 1):
            log.warning(message + (f" (counted {count} times)" if count > 1 else ""), *args)

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)
