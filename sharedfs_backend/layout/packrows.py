"""The packs of a snapshot as columns, and one pack of it as a value.

Columns are numpy arrays and byte columns over the snapshot's own memory: adding a million chunks to
a catalog needs no loop over chunks. Row i has `counts[i]` chunks in `entries`, after those of the
rows before it.

Must not know Arrow or files. Serves I1: a tombstone (dropped or gone) is a row like any other, and
may be all that is known of a pack.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sharedfs_backend.layout.names import WRITER_BYTES, PackName
from sharedfs_backend.layout.realm import LayoutDescriptor
from sharedfs_backend.layout.records import milliseconds
from sharedfs_backend.layout.seal import DIGEST_BYTES
from sharedfs_backend.layout.table import Column, EntryTable

NEVER = -1
"""In `touch_ms`: no lookup was ever seen to ask for the pack. In an index: not known."""


class PackState(enum.IntEnum):
    """LIVE -> DROPPED -> GONE, never back."""

    LIVE = 0
    DROPPED = 1
    GONE = 2


@dataclass(frozen=True, slots=True)
class SnapshotPack:
    """One pack. `realm` and `layout` are None only for a tombstone known by name alone. Ages are
    seconds at the time of writing, stored in whole milliseconds: since the last lookup that asked
    for it (None: never seen), and since the snapshot's writer first saw it."""

    name: PackName
    realm: bytes | None
    layout: LayoutDescriptor | None
    rank: int
    version: int
    total_bytes: int
    state: PackState
    touch_age_seconds: float | None
    age_seconds: float
    entries: EntryTable


@dataclass(frozen=True, slots=True, eq=False)
class PackRows:
    """All packs. `digests` has 16 bytes a row, `writers` 8; `realm_index` and `layout_index` point
    into `realms` and `layouts` (-1: not known)."""

    realms: tuple[bytes, ...]
    layouts: tuple[LayoutDescriptor, ...]
    digests: Column
    writers: Column
    seqs: npt.NDArray[np.uint64]
    realm_index: npt.NDArray[np.int32]
    layout_index: npt.NDArray[np.int32]
    ranks: npt.NDArray[np.uint32]
    versions: npt.NDArray[np.uint64]
    total_bytes: npt.NDArray[np.uint64]
    states: npt.NDArray[np.uint8]
    touch_ms: npt.NDArray[np.int64]
    age_ms: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    entries: EntryTable

    def __len__(self) -> int:
        return len(self.states)

    def name(self, row: int) -> PackName:
        return PackName(
            bytes(self.digests[16 * row : 16 * row + 16]),
            self.writers[8 * row : 8 * row + 8].hex(),
            int(self.seqs[row]),
        )

    def names(self) -> list[PackName]:
        """Names of all rows, in order: about a microsecond each."""
        digests, writers = bytes(self.digests), bytes(self.writers).hex()
        places = range(0, 16 * len(self), 16)
        return [
            PackName(digests[at : at + 16], writers[at : at + 16], seq)
            for at, seq in zip(places, self.seqs.tolist(), strict=True)
        ]

    def starts(self) -> npt.NDArray[np.int64]:
        """First row in `entries` of each pack."""
        return np.cumsum(self.counts) - self.counts

    def __iter__(self) -> Iterator[SnapshotPack]:
        """Packs one by one, lazily. For tools and tests: a catalog uses the columns."""
        starts = self.starts()
        for row, name in enumerate(self.names()):
            realm, layout = int(self.realm_index[row]), int(self.layout_index[row])
            touch = int(self.touch_ms[row])
            yield SnapshotPack(
                name=name,
                realm=None if realm == NEVER else self.realms[realm],
                layout=None if layout == NEVER else self.layouts[layout],
                rank=int(self.ranks[row]),
                version=int(self.versions[row]),
                total_bytes=int(self.total_bytes[row]),
                state=PackState(int(self.states[row])),
                touch_age_seconds=None if touch == NEVER else touch / 1000,
                age_seconds=int(self.age_ms[row]) / 1000,
                entries=self.entries.rows(int(starts[row]), int(self.counts[row])),
            )

    @classmethod
    def of(cls, packs: Iterable[SnapshotPack]) -> PackRows:
        """Columns of these packs, in their order. ValueError for a live pack without a realm."""
        rows = list(packs)
        realms: dict[bytes | None, int] = {None: NEVER}
        layouts: dict[LayoutDescriptor | None, int] = {None: NEVER}
        for row in rows:
            realms.setdefault(row.realm, len(realms) - 1)
            layouts.setdefault(row.layout, len(layouts) - 1)
            whole = row.realm is not None and row.layout is not None
            if (row.state == PackState.LIVE or len(row.entries)) and not whole:
                raise ValueError(f"pack {row.name.path} needs a realm and a layout")
        tables = [row.entries for row in rows]
        touches = [
            NEVER if row.touch_age_seconds is None else milliseconds(row.touch_age_seconds)
            for row in rows
        ]
        names = b"".join(row.name.to_bytes() for row in rows)
        raw = np.frombuffer(names, np.uint8).reshape(-1, 32)
        return cls(
            realms=tuple(realm for realm in realms if realm is not None),
            layouts=tuple(layout for layout in layouts if layout is not None),
            digests=raw[:, :DIGEST_BYTES].tobytes(),
            writers=raw[:, DIGEST_BYTES : DIGEST_BYTES + WRITER_BYTES].tobytes(),
            seqs=np.array([row.name.seq for row in rows], "<u8"),
            realm_index=np.array([realms[row.realm] for row in rows], "<i4"),
            layout_index=np.array([layouts[row.layout] for row in rows], "<i4"),
            ranks=np.array([row.rank for row in rows], "<u4"),
            versions=np.array([row.version for row in rows], "<u8"),
            total_bytes=np.array([row.total_bytes for row in rows], "<u8"),
            states=np.array([row.state for row in rows], "u1"),
            touch_ms=np.array(touches, "<i8"),
            age_ms=np.array([milliseconds(row.age_seconds) for row in rows], "<i8"),
            counts=np.array([len(row.entries) for row in rows], "<i8"),
            entries=EntryTable(
                b"".join(table.keys for table in tables),
                b"".join(table.offsets for table in tables),
                b"".join(table.lengths for table in tables),
                b"".join(table.checksums for table in tables),
            ),
        )
