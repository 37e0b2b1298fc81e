"""Which chunks LMCache has pinned through this backend, so that each unpin returns one lock.

A pin is a lock in the store that keeps our own sweep away from a chunk between lookup and load. The
store is shared with other backends of the process, so an unpin of what this backend never pinned
must not take theirs. In LMCache's asynchronous path nobody unpins by key: there the pins of a
lookup end with its load, or with its cancellation. Bounded (I9): beyond the limits chunks are found
but not pinned, and the oldest lookup's pins are returned.

Thread-safe; never calls the store.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence

PINS_MAX = 262_144
LOOKUPS_MAX = 4096


class Pins:
    """Counts by chunk key, and the keys of each asynchronous lookup."""

    def __init__(self, pins_max: int = PINS_MAX, lookups_max: int = LOOKUPS_MAX) -> None:
        self._pins_max = pins_max
        self._lookups_max = lookups_max
        self._lock = threading.Lock()
        self._counts: Counter[bytes] = Counter()
        self._lookups: OrderedDict[str, list[bytes]] = OrderedDict()
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    def room(self, count: int) -> bool:
        """Whether that many more pins may be taken."""
        return self._total + count <= self._pins_max

    def add(self, keys: Sequence[bytes], lookup_id: str | None = None) -> list[bytes]:
        """Note pins just taken. Returns keys to unlock because too many lookups are open."""
        with self._lock:
            self._counts.update(keys)
            self._total += len(keys)
            if lookup_id is None:
                return []
            self._lookups.setdefault(lookup_id, []).extend(keys)
            self._lookups.move_to_end(lookup_id)
            if len(self._lookups) <= self._lookups_max:
                return []
            _, oldest = self._lookups.popitem(last=False)
            return self._subtract(oldest)

    def remove(self, keys: Sequence[bytes]) -> list[bytes]:
        """One unpin for each key. Returns those that held a pin: the ones to unlock."""
        with self._lock:
            return self._subtract(keys)

    def end_lookup(self, lookup_id: str) -> list[bytes]:
        """The lookup's load is over. Returns the keys to unlock."""
        with self._lock:
            return self._subtract(self._lookups.pop(lookup_id, []))

    def holds(self, key: bytes) -> bool:
        return self._counts[key] > 0

    def clear(self) -> list[bytes]:
        """Every pin, for `close`."""
        with self._lock:
            keys = list(self._counts.elements())
            self._counts.clear()
            self._lookups.clear()
            self._total = 0
            return keys

    def _subtract(self, keys: Sequence[bytes]) -> list[bytes]:
        held = []
        for key in keys:
            if self._counts[key] > 0:
                held.append(key)
                self._counts[key] -= 1
            if self._counts[key] <= 0:
                del self._counts[key]
        self._total -= len(held)
        return held
