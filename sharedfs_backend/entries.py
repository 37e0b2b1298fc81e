"""Entries: rows, index and packs kept in step, and the choice between several packs of one entry.

An entry is a chunk key in a space. Of all packs that hold it the one with the highest version is in
the index, then the one with the lowest name, whatever the order in which they became known. Rows
that lose stay, since a snapshot writes packs whole. A hidden row (condemned in this process) stays
in the index too, so that its version is known to whoever stores the chunk again.

Each method is one step, short enough for the lock that the catalog holds around it. It knows no
lock, no realm and no clock.
"""

from __future__ import annotations

import numpy as np

from sharedfs_backend.catalog_values import PackBatch, words
from sharedfs_backend.keytable import KeyTable, hash_keys
from sharedfs_backend.layout import EntryTable
from sharedfs_backend.packtable import I64, SORT_KEY_BYTES, U64, PackTable, words_of
from sharedfs_backend.rows import HIDDEN, INDEXED, STEP_ROWS, Rows

_PAIR = np.uint64(0xC2B2AE3D27D4EB4F)  # odd: tells apart equal keys of different spaces


class Entries:
    """Not thread-safe. `chunks_max` rows and as many packs."""

    def __init__(self, chunks_max: int) -> None:
        self.chunks_max = chunks_max
        self.rows = Rows(chunks_max)
        self.table = KeyTable(chunks_max)
        self.packs = PackTable(chunks_max)
        self.hidden = 0
        """Rows in the index that are hidden."""
        self.unplaced = 0
        """Rows that the index had no slot for."""

    def matching(self, keys: U64, hashes: U64) -> tuple[I64, I64, I64]:
        """(indices of keys, slots, rows): every indexed row of one of these keys, in any space."""
        index, slots = self.table.candidates(hashes)
        rows = self.table.slots[slots].astype(np.int64)
        same = (self.rows.keys[rows] == keys[index]).all(axis=1)
        if same.all():
            return index, slots, rows
        return index[same], slots[same], rows[same]

    def span(self, place: int) -> I64:
        """Row numbers of a pack."""
        first = int(self.packs.first_row[place])
        return np.arange(first, first + int(self.packs.count[place]))

    # -- adding ------------------------------------------------------------------------------

    def has_room(self, rows: int, packs: int) -> bool:
        return len(self.rows) + rows <= self.chunks_max and packs <= self.packs.room()

    def relieve(self, hashes: U64, expected: int) -> bool:
        """Rebuild one crowded shard of the index; False when none of those concerned is."""
        shards, incoming = self.table.crowded(hashes, expected)
        if not len(shards):
            return False
        self.table.rebuild(int(shards[0]), self.rows.keys, int(incoming[0]))
        return True

    def enter(self, batch: PackBatch, chosen: slice, entries: EntryTable, hashes: U64) -> None:
        """Add some packs of a batch; `entries` holds their rows. There must be room."""
        counts = batch.counts[chosen].astype(np.int32)
        sort_keys = batch.sort_keys[SORT_KEY_BYTES * chosen.start : SORT_KEY_BYTES * chosen.stop]
        places = self.packs.add(
            batch.pack_ids[chosen],
            names=words_of(sort_keys),
            spaces=batch.spaces[chosen],
            versions=batch.versions[chosen],
            counts=counts,
            first_row=self.rows.used,
            first_seen=batch.first_seen[chosen],
            last_lookup=batch.last_lookup[chosen],
        )
        holders = np.repeat(places, counts)
        first = self.rows.append(entries, holders.astype(np.int32))
        for start in range(0, len(hashes), STEP_ROWS):
            part = slice(start, min(start + STEP_ROWS, len(hashes)))
            rows = np.arange(first + part.start, first + part.stop)
            self._choose(rows, holders[part], hashes[part])

    def _choose(self, rows: I64, places: I64, hashes: U64) -> None:
        """Put new rows into the index wherever they come before what is there."""
        pairs = hashes + self.packs.space[places].astype(np.uint64) * _PAIR
        best = self._best_of_equals(places, pairs)
        if best is not None:
            rows, places, hashes = rows[best], places[best], hashes[best]
        index, slots, held = self.matching(self.rows.keys[rows], hashes)
        holders = self.rows.packs[held].astype(np.int64)
        here = np.flatnonzero(self.packs.space[holders] == self.packs.space[places[index]])
        index, slots, held, holders = index[here], slots[here], held[here], holders[here]
        wins = self.packs.beats(places[index], holders)
        self.table.slots[slots[wins]] = rows[index[wins]]
        self._unmark(held[wins])
        fresh = np.ones(len(rows), np.bool_)
        fresh[index] = False
        placed = self.table.place(hashes[fresh], rows[fresh])
        self.unplaced += int(np.count_nonzero(~placed))
        fresh[fresh] = placed
        fresh[index[wins]] = True
        self.rows.flags[rows[fresh]] = INDEXED
        np.add.at(self.packs.chosen, places[fresh], np.int32(1))

    def _best_of_equals(self, places: I64, pairs: U64) -> I64 | None:
        """Indices of rows that no other of these comes before; None when no two are equal."""
        ordered = np.sort(pairs)
        if not (ordered[1:] == ordered[:-1]).any():
            return None
        distinct, which = np.unique(places, return_inverse=True)
        rank = np.empty(len(distinct), np.int64)
        rank[self.packs.preference(distinct)] = np.arange(len(distinct))
        order: I64 = np.lexsort((rank[which], pairs))
        last = np.ones(len(order), np.bool_)
        last[:-1] = pairs[order[1:]] != pairs[order[:-1]]
        return order[last]

    def _unmark(self, rows: I64) -> None:
        """These rows are no longer in the index."""
        flags = self.rows.flags
        self.hidden -= int(np.count_nonzero(flags[rows] == (INDEXED | HIDDEN)))
        flags[rows] &= np.uint8(0xFF ^ INDEXED)
        np.subtract.at(self.packs.chosen, self.rows.packs[rows], np.int32(1))

    # -- removing ----------------------------------------------------------------------------

    def remove_step(self, pack_id: int) -> bool:
        """Take some of a pack's rows out of the index, then the pack; False once it is gone."""
        place = self.packs.place(pack_id)
        if place is None:
            return False
        rows = self.span(place)
        indexed = rows[(self.rows.flags[rows] & INDEXED) != 0][:STEP_ROWS]
        if len(indexed):
            self.table.clear(self._slots_of(indexed))
            self._unmark(indexed)
        if len(indexed) == STEP_ROWS:
            return True
        self.rows.free(int(self.packs.first_row[place]), int(self.packs.count[place]))
        self.packs.remove(pack_id)
        return False

    def _slots_of(self, rows: I64) -> I64:
        """The slots of rows that are in the index, in the order of `rows`."""
        index, slots = self.table.candidates(hash_keys(self.rows.keys[rows]))
        own = self.table.slots[slots] == rows[index]
        result = np.full(len(rows), -1, np.int64)
        result[index[own]] = slots[own]
        return result

    def compact_step(self) -> None:
        """Move some rows down into holes."""
        self.rows.compact_step(self._end_of_pack, self._moved)

    def _end_of_pack(self, place: int) -> int:
        return int(self.packs.first_row[place]) + int(self.packs.count[place])

    def _moved(self, rows: I64, to: int) -> None:
        indexed = np.flatnonzero(self.rows.flags[rows] & INDEXED)
        self.table.slots[self._slots_of(rows[indexed])] = to + indexed
        places, first = np.unique(self.rows.packs[rows], return_index=True)
        self.packs.first_row[places] = to + first

    # -- hiding ------------------------------------------------------------------------------

    def set_hidden(self, pack_id: int, key: bytes | None, hidden: bool) -> int:
        """Hide or show a pack's row for `key`, or all its rows; how many indexed ones changed."""
        place = self.packs.place(pack_id)
        if place is None:
            return 0
        rows = self.span(place)
        if key is not None:
            rows = rows[(self.rows.keys[rows] == words(key)[0]).all(axis=1)]
        rows = rows[((self.rows.flags[rows] & HIDDEN) != 0) != hidden]
        self.rows.flags[rows] ^= HIDDEN
        changed = int(np.count_nonzero(self.rows.flags[rows] & INDEXED))
        self.hidden += changed if hidden else -changed
        return changed
