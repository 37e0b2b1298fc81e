"""PackIndex: live packs in the catalog, under numbers of their own, and the layouts they use.

The ledger says which packs live; this keeps the catalog in step with it, many packs at a time,
because entering them one by one costs a hundred times as much. It also keeps out what a failed
audit has put into quarantine (I8). Touches no file, reads no clock; called under the ledger's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sharedfs_backend.catalog import Catalog, PackBatch
from sharedfs_backend.facts import Pack, sort_key
from sharedfs_backend.layout import EntryTable, LayoutDescriptor, PackRows, Seal

LAYOUTS_MAX = 65536
"""Fingerprints remembered; more layouts than any namespace has."""


@dataclass(frozen=True, slots=True, eq=False)
class Fresh:
    """A pack to enter: its rows within a table, and when it was last looked up."""

    pack: Pack
    first_row: int
    count: int
    last_lookup: float


class PackIndex:
    """See the module. Not thread-safe by itself, but for the reads of `by_id` and `fingerprint`."""

    def __init__(self, catalog: Catalog, seal: Seal) -> None:
        self.catalog = catalog
        self._seal = seal
        self._by_id: dict[int, Pack] = {}
        self._ids_made = 0
        self._layouts: dict[int, LayoutDescriptor] = {}
        self._fingerprints: dict[LayoutDescriptor, bytes] = {}
        self._quarantined: set[tuple[bytes, int]] = set()

    # -- layouts -----------------------------------------------------------------------------

    def fingerprint(self, layout: LayoutDescriptor) -> bytes:
        """The layout's fingerprint, remembered."""
        known = self._fingerprints.get(layout)
        if known is None:
            known = layout.fingerprint(self._seal)
            if len(self._fingerprints) >= LAYOUTS_MAX:
                self._fingerprints.clear()
            self._fingerprints[layout] = known
        return known

    def layout_of_space(self, space: int) -> LayoutDescriptor | None:
        return self._layouts.get(space)

    def _space(self, pack: Pack) -> int:
        assert pack.layout is not None
        space = self.catalog.space(pack.realm, self.fingerprint(pack.layout))
        self._layouts[space] = pack.layout
        return space

    # -- entering and leaving ----------------------------------------------------------------

    def add_commits(self, commits: Sequence[tuple[Pack, EntryTable]]) -> None:
        """Enter packs with a table each."""
        tables = [table for _, table in commits]
        joined = EntryTable(
            b"".join(table.keys for table in tables),
            b"".join(table.offsets for table in tables),
            b"".join(table.lengths for table in tables),
            b"".join(table.checksums for table in tables),
        )
        fresh: list[Fresh] = []
        row = 0
        for pack, table in commits:
            fresh.append(Fresh(pack, row, len(table), pack.first_seen))
            row += len(table)
        self._add(fresh, joined)

    def add_rows(self, rows: PackRows, chosen: Sequence[tuple[int, Pack]], now: float) -> None:
        """Enter packs that are rows of a snapshot."""
        starts = rows.starts()
        fresh: list[Fresh] = []
        for row, pack in chosen:
            touch = int(rows.touch_ms[row])
            age_seconds = (int(rows.age_ms[row]) if touch < 0 else touch) / 1000.0
            fresh.append(Fresh(pack, int(starts[row]), int(rows.counts[row]), now - age_seconds))
        self._add(fresh, rows.entries)

    def _add(self, fresh: list[Fresh], entries: EntryTable) -> None:
        """What is quarantined enters too, hidden: a snapshot must be able to write it down."""
        if not fresh:
            return
        ids = np.arange(self._ids_made, self._ids_made + len(fresh))
        self._ids_made += len(fresh)
        added = self.catalog.add_packs(
            PackBatch(
                pack_ids=ids,
                sort_keys=b"".join(sort_key(one.pack.name) for one in fresh),
                spaces=np.array([self._space(one.pack) for one in fresh], np.int32),
                versions=np.array([one.pack.version for one in fresh], np.uint64),
                first_rows=np.array([one.first_row for one in fresh]),
                counts=np.array([one.count for one in fresh]),
                entries=entries,
                first_seen=np.array([one.pack.first_seen for one in fresh]),
                last_lookup=np.array([one.last_lookup for one in fresh]),
            )
        )
        for one, pack_id, is_added in zip(fresh, ids.tolist(), added.tolist(), strict=True):
            if is_added:
                one.pack.pack_id = pack_id
                self._by_id[pack_id] = one.pack
                if self.is_quarantined(one.pack.realm, one.pack.rank):
                    self.catalog.hide(pack_id, None)

    def remove(self, pack: Pack) -> None:
        """Take a pack out of the catalog, if it is there."""
        if pack.pack_id >= 0:
            self.catalog.remove_pack(pack.pack_id)
            del self._by_id[pack.pack_id]
            pack.pack_id = -1

    def by_id(self, pack_id: int) -> Pack | None:
        return self._by_id.get(pack_id)

    # -- quarantine --------------------------------------------------------------------------

    def quarantine(self, realm: bytes, rank: int) -> None:
        """Stop finding anything of this realm and rank, now and later."""
        self._quarantined.add((realm, rank))
        for pack in self._by_id.values():
            if pack.realm == realm and pack.rank == rank:
                self.catalog.hide(pack.pack_id, None)

    def is_quarantined(self, realm: bytes, rank: int) -> bool:
        return (realm, rank) in self._quarantined
