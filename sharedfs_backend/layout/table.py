"""The table of a pack's chunks, held as four byte columns.

Columns (keys 16, offsets u64, lengths u64, checksums 16, little-endian) go to disk as they are and
into numpy without a loop over chunks: a snapshot holds millions. Rows are made only when asked for.

Must not know where a table is stored. Serves I2: each row carries the checksum its bytes must pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sharedfs_backend.layout.errors import BadValue
from sharedfs_backend.layout.head import BLOCK_BYTES, SIZE_MAX

Column = bytes | memoryview
"""Read-only; compares by content, whichever of the two it is."""

ROW_BYTES = 48
CHUNKS_PER_PACK_MAX = 65536
"""A table of 3 MiB: the largest that fits a journal entry, and more than the largest pack
(256 MiB) can hold at one block for each chunk."""


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """One chunk inside a pack file: `length` bytes from `offset`."""

    key: bytes
    offset: int
    length: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class EntryTable:
    """Rows of `ChunkEntry` as columns. A snapshot's table spans all its packs."""

    keys: Column
    offsets: Column
    lengths: Column
    checksums: Column

    def __len__(self) -> int:
        return len(self.keys) // 16

    def __getitem__(self, index: int) -> ChunkEntry:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return ChunkEntry(
            bytes(self.keys[16 * index : 16 * index + 16]),
            int.from_bytes(self.offsets[8 * index : 8 * index + 8], "little"),
            int.from_bytes(self.lengths[8 * index : 8 * index + 8], "little"),
            bytes(self.checksums[16 * index : 16 * index + 16]),
        )

    def __iter__(self) -> Iterator[ChunkEntry]:
        return (self[index] for index in range(len(self)))

    @classmethod
    def from_entries(cls, entries: Iterable[ChunkEntry]) -> EntryTable:
        rows = list(entries)
        if any(len(row.key) != 16 or len(row.checksum) != 16 for row in rows):
            raise ValueError("keys and checksums have 16 bytes")
        return cls(
            b"".join(row.key for row in rows),
            b"".join(row.offset.to_bytes(8, "little") for row in rows),
            b"".join(row.length.to_bytes(8, "little") for row in rows),
            b"".join(row.checksum for row in rows),
        )

    def rows(self, start: int, count: int) -> EntryTable:
        """A part of the table, copied, so that it does not keep the whole alive."""
        end = start + count
        return EntryTable(
            bytes(self.keys[16 * start : 16 * end]),
            bytes(self.offsets[8 * start : 8 * end]),
            bytes(self.lengths[8 * start : 8 * end]),
            bytes(self.checksums[16 * start : 16 * end]),
        )

    def offset_array(self) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return np.frombuffer(self.offsets, "<u8")

    def length_array(self) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return np.frombuffer(self.lengths, "<u8")


EMPTY_TABLE = EntryTable(b"", b"", b"", b"")


def require_shape(table: EntryTable, rows_max: int) -> None:
    """BadValue unless the four columns have equally many rows, not too many."""
    rows, rest = divmod(len(table.keys), 16)
    sizes = (len(table.offsets), len(table.lengths), len(table.checksums))
    if rest or sizes != (8 * rows, 8 * rows, 16 * rows):
        raise BadValue(f"columns of a table disagree: {len(table.keys)}, {sizes}")
    if rows > rows_max:
        raise BadValue(f"{rows} chunks exceed {rows_max}")


def require_rows_within(table: EntryTable, start: int, end: int) -> None:
    """BadValue unless chunks are block-aligned, in order, apart, and within [start, end)."""
    if not len(table):
        return
    offsets, lengths = table.offset_array(), table.length_array()
    if int(offsets.max()) > SIZE_MAX or int(lengths.max()) > SIZE_MAX:
        raise BadValue("an offset or length exceeds 2^63")
    ends = offsets + lengths  # cannot wrap: both are below 2^63
    right = (
        int(offsets[0]) >= start
        and int(ends[-1]) <= end
        and not (offsets % BLOCK_BYTES).any()
        and bool((offsets[1:] >= ends[:-1]).all())
    )
    if not right:
        raise BadValue("chunks are unaligned, out of order, overlapping or outside the payload")
