"""Who holds which key, and whose copies an unlock must stop (I7).

LMCache locks keys by looking them up, loads them, and unlocks them once it has the result. When it
gives a request up it unlocks the keys of a load still under way **and then frees the buffers**, so
an unlock must shut that load's gate before it returns; the unlock of another request that holds the
same key must not. The two are told apart by identity: LMCache passes the very `ObjectKey` objects
of its request to lookup, load and unlock. A load is stopped for a key object when fewer locks than
loads are left for it. An unlock with objects never seen before (a caller that builds its keys anew)
is judged by value, the same way; in doubt the load is stopped, which costs a miss and no more.

A lock nobody returns is forgotten after its time to live; their number is bounded (I9). Every
method may be called from any thread; the lock is held around arithmetic, and stopping a load (which
waits for copies under way) happens outside it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Protocol

_hash_of = attrgetter("chunk_hash")

GRANTS_MAX = 4096
"""Lookups whose locks are remembered."""


class StoreLoad(Protocol):
    """What a load needs of the store's task."""

    def cancel(self) -> None: ...

    def cancel_keys(self, keys: Sequence[bytes], /) -> None: ...


class Load:
    """One load on its way: LMCache's keys and buffers, and the store's tasks that fill them."""

    def __init__(self, task_id: int, keys: Sequence[Any], objects: Sequence[Any], at: float):
        self.task_id, self.keys, self.objects, self.at = task_id, tuple(keys), tuple(objects), at
        self.lock = threading.Lock()  # held while a part is submitted: an unlock waits for it
        self.void: set[int] = set()
        self.good: list[int] = []  # places loaded whole; complete once the load is
        self.parts: list[tuple[list[int], list[bytes], StoreLoad]] = []
        self._ids: frozenset[int] | None = None
        self._hashes: frozenset[bytes] | None = None

    @property
    def ids(self) -> frozenset[int]:
        """Identities of the key objects, which this load keeps alive."""
        if self._ids is None:
            self._ids = frozenset(map(id, self.keys))
        return self._ids

    @property
    def hashes(self) -> frozenset[bytes]:
        if self._hashes is None:
            self._hashes = frozenset(map(_hash_of, self.keys))
        return self._hashes

    def stop(self, positions: set[int]) -> None:
        """On return nothing writes to the buffers at `positions`, now or later (I7)."""
        with self.lock:
            self.void |= positions
            for places, digests, task in self.parts:
                lost = [digests[n] for n, place in enumerate(places) if place in positions]
                if len(lost) == len(places):
                    task.cancel()
                elif lost:
                    task.cancel_keys(lost)

    def stop_all(self) -> None:
        self.stop(set(range(len(self.keys))))


class _Grant:
    """The locks one lookup took. Holds the key objects, so that their identities stay theirs."""

    __slots__ = ("_held", "_keys", "expires")

    def __init__(self, keys: Sequence[Any], expires: float) -> None:
        self._keys = keys
        self._held: dict[int, Any] | None = None  # made by the first unlock, not by the lookup
        self.expires = expires

    @property
    def held(self) -> dict[int, Any]:
        """Identity -> key object of each lock not returned yet."""
        if self._held is None:
            self._held = dict(zip(map(id, self._keys), self._keys, strict=True))
        return self._held

    @property
    def is_over(self) -> bool:
        """Every lock was returned."""
        return self._held is not None and not self._held


