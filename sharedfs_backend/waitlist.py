"""Packs that wait for credit: below a cap, a store may come before this process may store anything.

A young process has no credit yet, a busy one has spent what one pass over the journals granted; the
next pass is a second away, and the buffers are lent for minutes. So the packs wait for it here, in
the order they came, for a quarter of their buffers' time to live at most. What waits is bounded
by the bytes that `putting` lets in (I9). Pure state, thread-safe; it knows no credit and no file.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from sharedfs_backend.capacity import Refusal
from sharedfs_backend.puttask import Part
from sharedfs_backend.realms import Realm

WORTH_WAITING = frozenset((Refusal.STALE, Refusal.SPENT))
"""Refusals that the next pass may undo; the others need a sweep, or a file system with room."""


@dataclass(frozen=True, slots=True)
class Unpaid:
    """One pack's parts, and why they wait. `submitted`: the oldest of their tasks was."""

    realm: Realm
    pack: list[Part]
    submitted: float
    refusal: Refusal


class Waitlist:
    """See the module."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._unpaid: list[Unpaid] = []
        self._closed = False

    def __len__(self) -> int:
        return len(self._unpaid)

    def add(self, unpaid: Unpaid, now: float) -> bool:
        """False if waiting is in vain: too late, closing, or no credit would help."""
        with self._lock:
            late = now - unpaid.submitted > self._patience_seconds
            if late or self._closed or unpaid.refusal not in WORTH_WAITING:
                return False
            self._unpaid.append(unpaid)
            return True

    def take(self) -> list[Unpaid]:
        """All that wait, to be tried again."""
        with self._lock:
            taken, self._unpaid = self._unpaid, []
            return taken

    def take_late(self, now: float) -> list[Unpaid]:
        """Those that have waited long enough."""
        if not self._unpaid:
            return []
        with self._lock:
            late = [u for u in self._unpaid if now - u.submitted > self._patience_seconds]
            self._unpaid = [u for u in self._unpaid if now - u.submitted <= self._patience_seconds]
            return late

    def close(self) -> list[Unpaid]:
        """Nothing waits any more; what did."""
        with self._lock:
            self._closed = True
        return self.take()
