"""DirtyBudget: how many bytes this process has written that may still lie in memory un-flushed.

On a network mount such pages count against the job's memory limit and get it killed, so beyond
`bytes_max` a writer flushes what it has written so far, on its own store thread (I9). What a pack
leaves un-flushed at its close stays on the account until the kernel has written it back by itself.

Arithmetic only: time comes as an argument, the flushing is the writer's. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import deque

WRITEBACK_SECONDS = 40.0
"""Linux writes dirty pages back after 30 s at the latest, looking every 5 s; NFS at close."""


class DirtyBudget:
    """One account for all packs of the process."""

    def __init__(self, bytes_max: int | None) -> None:
        """`bytes_max` None: nothing is to be bounded here, or there is no way to."""
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._bytes = 0
        self._closed: deque[tuple[float, int]] = deque()  # (when written back, bytes)

    def wrote(self, count: int, now: float) -> bool:
        """`count` more bytes are dirty. True if the caller is to flush what it has."""
        with self._lock:
            while self._closed and self._closed[0][0] <= now:
                self._bytes -= self._closed.popleft()[1]
            self._bytes += count
            return self.bytes_max is not None and self._bytes > self.bytes_max

    def flushed(self, count: int) -> None:
        """`count` bytes are clean, or their file is gone."""
        with self._lock:
            self._bytes -= count

    def closed(self, count: int, now: float) -> None:
        """A file was closed with `count` dirty bytes: the kernel's business from here on."""
        with self._lock:
            self._closed.append((now + WRITEBACK_SECONDS, count))

    @property
    def bytes_dirty(self) -> int:
        return self._bytes
