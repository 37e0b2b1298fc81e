"""L1: the server's memory tier, as an adapter sees it: who owns which buffer, and until when.

A fixed number of equal objects; keys resident in them, least recently used first. A resident key is
locked by readers (a request that uses it, a store that reads it) and then neither evicted nor
written. A reserved object belongs to its writer until it is committed or discarded. Not
thread-safe: one engine, one thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any


class L1:
    """Objects and the keys in them."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self._objects = list(objects)
        self._free = list(range(len(objects)))
        self._resident: OrderedDict[Hashable, int] = OrderedDict()
        self._reserved: dict[Hashable, int] = {}
        self._readers: dict[Hashable, int] = {}
        self._temporary: set[Hashable] = set()

    def lock(self, keys: Iterable[Hashable]) -> list[bool]:
        """Which are resident; those get one reader more."""
        found = []
        for key in keys:
            here = key in self._resident
            if here:
                self._resident.move_to_end(key)
                self._readers[key] = self._readers.get(key, 0) + 1
            found.append(here)
        return found

    def unlock(self, keys: Iterable[Hashable]) -> None:
        """One reader less each; a temporary key leaves with its last."""
        for key in keys:
            left = self._readers[key] - 1
            if left:
                self._readers[key] = left
                continue
            del self._readers[key]
            if key in self._temporary:
                self._drop(key)

    def reserve(self, keys: Iterable[Hashable]) -> dict[Hashable, Any]:
        """An object to write for each key that gets one; resident and reserved keys get none."""
        given: dict[Hashable, Any] = {}
        for key in keys:
            if key in self._resident or key in self._reserved:
                continue
            if not self._free and not self._evict():
                break
            self._reserved[key] = self._free.pop()
            given[key] = self._objects[self._reserved[key]]
        return given

    def commit(self, keys: Iterable[Hashable], *, temporary: bool = False) -> None:
        """Written: resident from now on, with one reader."""
        for key in keys:
            self._resident[key] = self._reserved.pop(key)
            self._readers[key] = 1
            if temporary:
                self._temporary.add(key)

    def discard(self, keys: Iterable[Hashable]) -> None:
        """Not written after all."""
        for key in keys:
            self._free.append(self._reserved.pop(key))

    def clear(self) -> None:
        """Forget everything nobody reads."""
        for key in [key for key in self._resident if key not in self._readers]:
            self._drop(key)

    @property
    def locked(self) -> int:
        return len(self._readers)

    def _evict(self) -> bool:
        for key in self._resident:
            if key not in self._readers:
                self._drop(key)
                return True
        return False

    def _drop(self, key: Hashable) -> None:
        self._free.append(self._resident.pop(key))
        self._temporary.discard(key)
