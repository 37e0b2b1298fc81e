"""Rows: one for each chunk of each pack known, in columns; a pack's rows lie next to each other.

Rows are appended, never changed in place. Those of a removed pack become holes; when holes make up
a quarter, `compact_step` slides the rest down, a few thousand rows at a time, keeping their order,
so packs stay whole after every step. What no longer holds rows is given back to the system.

A row keeps all that a load needs (I2: the checksum too), also when another pack's row for the same
chunk was chosen: a snapshot writes every pack whole. Knows no names, spaces or realms. Not
thread-safe: the catalog's lock covers it. Memory is bounded by `rows_max` (I9).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sharedfs_backend.columns import Array, give_back, reserve
from sharedfs_backend.layout import EntryTable

I64 = npt.NDArray[np.int64]

LENGTH_MAX = (1 << 32) - 1
"""A chunk lies in one pack, and no pack is larger than 4 GiB."""
HOLES_MAX_RATIO = 0.25
HOLES_MIN = 4096
"""Fewer holes are not worth a pass."""
STEP_ROWS = 4096
"""Rows moved under one hold of the lock: about a millisecond."""
NO_PACK = -1

INDEXED, HIDDEN = 1, 2
"""Flags of a row: chosen for its (key, space); condemned in this process."""


class Rows:
    """Column arrays indexed by row number; rows below `used` are in use or holes."""

    def __init__(self, rows_max: int) -> None:
        # A pass begins at a quarter of holes, so this leaves room while it is under way.
        self.capacity = rows_max + rows_max // 2 + 2 * STEP_ROWS
        self.keys = reserve(self.capacity, np.uint64, 2)
        self.checksums = reserve(self.capacity, np.uint64, 2)
        self.offsets = reserve(self.capacity, np.uint64)
        self.lengths = reserve(self.capacity, np.uint32)
        self.packs = reserve(self.capacity, np.int32)
        self.flags = reserve(self.capacity, np.uint8)
        self.used = 0
        self.holes = 0
        self._from = self._to = -1  # a pass is under way when _from >= 0

    def __len__(self) -> int:
        return self.used - self.holes

    def _columns(self) -> tuple[Array, ...]:
        return (self.keys, self.checksums, self.offsets, self.lengths, self.packs, self.flags)

    def append(self, table: EntryTable, packs: npt.NDArray[np.int32]) -> int:
        """Add the table's rows; returns the first one's number. The caller checked `room`."""
        first, count = self.used, len(table)
        span = slice(first, first + count)
        self.keys[span] = np.frombuffer(table.keys, "<u8").reshape(-1, 2)
        self.checksums[span] = np.frombuffer(table.checksums, "<u8").reshape(-1, 2)
        self.offsets[span] = np.frombuffer(table.offsets, "<u8")
        self.lengths[span] = np.frombuffer(table.lengths, "<u8")
        self.packs[span] = packs
        self.flags[span] = 0
        self.used += count
        return first

    def room(self) -> int:
        return self.capacity - self.used

    def free(self, first: int, count: int) -> None:
        """Make holes of a pack's rows, which the caller has taken out of the index."""
        self.packs[first : first + count] = NO_PACK
        self.holes += count

    def table(self, rows: I64 | slice) -> EntryTable:
        """Copies of these rows, as they go to disk."""
        return EntryTable(
            self.keys[rows].tobytes(),
            self.offsets[rows].tobytes(),
            self.lengths[rows].astype("<u8").tobytes(),
            self.checksums[rows].tobytes(),
        )

    # -- compaction --------------------------------------------------------------------------

    def wants_compaction(self) -> bool:
        """A pass is under way or due."""
        due = self.holes > max(HOLES_MIN, self.used * HOLES_MAX_RATIO)
        return due or self._from >= 0

    def compact_step(
        self,
        end_of_pack: Callable[[int], int],
        moved: Callable[[I64, int], None],
    ) -> None:
        """Slide some rows down. `moved(rows, to)` is called first: rows[i] becomes to + i.

        `end_of_pack(pack)` is one past the pack's last row now: a step never cuts a pack.
        """
        if self._from < 0:
            self._from = self._to = 0
        start, end = self._from, min(self._from + STEP_ROWS, self.used)
        if end > start and self.packs[end - 1] != NO_PACK:
            end = end_of_pack(int(self.packs[end - 1]))
        rows = np.flatnonzero(self.packs[start:end] != NO_PACK) + start
        if len(rows) and self._to + len(rows) - 1 != rows[-1]:  # else there is no hole before any
            moved(rows, self._to)
            for column in self._columns():
                column[self._to : self._to + len(rows)] = column[rows]
        self._to += len(rows)
        self._from = end
        if end >= self.used:
            self._finish_pass()

    def _finish_pass(self) -> None:
        self.holes -= self.used - self._to
        self.used = self._to
        self._from = self._to = -1
        for column in self._columns():
            give_back(column, self.used)

    def resident_bytes(self) -> int:
        return self.used * sum(column.strides[0] for column in self._columns())
