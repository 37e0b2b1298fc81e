"""The values that go into the catalog and come out of it, and how they become numpy columns.

Pure: no lock, no clock, no file. Arrays in these values are copies of their own, so they stay true
when the catalog changes under them; pack ids in them are never used twice, so one that outlives
its pack finds nothing (I2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sharedfs_backend.layout import EntryTable
from sharedfs_backend.packtable import F64, I64, U64

I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]

ANY_SPACE = -1
"""In place of a space: whichever one of the realm has the key, if only one has."""
NO_SPACE = -2
"""In place of a space: one that holds nothing."""
CHECKSUM_BYTES = 16
KEY_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """One element for each key asked. `pack_ids` is -1 for a miss."""

    pack_ids: I64
    spaces: I32

    @property
    def hits(self) -> list[bool]:
        hits: list[bool] = (self.pack_ids >= 0).tolist()
        return hits


@dataclass(frozen=True, slots=True, eq=False)
class Located(Found):
    """What a load needs of each hit; undefined where `pack_ids` is -1."""

    offsets: U64
    lengths: U32
    checksum_words: U64

    def checksum(self, index: int) -> bytes:
        return bytes(self.checksum_words[index])

    def checksums(self) -> bytes:
        """All of them joined, CHECKSUM_BYTES each."""
        return self.checksum_words.tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class PackBatch:
    """Packs to be added together; all but `entries` have one element for each pack.

    Pack i has rows first_rows[i] .. first_rows[i] + counts[i] of `entries`, all of `sort_keys`
    are joined (32 bytes each), times are on the caller's monotonic clock.
    """

    pack_ids: I64
    sort_keys: bytes
    spaces: I32
    versions: U64
    first_rows: I64
    counts: I64
    entries: EntryTable
    first_seen: F64
    last_lookup: F64


@dataclass(frozen=True, slots=True, eq=False)
class PackFacts:
    """All packs, for planning what to drop. `chosen`: chunks that a lookup finds here."""

    pack_ids: I64
    parents: I64
    counts: I64
    chosen: I64
    first_seen: F64
    last_lookup: F64


@dataclass(frozen=True, slots=True)
class Page:
    """Entries that a lookup finds, some at a time. `cursor` continues; None: that was all."""

    entries: tuple[tuple[int, bytes, int], ...]
    """(pack id, key, length in bytes)"""
    cursor: int | None


def words(keys: bytes | memoryview) -> U64:
    return np.frombuffer(keys, "<u8").reshape(-1, 2)


def row_numbers(first_rows: I64, counts: I64) -> I64:
    """The row numbers of several runs, one after the other."""
    before = counts.cumsum() - counts
    return np.arange(int(counts.sum())) + np.repeat(first_rows - before, counts)


def gather(table: EntryTable, rows: I64) -> EntryTable:
    """These rows of a table; without copying where they follow each other."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and (np.diff(rows) == 1).all():
        first, end = int(rows[0]), int(rows[-1]) + 1
        keys, checksums = table.keys[16 * first : 16 * end], table.checksums[16 * first : 16 * end]
        offsets, lengths = table.offsets[8 * first : 8 * end], table.lengths[8 * first : 8 * end]
        return EntryTable(keys, offsets, lengths, checksums)
    return EntryTable(
        np.frombuffer(table.keys, "V16")[rows].tobytes(),
        np.frombuffer(table.offsets, "<u8")[rows].tobytes(),
        np.frombuffer(table.lengths, "<u8")[rows].tobytes(),
        np.frombuffer(table.checksums, "V16")[rows].tobytes(),
    )
