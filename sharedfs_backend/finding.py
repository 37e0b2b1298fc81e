"""Finding: lookups, the locks they take, and what they teach retention. Memory only.

A lookup costs no file operation (the law's first line). One that misses may ask for an early
refresh, which happens elsewhere. Locks protect what was found from this process's own sweep, with
counts, for the buffers' time to live at most, since an unlock may never come (I9).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sharedfs_backend.catalog import ANY_SPACE, NO_SPACE, Catalog
from sharedfs_backend.context import Context
from sharedfs_backend.layout import LayoutDescriptor
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.packtable import UNKNOWN
from sharedfs_backend.realms import Realm

LOCKS_MAX = 1 << 20
TAKEN_MAX = 1 << 14
"""Keys noted and not entered yet: whoever enters them keeps everybody else waiting (I6)."""
EXPIRE_SECONDS = 1.0
"""Between two looks through all locks by lookups that find no room for theirs."""
TOUCHED_MAX = 1 << 20


class _Taken(NamedTuple):
    """The locks of one lookup: a pack id for each key, below 0 for a miss."""

    realm: bytes
    keys: tuple[bytes, ...]
    pack_ids: list[int]
    until: float


class Finder:
    """See the module. Thread-safe."""

    def __init__(
        self,
        context: Context,
        ledger: Ledger,
        healthy: Callable[[], bool],
        on_miss: Callable[[], None],
    ) -> None:
        self._runtime = context.runtime
        self._stats = context.stats
        self._lock_seconds = context.settings.buffer_ttl_seconds
        self._ledger = ledger
        self._catalog: Catalog = ledger.catalog
        self._healthy = healthy
        self._on_miss = on_miss
        self._lock = threading.Lock()
        self._locks: dict[bytes, dict[bytes, tuple[int, int, float]]] = {}  # by realm and key
        self._taken: deque[_Taken] = deque()  # not entered there yet
        self._taken_keys = 0
        self._expire_at = float("-inf")
        self._touched: dict[int, float] = {}

    # -- spaces ------------------------------------------------------------------------------

    def space_of(self, realm: Realm, layout: LayoutDescriptor | None) -> int:
        """The space of a layout, ANY_SPACE for None, NO_SPACE where nothing of it is known."""
        if layout is None:
            return ANY_SPACE
        space = self._catalog.known_space(realm.digest, self._ledger.fingerprint(layout))
        return NO_SPACE if space is None else space

    def spaces_of(
        self, realm: Realm, layouts: Sequence[LayoutDescriptor | None]
    ) -> npt.NDArray[np.int32]:
        known: dict[LayoutDescriptor | None, int] = {}
        spaces = np.empty(len(layouts), np.int32)
        for index, layout in enumerate(layouts):
            space = known.get(layout)
            if space is None:
                space = known[layout] = self.space_of(realm, layout)
            spaces[index] = space
        return spaces

    # -- looking up --------------------------------------------------------------------------

    def lookup(
        self,
        keys: Sequence[bytes],
        realm: Realm,
        layouts: LayoutDescriptor | Sequence[LayoutDescriptor | None] | None,
        *,
        lock: bool,
    ) -> list[bool]:
        self._stats.add("lookups")
        if not self._healthy():
            self._stats.add("lookups_sick")
            self._stats.add("chunks_missed", len(keys))
            return [False] * len(keys)
        if not keys:
            return []
        spaces: int | npt.NDArray[np.int32]
        if layouts is None or isinstance(layouts, LayoutDescriptor):
            spaces = self.space_of(realm, layouts)
        else:
            spaces = self.spaces_of(realm, layouts)
        now = self._runtime.now()
        found = self._catalog.find(b"".join(keys), spaces, realm=realm.digest, now=now)
        pack_ids: list[int] = found.pack_ids.tolist()
        packs = [pack_id for pack_id in dict.fromkeys(pack_ids) if pack_id != UNKNOWN]
        missed = pack_ids.count(UNKNOWN)
        if packs:
            self._catalog.touch(packs, now)
            self._note_touched(packs, now)
            if lock:
                self._take_locks(realm, keys, pack_ids, now)
        self._stats.add("chunks_found", len(keys) - missed)
        if missed:
            self._stats.add("chunks_missed", missed)
            self._on_miss()
        return [pack_id != UNKNOWN for pack_id in pack_ids]

    def layouts_of(self, keys: Sequence[bytes], realm: Realm) -> list[LayoutDescriptor | None]:
        if not keys:
            return []
        now = self._runtime.now()
        found = self._catalog.find(b"".join(keys), ANY_SPACE, realm=realm.digest, now=now)
        return [
            self._ledger.layout_of_space(space) if hit else None
            for space, hit in zip(found.spaces.tolist(), found.hits, strict=True)
        ]

    def forget(self, keys: Sequence[bytes], realm: Realm) -> list[int]:
        """Hide each key in every space of the realm; the bytes each held."""
        sizes: list[int] = []
        for key in keys:
            held = 0
            for space, (digest, _) in enumerate(self._catalog.spaces()):
                if digest != realm.digest:
                    continue
                found = self._catalog.locate(key, space)
                pack = self._ledger.by_id(int(found.pack_ids[0]))
                if pack is not None:
                    held += int(found.lengths[0])
                    self._ledger.condemn(pack.name, key)
            sizes.append(held)
        return sizes

    # -- locks -------------------------------------------------------------------------------

    def _take_locks(
        self, realm: Realm, keys: Sequence[bytes], pack_ids: list[int], now: float
    ) -> None:
        """Note them; whoever asks about locks enters them, or a later lookup about as many."""
        with self._lock:
            if self._locks_held() + len(keys) > LOCKS_MAX and now >= self._expire_at:
                self._expire_locks(now)
                self._expire_at = now + EXPIRE_SECONDS
            if self._locks_held() + len(keys) > LOCKS_MAX:
                self._stats.add("locks_refused", len(keys))
                return
            until = now + self._lock_seconds
            self._taken.append(_Taken(realm.digest, tuple(keys), pack_ids, until))
            self._taken_keys += len(keys)
            self._enter_locks(TAKEN_MAX)

    def _enter_locks(self, left_max: int = 0) -> None:
        """The oldest first, until at most so many keys are left noted."""
        while self._taken_keys > left_max:
            taken = self._taken.popleft()
            self._taken_keys -= len(taken.keys)
            locks = self._locks.setdefault(taken.realm, {})
            for key, pack_id in zip(taken.keys, taken.pack_ids, strict=True):
                if pack_id >= 0:
                    held = locks.get(key)
                    locks[key] = (1 if held is None else held[0] + 1, pack_id, taken.until)

    def unlock(self, keys: Sequence[bytes], realm: Realm) -> None:
        with self._lock:
            self._enter_locks()
            locks = self._locks.get(realm.digest, {})
            for key in keys:
                held = locks.pop(key, None)
                if held is not None and held[0] > 1:
                    locks[key] = (held[0] - 1, held[1], held[2])

    def _expire_locks(self, now: float) -> None:
        self._enter_locks()
        for locks in self._locks.values():
            for key in [key for key, held in locks.items() if held[2] <= now]:
                del locks[key]
        self._locks = {realm: locks for realm, locks in self._locks.items() if locks}

    def locked_packs(self) -> frozenset[int]:
        """Pack ids that the own sweep leaves alone."""
        now = self._runtime.now()
        with self._lock:
            self._expire_locks(now)
            return frozenset(held[1] for locks in self._locks.values() for held in locks.values())

    @property
    def locks_held(self) -> int:
        with self._lock:
            self._enter_locks()
            return self._locks_held()

    def _locks_held(self) -> int:
        return self._taken_keys + sum(map(len, self._locks.values()))

    # -- recency -----------------------------------------------------------------------------

    def _note_touched(self, pack_ids: Sequence[int], now: float) -> None:
        with self._lock:
            for pack_id in pack_ids:
                if pack_id in self._touched or len(self._touched) < TOUCHED_MAX:
                    self._touched[pack_id] = now

    def take_touches(self, now: float) -> list[tuple[int, float]]:
        """(pack id, time of its last lookup here) since the last call."""
        del now
        with self._lock:
            touched, self._touched = self._touched, {}
        return list(touched.items())
