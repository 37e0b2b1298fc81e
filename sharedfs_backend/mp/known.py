"""The keys this process put into the store or got out of it: for listing, and for usage by salt.

The catalog holds digests only, so LMCache's `list_l2_keys` and `bytes_by_cache_salt` can cover no
more than what passed through this process. Each key is announced to LMCache's listeners once:
`admit` says which keys of a store are new here. Bounded (I9): the oldest keys are let go, and the
caller is told so that it can take them out of LMCache's books too.

A page's cursor is the admission number of its last key: keys admitted or removed meanwhile shift
nothing. A removed key leaves its number behind, never itself, until half of the numbers are such.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

KNOWN_MAX = 131_072
"""Keys remembered, at about 400 bytes each."""
NUMBERS_MIN = 2048
"""Fewer numbers than this are not worth a pass, whatever they stand for."""


@dataclass(slots=True)
class _Entry:
    number: int
    size: int
    announced: bool


@dataclass(frozen=True, slots=True)
class Sized:
    """Keys with their byte sizes, as LMCache's listeners take them."""

    keys: list[Any]
    sizes: list[int]


class KnownKeys:
    """ObjectKey -> size, in order of admission. Any thread; the lock is held around arithmetic."""

    def __init__(self, limit: int = KNOWN_MAX) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: dict[Any, _Entry] = {}
        self._numbers: list[int] = []  # ascending
        self._keys: list[Any] = []  # parallel to _numbers; None for a key that is gone
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    def admit(
        self, keys: Sequence[Any], sizes: Sequence[int], *, stored: bool
    ) -> tuple[Sized, Sized]:
        """(newly announced, let go). A loaded key (`stored=False`) is listed, not announced."""
        fresh, gone = Sized([], []), Sized([], [])
        with self._lock:
            for key, size in zip(keys, sizes, strict=True):
                entry = self._entries.get(key)
                if entry is None:
                    entry = self._insert(key, size)
                if stored and not entry.announced:
                    entry.announced, entry.size = True, size
                    fresh.keys.append(key)
                    fresh.sizes.append(size)
            surplus = max(0, len(self._entries) - self._limit)
            for key in list(islice(self._entries, surplus)):
                self._drop(key, gone)
            self._compact()
        return fresh, gone

    def remove(self, keys: Sequence[Any]) -> Sized:
        """Forget keys; those that had been announced come back with their sizes."""
        gone = Sized([], [])
        with self._lock:
            for key in keys:
                self._drop(key, gone)
            self._compact()
        return gone

    def page(
        self, after: int, limit: int, model_name: str | None
    ) -> tuple[list[tuple[Any, int]], int | None]:
        """Up to `limit` (key, size) admitted after number `after`, and the next cursor."""
        found: list[tuple[Any, int]] = []
        last = after
        with self._lock:
            at = bisect_right(self._numbers, after)
            for place in range(at, len(self._numbers)):
                key = self._keys[place]
                if key is None:
                    continue
                if model_name is not None and key.model_name != model_name:
                    continue
                if len(found) == limit:
                    return found, last
                found.append((key, self._entries[key].size))
                last = self._numbers[place]
        return found, None

    def slice(self, after: int, limit: int) -> tuple[list[Any], int]:
        """Up to `limit` keys after number `after`, and where to go on (-1: from the start)."""
        rows, cursor = self.page(after, limit, None)
        return [key for key, _size in rows], -1 if cursor is None else cursor

    def _insert(self, key: Any, size: int) -> _Entry:
        entry = self._entries[key] = _Entry(self._next, size, False)
        self._numbers.append(self._next)
        self._keys.append(key)
        self._next += 1
        return entry

    def _drop(self, key: Any, gone: Sized) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._keys[bisect_left(self._numbers, entry.number)] = None
        if entry.announced:
            gone.keys.append(key)
            gone.sizes.append(entry.size)

    def _compact(self) -> None:
        """Forget the numbers of keys that are gone once they are the greater part."""
        if len(self._numbers) > max(2 * len(self._entries), min(NUMBERS_MIN, 2 * self._limit)):
            self._numbers = [entry.number for entry in self._entries.values()]
            self._keys = list(self._entries)
