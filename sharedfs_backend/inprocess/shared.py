"""One store for each settings within a process, however many backends ask for it.

LMCache constructs a storage plugin again without closing the first, and a process may hold several
ranks: all of them share one catalog, one set of threads and buffers (I9). The last one to let go
closes it.

Thread-safe. After a fork the child starts anew: threads do not survive one. Knows of a store only
how to open and close it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sharedfs_backend.settings import Settings

CLOSE_SECONDS = 5.0
"""How long closing waits for a store's threads; one stuck in a file system is left behind (I6)."""


@dataclass(slots=True)
class _Entry:
    store: Any
    users: int


class SharedStores:
    """Settings -> open store, with its number of users."""

    def __init__(self, open_store: Callable[[Settings], Any]) -> None:
        self._open_store = open_store
        self._lock = threading.Lock()
        self._entries: dict[tuple[int, Settings], _Entry] = {}

    def acquire(self, settings: Settings) -> Lease:
        """A lease on the store of these settings, opened now if nobody has it open."""
        place = (os.getpid(), settings)
        with self._lock:
            entry = self._entries.get(place)
            if entry is None:
                entry = self._entries[place] = _Entry(self._open_store(settings), 0)
            entry.users += 1
            return Lease(self, place, entry.store)

    def users(self, settings: Settings) -> int:
        """How many leases on this store are out."""
        with self._lock:
            entry = self._entries.get((os.getpid(), settings))
            return 0 if entry is None else entry.users

    def give_back(self, place: tuple[int, Settings]) -> None:
        with self._lock:
            entry = self._entries[place]
            entry.users -= 1
            if entry.users > 0:
                return
            del self._entries[place]
        if place[0] == os.getpid():
            entry.store.close(CLOSE_SECONDS)


class Lease:
    """One user's hold on a shared store. Released once, however often asked."""

    def __init__(self, shared: SharedStores, place: tuple[int, Settings], store: Any) -> None:
        self.store = store
        self._shared = shared
        self._place = place
        self._lock = threading.Lock()
        self._held = True

    def release(self) -> None:
        with self._lock:
            held, self._held = self._held, False
        if held:
            self._shared.give_back(self._place)
