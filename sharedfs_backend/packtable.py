"""PackTable: what the catalog knows of each pack, in columns beside the rows of its chunks.

A pack has the number its ledger gave it, never given twice, so a number that outlives its pack
finds nothing instead of another pack. Inside, packs have places, which are used again; only this
package's catalog sees those. A name is kept as four big-endian words, which compare like the name.

Knows no file and no clock: times are the caller's, on its own monotonic clock (I3). Not
thread-safe: the catalog's lock covers it. Bounded by `packs_max` (I9).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sharedfs_backend.columns import reserve

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

SORT_KEY_BYTES = 32
UNKNOWN = -1
"""Number of a parent nobody has seen."""


class PackTable:
    """Columns indexed by place. A free place has the number UNKNOWN."""

    def __init__(self, packs_max: int) -> None:
        self.packs_max = packs_max
        self.numbers = reserve(packs_max, np.int64)
        self.names = reserve(packs_max, np.uint64, SORT_KEY_BYTES // 8)
        self.first_row = reserve(packs_max, np.int64)
        self.count = reserve(packs_max, np.int32)
        self.chosen = reserve(packs_max, np.int32)
        """Rows of the pack that are in the index."""
        self.space = reserve(packs_max, np.int32)
        self.version = reserve(packs_max, np.uint64)
        self.parent = reserve(packs_max, np.int64)
        self.first_seen = reserve(packs_max, np.float64)
        self.last_lookup = reserve(packs_max, np.float64)
        self.suspended_until = reserve(packs_max, np.float64)
        self._place_of: dict[int, int] = {}
        self._free: list[int] = []
        self._used = 0

    def __len__(self) -> int:
        return len(self._place_of)

    def room(self) -> int:
        return self.packs_max - len(self._place_of)

    def place(self, number: int) -> int | None:
        return self._place_of.get(number)

    def places(self, numbers: Iterable[int]) -> list[int]:
        """Places of those that are known, in the order given."""
        found = map(self._place_of.get, numbers)
        return [place for place in found if place is not None]

    def numbers_known(self) -> I64:
        return np.fromiter(self._place_of, np.int64, len(self._place_of))

    def places_known(self) -> I64:
        """In the order of `numbers_known`."""
        return np.fromiter(self._place_of.values(), np.int64, len(self._place_of))

    def add(
        self,
        numbers: I64,
        *,
        names: U64,
        spaces: npt.NDArray[np.int32],
        versions: npt.NDArray[np.uint64],
        counts: npt.NDArray[np.int32],
        first_row: int,
        first_seen: F64,
        last_lookup: F64,
    ) -> I64:
        """Enter packs whose rows follow each other from `first_row` on; returns their places."""
        assert not any(number in self._place_of for number in numbers.tolist())
        reused = [self._free.pop() for _ in range(min(len(self._free), len(numbers)))]
        fresh = len(numbers) - len(reused)
        at = np.array([*reused, *range(self._used, self._used + fresh)], np.int64)
        self._used += fresh
        self.numbers[at], self.names[at], self.count[at] = numbers, names, counts
        self.first_row[at] = first_row + counts.cumsum() - counts
        self.space[at], self.version[at] = spaces, versions
        self.first_seen[at], self.last_lookup[at] = first_seen, last_lookup
        self.chosen[at], self.parent[at], self.suspended_until[at] = 0, UNKNOWN, -np.inf
        self._place_of.update(zip(numbers.tolist(), at.tolist(), strict=True))
        return at

    def remove(self, number: int) -> None:
        place = self._place_of.pop(number)
        self.numbers[place] = UNKNOWN
        self._free.append(place)

    def beats(self, new: I64, old: I64) -> Mask:
        """Whether packs at `new` come before those at `old`: higher version, then lower name."""
        version_new, version_old = self.version[new], self.version[old]
        result: Mask = version_new > version_old
        tied = np.flatnonzero(version_new == version_old)
        if len(tied):
            ours, theirs = self.names[new[tied]], self.names[old[tied]]
            word = (ours != theirs).argmax(axis=1)
            at = np.arange(len(tied))
            result[tied] = ours[at, word] < theirs[at, word]
        return result

    def preference(self, places: I64) -> I64:
        """Indices that sort these packs so that the one to choose comes last."""
        names = self.names[places]
        words = [~names[:, word] for word in reversed(range(names.shape[1]))]
        order: I64 = np.lexsort((*words, self.version[places]))
        return order

    def chain(self, places: list[int]) -> None:
        """Note each pack's predecessor in one lookup as its parent; no pack comes twice."""
        if len(places) > 1:
            self.parent[places[1:]] = self.numbers[places[:-1]]

    def resident_bytes(self) -> int:
        columns = 8 * 6 + 4 * 4 + SORT_KEY_BYTES
        return self._used * columns + len(self._place_of) * 130  # a dict entry and its two ints


def words_of(sort_keys: bytes) -> U64:
    """Names as words that compare like the bytes, shape (n, 4)."""
    return np.frombuffer(sort_keys, ">u8").astype(np.uint64).reshape(-1, SORT_KEY_BYTES // 8)
