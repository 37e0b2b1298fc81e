"""LMCache's calls in the store's terms: keys cut by realm, digests derived, results put together.

A call may hold keys of several models, ranks and object groups, in any order and not only a prefix.
`split` cuts it into one `Part` for each realm; a realm not known yet parks the work, before any
effect. `Pending` gathers the parts of one load or store and completes once, whatever happens.

Thread rules: `split` on the dispatcher; `Pending` from any thread. No I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sharedfs_backend.mp.dispatcher import Parked
from sharedfs_backend.mp.realms import REFUSED, Realms, Slot, slot_of


@dataclass(frozen=True, slots=True)
class Part:
    """The keys of one realm in a call: their places in it, and their digests."""

    slot: Slot
    realm: Any
    places: list[int]
    digests: list[bytes]


def slots_of(keys: Sequence[Any]) -> dict[Slot, list[int]]:
    """Slot -> places of its keys. One slot is the rule."""
    if not keys:
        return {}
    models, lengths = {key.model_name for key in keys}, {len(key.chunk_hash) for key in keys}
    if len(models) == len(lengths) == 1:
        return {(models.pop(), lengths.pop()): list(range(len(keys)))}
    slots: dict[Slot, list[int]] = {}
    for place, key in enumerate(keys):
        slots.setdefault(slot_of(key), []).append(place)
    return slots


class Splitter:
    """Cuts calls; memoises nothing itself, the store remembers derived keys."""

    def __init__(self, store: Any, realms: Realms) -> None:
        self._store, self._realms = store, realms

    def split(self, keys: Sequence[Any], *, wait: bool = True) -> list[Part]:
        """One part for each realm that can be had. Raises Parked (only if `wait`)."""
        slots = slots_of(keys)
        realms = {slot: self._realms.get(slot) for slot in slots}
        if wait:
            for slot, realm in realms.items():
                if realm is None:
                    raise Parked(slot)
        return [
            self._part(keys, slot, realms[slot], places)
            for slot, places in slots.items()
            if realms[slot] is not None and realms[slot] is not REFUSED
        ]

    def _part(self, keys: Sequence[Any], slot: Slot, realm: Any, places: list[int]) -> Part:
        mine = keys if len(places) == len(keys) else [keys[place] for place in places]
        return Part(slot, realm, places, self._store.keys(mine))


class Pending:
    """Counts the parts of one call; `complete` runs once, when all are in or it is given up."""

    def __init__(self, complete: Callable[[], None]) -> None:
        self._complete = complete
        self._lock = threading.Lock()
        self._left = 1  # the hand that submits the parts
        self._done = False

    def expect(self) -> None:
        with self._lock:
            self._left += 1

    def arrived(self) -> None:
        """One part is in, or the submitting hand is finished."""
        with self._lock:
            self._left -= 1
            run = self._left == 0 and not self._done
            self._done = self._done or run
        if run:
            self._complete()

    def give_up(self, instead: Callable[[], None]) -> None:
        """Complete now, with `instead`, unless it is complete already."""
        with self._lock:
            run, self._done = not self._done, True
        if run:
            instead()
