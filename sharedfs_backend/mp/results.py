"""Finished tasks on their way to LMCache: three event descriptors and one result for each task.

A result is handed out once. After `close` nothing is signalled any more and the descriptors are
closed, exactly once, under the lock that signalling takes: LMCache may already use their numbers
for something else. Results nobody asks for (a request LMCache gave up) are let go, oldest first,
beyond a fixed number (I9).

Knows nothing of stores, keys or layouts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Generic, TypeVar

from lmcache.v1.platform import create_event_notifier

R = TypeVar("R")

UNCLAIMED_MAX = 4096
"""Results kept for each kind of task. LMCache has 8 requests in flight by default."""


class Outbox(Generic[R]):
    """Results of one kind of task and the event descriptor that announces them. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[int, R] = OrderedDict()
        self._notifier: Any = create_event_notifier()
        self._closed = False
        self.fd: int = self._notifier.fileno()
        self.unclaimed = 0

    def put(self, task_id: int, result: R) -> None:
        """Make a result available and signal it. Silent after `close`."""
        with self._lock:
            self._results[task_id] = result
            if len(self._results) > UNCLAIMED_MAX:
                self._results.popitem(last=False)
                self.unclaimed += 1
            if not self._closed:
                self._notifier.notify()

    def take(self, task_id: int) -> R | None:
        """The result, once; None before it is there and ever after."""
        with self._lock:
            return self._results.pop(task_id, None)

    def take_all(self) -> dict[int, R]:
        """Every result not handed out yet."""
        with self._lock:
            taken, self._results = dict(self._results), OrderedDict()
            return taken

    def close(self) -> None:
        """Close the descriptor. A second call does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._notifier.close()