class Leases:
    """Locks granted, loads open. See the module's text."""

    def __init__(self, ttl_seconds: float, grants_max: int = GRANTS_MAX) -> None:
        self._ttl = ttl_seconds
        self._grants_max = grants_max
        self._lock = threading.Lock()
        self._grants: deque[_Grant] = deque()
        self._open: dict[int, Load] = {}
        self._unsettled: deque[Sequence[Any]] = deque()
        self.stopped_keys = 0

    @property
    def locked(self) -> int:
        """Locks not returned and not expired."""
        with self._lock:
            self._settle()
            return sum(len(grant.held) for grant in self._grants)

    def unlocked(self, keys: Sequence[Any]) -> list[Any]:
        """Those keys that nobody holds a lock on, by value."""
        with self._lock:
            self._settle()
            held = {key for grant in self._grants for key in grant.held.values()}
        return [key for key in keys if key not in held]

    @property
    def loading(self) -> int:
        return len(self._open)

    def grant(self, keys: Sequence[Any], now: float) -> None:
        """A lookup found and locked these key objects."""
        with self._lock:
            self._settle()
            while self._grants and (
                self._grants[0].expires <= now
                or self._grants[0].is_over
                or len(self._grants) >= self._grants_max
            ):
                self._grants.popleft()
            self._grants.append(_Grant(keys, now + self._ttl))

    def opened(self, load: Load) -> None:
        with self._lock:
            self._open[load.task_id] = load

    def handed_out(self, task_id: int) -> None:
        """LMCache took the load's result: its unlock will be no cancellation."""
        with self._lock:
            self._open.pop(task_id, None)

    def abandon_all(self) -> list[Load]:
        """Every open load, for `close`."""
        with self._lock:
            loads = list(self._open.values())
            self._open.clear()
            return loads

    def release(self, keys: Sequence[Any]) -> None:
        """Return one lock for each key. On return the loads it cancels are stopped (I7)."""
        with self._lock:
            if not self._open:
                self._unsettled.append(keys)
                return
            victims = self._release(keys)
        for load, positions in victims:
            load.stop(positions)

    def settle(self) -> None:
        """Do the bookkeeping that `release` put off; for a thread that has the time."""
        with self._lock:
            self._settle()

    def _release(self, keys: Sequence[Any]) -> list[tuple[Load, set[int]]]:
        hashes = list(map(_hash_of, keys))
        near = [load for load in self._open.values() if not load.hashes.isdisjoint(hashes)]
        if not near:
            self._unsettled.append(keys)
            return []
        ids = dict(zip(map(id, keys), keys, strict=True))
        self._settle()
        strangers = self._return_by_identity(ids)
        mine = [load for load in near if not load.ids.isdisjoint(ids)]
        victims = self._outnumbered_by_identity(mine, ids) if mine else []
        victims += self._outnumbered_by_value(strangers)
        self.stopped_keys += sum(len(positions) for _load, positions in victims)
        for load, positions in victims:
            if len(load.void | positions) == len(load.keys):
                self._open.pop(load.task_id, None)
        return victims

    def _settle(self) -> None:
        while self._unsettled:
            strangers = self._return_by_identity({id(key): key for key in self._unsettled[0]})
            self._return_by_value(strangers)
            self._unsettled.popleft()

    def _return_by_identity(self, ids: dict[int, Any]) -> list[Any]:
        """Take one lock off each key object; the keys for which there was none."""
        left = dict(ids)
        probe = next(iter(left), None)  # all keys of an unlock come from one lookup, as a rule
        for grant in sorted(self._grants, key=lambda grant: probe not in grant.held):
            for known in left.keys() & grant.held.keys():
                del grant.held[known], left[known]
            if not left:
                break
        return list(left.values())

    def _return_by_value(self, keys: Sequence[Any]) -> None:
        wanted = Counter(keys)
        for grant in self._grants if wanted else ():
            for known, key in list(grant.held.items()):
                if wanted[key] > 0:
                    wanted[key] -= 1
                    del grant.held[known]

    def _outnumbered_by_identity(
        self, loads: Sequence[Load], ids: dict[int, Any]
    ) -> list[tuple[Load, set[int]]]:
        locks: Counter[int] = Counter()
        for grant in self._grants:
            locks.update(ids.keys() & grant.held.keys())
        uses: Counter[int] = Counter()
        for load in loads:
            uses.update(load.ids & ids.keys())
        lost = {known for known, count in uses.items() if locks[known] < count}
        return _positions(loads, lambda key: id(key) in lost)

    def _outnumbered_by_value(self, keys: Sequence[Any]) -> list[tuple[Load, set[int]]]:
        """For keys of unknown objects: compare locks and loads of equal keys."""
        if not keys:
            return []
        self._return_by_value(keys)
        wanted = set(keys)
        locks = Counter(
            key for grant in self._grants for key in grant.held.values() if key in wanted
        )
        uses = Counter(key for load in self._open.values() for key in load.keys if key in wanted)
        lost = {key for key, count in uses.items() if locks[key] < count}
        return _positions(list(self._open.values()), lambda key: key in lost)


def _positions(loads: Sequence[Load], lost: Any) -> list[tuple[Load, set[int]]]:
    found = []
    for load in loads:
        places = {place for place, key in enumerate(load.keys) if lost(key)}
        if places:
            found.append((load, places))
    return found
