"""The table of a pack's chunks, held as four byte columns.

Columns (keys 16, offsets u64, lengths u64, checksums 16, little-endian) go to disk as they are and
into numpy without a loop over chunks: a snapshot holds millions. Rows are made only when asked for.

Must not know where a table is stored. Serves I2: each row carries the checksum its bytes must pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sharedfs_backend.layout.errors import BadValue
from sharedfs_backend.layout.head import BLOCK_BYTES, SIZE_MAX

Column = bytes | memoryview
"""Read-only; compares by content, whichever of the two it is."""

ROW_BYTES = 48
CHUNKS_PER_PACK_MAX = 65536
"""A table of 3 MiB: the largest that fits a journal entry, and more than the largest pack
(256 MiB) can hold at one block for each chunk."""


class ChunkEntry(NamedTuple):
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
        keys, checksums = bytes(self.keys), bytes(self.checksums)
        spans = zip(self.offset_array().tolist(), self.length_array().tolist(), strict=True)
        for at, (offset, length) in enumerate(spans):
            part = slice(16 * at, 16 * at + 16)
            yield ChunkEntry(keys[part], offset, length, checksums[part])

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

    def offset_array(self) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self.offsets, "<u8")

    def length_array(self) -> npt.NDArray[np.uint64]:
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


def require_places(tables: Sequence[EntryTable], ends: Sequence[int]) -> None:
    """BadValue unless each table's chunks are aligned, in order, apart, and before its end."""
    counts = np.array([len(table) for table in tables], "<i8")
    offsets = np.frombuffer(b"".join(table.offsets for table in tables), "<u8")
    lengths = np.frombuffer(b"".join(table.lengths for table in tables), "<u8")
    require_columns_in_place(offsets, lengths, counts, np.array(ends, "<u8"))


def require_columns_in_place(
    offsets: npt.NDArray[np.uint64],
    lengths: npt.NDArray[np.uint64],
    counts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.uint64],
) -> None:
    """The same for the joined columns of many packs with `counts[i]` chunks each."""
    if not len(offsets):
        return
    if max(int(offsets.max()), int(lengths.max())) > SIZE_MAX:
        raise BadValue("an offset or length exceeds 2^63")
    chunk_ends = offsets + lengths  # cannot wrap: both are below 2^63
    in_order = offsets[1:] >= chunk_ends[:-1]
    firsts = np.cumsum(counts)[:-1]  # the first chunk of a pack follows none
    in_order[firsts[(firsts > 0) & (firsts < len(offsets))] - 1] = True
    right = (
        bool((chunk_ends <= np.repeat(ends, counts)).all())
        and not (offsets % BLOCK_BYTES).any()
        and bool(in_order.all())
    )
    if not right:
        raise BadValue("chunks are unaligned, out of order, overlapping or outside their pack")
