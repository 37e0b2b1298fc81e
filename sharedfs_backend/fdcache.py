"""FdCache: packs kept open for reading, so that a load costs no open when its pack is known.

Exactly one caller opens a pack; others who want it meanwhile are parked and told when it is open or
why it is not: no worker ever waits for another. A handle is closed only after the last call on it
has returned, whether it was evicted, forgotten (its pack was dropped: an unlinked file held open
keeps its space) or found stale. An open that hangs is overtaken after `patience_seconds`.

Bounded (I9): `handles_max` handles, or one for each call in flight if that is more. Thread-safe;
file operations happen outside its lock, on the thread that calls it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from sharedfs_backend.files import FileFailure, Files, Handle
from sharedfs_backend.layout.names import PackName

Resume = Callable[[FileFailure | None], None]
"""Told that the pack is open now (None), or why it is not. Called without any lock held."""


@dataclass(slots=True, eq=False)
class _Entry:
    name: PackName
    handle: Handle | None = None  # None while it is being opened
    since: float = 0.0  # when that began
    users: int = 0
    detached: bool = False  # no longer in the cache: the last user closes
    parked: list[tuple[object, Resume]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to use `handle` until it is released."""

    handle: Handle
    entry: _Entry


@dataclass(frozen=True, slots=True)
class Opening:
    """The duty to open a pack and report `opened` or `failed`."""

    entry: _Entry


class FdCache:
    """Open packs, least recently used first."""

    def __init__(
        self,
        files: Files,
        now: Callable[[], float],
        *,
        handles_max: int = 512,
        patience_seconds: float = 10.0,
    ) -> None:
        self._files = files
        self._now = now
        self._handles_max = max(1, handles_max)
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._entries: OrderedDict[PackName, _Entry] = OrderedDict()
        self._closed = False
        self.close_failures = 0

    def __len__(self) -> int:
        return len(self._entries)

    def acquire(self, name: PackName, owner: object, resume: Resume) -> Lease | Opening | None:
        """A lease; or the duty to open it; or None: `resume` will be called, once, unless
        `unpark(name, owner)` comes first."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None and entry.handle is not None:
                entry.users += 1
                self._entries.move_to_end(name)
                return Lease(entry.handle, entry)
            now = self._now()
            if entry is not None and now - entry.since <= self._patience_seconds:
                entry.parked.append((owner, resume))
                return None
            fresh = _Entry(name, since=now, detached=self._closed)
            if entry is not None:  # its opener hangs: whoever waits for it now waits for us
                entry.detached = True
                fresh.parked, entry.parked = entry.parked, []
            if not self._closed:
                self._entries[name] = fresh
            return Opening(fresh)

    def unpark(self, name: PackName, owner: object) -> None:
        """`owner` no longer cares."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                entry.parked = [parked for parked in entry.parked if parked[0] is not owner]

    def opened(self, opening: Opening, handle: Handle) -> Lease:
        """The opener's own lease; the parked are resumed and the oldest idle handles closed."""
        entry = opening.entry
        with self._lock:
            entry.handle = handle
            entry.users += 1
            parked, entry.parked = entry.parked, []
            surplus = self._evict()
        self._close_all(surplus)
        for _, resume in parked:
            resume(None)
        return Lease(handle, entry)

    def failed(self, opening: Opening, failure: FileFailure) -> None:
        """The pack could not be opened: everybody who waits for it hears why."""
        entry = opening.entry
        with self._lock:
            self._detach(entry)
            parked, entry.parked = entry.parked, []
        for _, resume in parked:
            resume(failure)

    def release(self, lease: Lease, *, discard: bool = False) -> None:
        """The call has returned. `discard`: the handle is stale, nobody may get it again."""
        entry = lease.entry
        with self._lock:
            if discard:
                self._detach(entry)
            entry.users -= 1
            last = entry.detached and entry.users == 0
        if last:
            self._close_all([lease.handle])

    def forget(self, name: PackName) -> None:
        """The pack was dropped or condemned: close it, after the last call in flight."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                return
            self._detach(entry)
            idle = [entry.handle] if entry.handle is not None and entry.users == 0 else []
        self._close_all(idle)

    def close(self) -> None:
        """Close what is idle; what is in use is closed by its last user."""
        with self._lock:
            self._closed = True
            entries = list(self._entries.values())
            for entry in entries:
                self._detach(entry)
            idle = [entry.handle for entry in entries if entry.handle and entry.users == 0]
        self._close_all(idle)

    def _detach(self, entry: _Entry) -> None:
        """`entry` is no longer found (lock held). Idempotent."""
        entry.detached = True
        if self._entries.get(entry.name) is entry:
            del self._entries[entry.name]

    def _evict(self) -> list[Handle]:
        """Idle handles over the limit, oldest first, detached (lock held)."""
        surplus: list[Handle] = []
        over = len(self._entries) - self._handles_max
        if over <= 0:
            return surplus
        idle = [one for one in self._entries.values() if one.users == 0 and one.handle is not None]
        for entry in idle[:over]:
            assert entry.handle is not None
            surplus.append(entry.handle)
            self._detach(entry)
        return surplus

    def _close_all(self, handles: list[Handle]) -> None:
        for handle in handles:
            try:
                self._files.close(handle)
            except FileFailure:
                # Opened for reading, so nothing is lost; counted, since it says the mount is ill.
                self.close_failures += 1
