"""Catalog: the in-memory map from chunk keys to the packs that hold them, for all realms.

Entries are found by (chunk key, space); a space is a realm and a layout fingerprint, as a small
number. A lookup that does not know the layout hits only where exactly one space of its realm has
the key: what a load would refuse, a lookup does not report (I2). Which of several packs is chosen
is told in `entries`.

It never touches a file and reads no clock. Memory is bounded by `chunks_max`: packs beyond it are
left out and counted (I9). Any thread may call anything; the lock is held around arithmetic only,
and work on many rows is cut into steps between which waiting lookups get their turn (I6).

Hazard: a chunk whose chosen pack is removed is not looked for in other packs; a re-store heals it.
One class and one long module, because everything in it is held together by one lock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharedfs_backend.catalog_values import (
    ANY_SPACE,
    I32,
    NO_SPACE,
    Found,
    Located,
    PackBatch,
    PackFacts,
    Page,
    gather,
    row_numbers,
    words,
)
from sharedfs_backend.entries import Entries
from sharedfs_backend.fairlock import FairLock
from sharedfs_backend.keytable import Mask, hash_keys
from sharedfs_backend.layout import EntryTable
from sharedfs_backend.packtable import I64, U64, UNKNOWN
from sharedfs_backend.rows import HIDDEN, INDEXED, LENGTH_MAX, STEP_ROWS
from sharedfs_backend.searching import search

__all__ = [
    "Catalog",
    "Found",
    "Located",
    "PackBatch",
    "PackFacts",
    "Page",
    "ANY_SPACE",
    "NO_SPACE",
]

SPACES_MAX = 65536
"""Far more realms and layouts than a namespace ever has; reaching it refuses packs."""
_INDEX_BITS = 20  # of a paging cursor: more than the rows of any pack


class Catalog:
    """See the module. Pack ids are the caller's: not negative, and never used twice."""

    def __init__(self, chunks_max: int) -> None:
        self.chunks_max = chunks_max
        self.refused_chunks = 0
        """Chunks of packs left out because a limit was reached."""
        self.compaction_steps = 0
        self.rebuilds = 0
        self._lock = FairLock()
        self._entries = Entries(chunks_max)
        self._rows = self._entries.rows
        self._packs = self._entries.packs
        self._space_of: dict[tuple[bytes, bytes], int] = {}
        self._realm_of: dict[bytes, int] = {}
        self._realm_of_space: I32 = np.zeros(0, np.int32)
        self._search = search(self._entries.table, self._rows, self._packs)

    def __len__(self) -> int:
        """Chunks that a lookup can find."""
        return len(self._entries.table) - self._entries.hidden

    @property
    def pack_count(self) -> int:
        return len(self._packs)

    @property
    def row_count(self) -> int:
        """Chunks of all packs, also those found in another pack."""
        return len(self._rows)

    def memory_bytes(self) -> int:
        """Resident bytes, as far as each structure has written to its memory."""
        parts = (self._rows, self._entries.table, self._packs)
        return sum(part.resident_bytes() for part in parts)

    # -- spaces ------------------------------------------------------------------------------

    def space(self, realm: bytes, fingerprint: bytes) -> int:
        """The number of this space, given on first use. NO_SPACE once there are too many."""
        known = self._space_of.get((realm, fingerprint))
        if known is not None:
            return known
        with self._lock:
            if len(self._space_of) >= SPACES_MAX:
                return NO_SPACE
            number = self._space_of.get((realm, fingerprint))
            if number is None:
                number = len(self._space_of)
                realm_number = self._realm_of.setdefault(realm, len(self._realm_of))
                self._realm_of_space = np.append(self._realm_of_space, np.int32(realm_number))
                self._space_of[realm, fingerprint] = number
            return number

    def known_space(self, realm: bytes, fingerprint: bytes) -> int | None:
        return self._space_of.get((realm, fingerprint))

    def spaces(self) -> list[tuple[bytes, bytes]]:
        """(realm, fingerprint) of each space; its index is its number."""
        with self._lock:
            return list(self._space_of)

    # -- finding -----------------------------------------------------------------------------

    def find(
        self, keys: bytes, spaces: int | I32, *, realm: bytes = b"", now: float = 0.0
    ) -> Found:
        """Which pack holds each of the joined 16-byte keys, in its space.

        `spaces` is one number for all or one for each key; ANY_SPACE asks all of `realm`. Packs
        suspended beyond `now` and hidden entries are misses.
        """
        with self._lock:
            _, numbers, found_spaces = self._visible(keys, spaces, realm, now)
        return Found(numbers, found_spaces)

    def locate(
        self, keys: bytes, spaces: int | I32, *, realm: bytes = b"", now: float = 0.0
    ) -> Located:
        """As `find`, with all that a load needs."""
        with self._lock:
            rows, numbers, found_spaces = self._visible(keys, spaces, realm, now)
            data = self._rows
            return Located(
                numbers, found_spaces, data.offsets[rows], data.lengths[rows], data.checksums[rows]
            )

    def highest_versions(self, keys: bytes, space: int) -> U64:
        """The version known of each key, 0 where none is; hidden and suspended ones count."""
        asked = words(keys)
        with self._lock:
            index, _, rows = self._entries.matching(asked, hash_keys(asked))
            places = self._rows.packs[rows]
            here = self._packs.space[places] == space
            result = np.zeros(len(asked), np.uint64)
            result[index[here]] = self._packs.version[places[here]]
            return result

    def _visible(
        self, joined: bytes, spaces: int | I32, realm: bytes, now: float
    ) -> tuple[I64, I64, I32]:
        """(rows, pack ids, spaces), for each key; pack id -1 (and row 0) for a miss."""
        if self._search is not None:
            number = self._realm_of.get(realm, -1)
            return self._search(joined, spaces, number, self._realm_of_space, now)
        keys = words(joined)
        index, _, rows = self._entries.matching(keys, hash_keys(keys))
        seen = (self._rows.flags[rows] & HIDDEN) == 0
        places = self._rows.packs[rows]
        held = self._packs.space[places]
        wanted = spaces if isinstance(spaces, int) else spaces[index]
        fits = seen & (held == wanted)
        free: Mask = np.equal(wanted, ANY_SPACE)
        if free.any():
            fits |= self._only_one(index, seen & free, held, realm)
        # After the choice: a suspended pack is still the one a load would have to read.
        fits &= self._packs.suspended_until[places] <= now
        count = len(keys)
        index = index[fits]
        result, numbers = np.zeros(count, np.int64), np.full(count, UNKNOWN, np.int64)
        found_spaces = np.full(count, NO_SPACE, np.int32)
        result[index] = rows[fits]
        numbers[index] = self._packs.numbers[places[fits]]
        found_spaces[index] = held[fits]
        return result, numbers, found_spaces

    def _only_one(self, index: I64, asked: Mask, held: I32, realm: bytes) -> Mask:
        """Entries that are the only visible one of their key in this realm."""
        number = self._realm_of.get(realm, -1)
        here = asked & (self._realm_of_space[held] == number)
        copies = np.bincount(index[here], minlength=int(index.max(initial=-1)) + 1)
        only: Mask = here & (copies[index] == 1)
        return only

    # -- adding ------------------------------------------------------------------------------

    def add_pack(
        self,
        pack_id: int,
        sort_key: bytes,
        space: int,
        version: int,
        entries: EntryTable,
        *,
        now: float,
    ) -> bool:
        """Enter one pack. False when a limit was reached: left out and counted."""
        times = np.array([now])
        batch = PackBatch(
            pack_ids=np.array([pack_id]),
            sort_keys=sort_key,
            spaces=np.array([space], np.int32),
            versions=np.array([version], np.uint64),
            first_rows=np.zeros(1, np.int64),
            counts=np.array([len(entries)]),
            entries=entries,
            first_seen=times,
            last_lookup=times,
        )
        return bool(self.add_packs(batch)[0])

    def add_packs(self, batch: PackBatch) -> Mask:
        """Enter many packs, in steps; False for those left out (and counted)."""
        added = np.zeros(len(batch.pack_ids), np.bool_)
        ends = batch.counts.cumsum()
        start = 0
        while start < len(added):
            before = int(ends[start] - batch.counts[start])
            stop = max(start + 1, int(np.searchsorted(ends, before + STEP_ROWS, "right")))
            if self._add_some(batch, slice(start, stop), int(ends[-1]) - before):
                added[start:stop] = True
            else:  # not all of them: try each
                for at in range(start, stop):
                    added[at] = self._add_some(batch, slice(at, at + 1), 0)
                    self.refused_chunks += 0 if added[at] else int(batch.counts[at])
            start = stop
        return added

    def _add_some(self, batch: PackBatch, chosen: slice, expected: int) -> bool:
        """Enter a few packs; False when they cannot all be. `expected` rows come with them."""
        rows = row_numbers(batch.first_rows[chosen], batch.counts[chosen])
        entries = gather(batch.entries, rows)
        if int(entries.length_array().max(initial=0)) > LENGTH_MAX:
            return False
        if (batch.spaces[chosen] < 0).any():
            return False
        hashes = hash_keys(words(entries.keys))
        while True:
            with self._lock:
                if not self._entries.has_room(len(rows), chosen.stop - chosen.start):
                    return False
                if self._rows.room() < len(rows):
                    self._entries.compact_step()
                    self.compaction_steps += 1
                elif self._entries.relieve(hashes, expected):
                    self.rebuilds += 1
                else:
                    self._entries.enter(batch, chosen, entries, hashes)
                    return True

    # -- removing ----------------------------------------------------------------------------

    def remove_pack(self, pack_id: int) -> None:
        """Forget a pack and its entries. Unknown ids are fine."""
        more = True
        while more:
            with self._lock:
                more = self._entries.remove_step(pack_id)
        while self._rows.wants_compaction():
            with self._lock:
                if self._rows.wants_compaction():
                    self._entries.compact_step()
                    self.compaction_steps += 1

    # -- condemned and suspended -------------------------------------------------------------

    def hide(self, pack_id: int, key: bytes | None) -> int:
        """Stop finding a chunk, or all of a pack, here; it can be stored again. Count hidden."""
        with self._lock:
            return self._entries.set_hidden(pack_id, key, True)

    def restore(self, pack_id: int, key: bytes | None) -> int:
        """Undo `hide`. Count shown again."""
        with self._lock:
            return self._entries.set_hidden(pack_id, key, False)

    def suspend(self, pack_id: int, until: float) -> None:
        """Miss this pack until then (back-off); its entries stay chosen."""
        with self._lock:
            place = self._packs.place(pack_id)
            if place is not None:
                self._packs.suspended_until[place] = until

    # -- recency -----------------------------------------------------------------------------

    def touch(self, pack_ids: Sequence[int], now: float) -> None:
        """Note a lookup that found these packs, in prefix order; the first place of each counts."""
        with self._lock:
            places = self._packs.places(dict.fromkeys(pack_ids))
            if places:
                self._packs.last_lookup[places] = now
                self._packs.chain(places)

    def touch_pack(self, pack_id: int, at: float) -> None:
        """Another process found this pack at that time of ours; the latest counts."""
        with self._lock:
            place = self._packs.place(pack_id)
            if place is not None:
                self._packs.last_lookup[place] = max(at, float(self._packs.last_lookup[place]))

    def last_lookup_of(self, pack_id: int) -> float:
        """Time of the last lookup known, -inf for a pack that is not here."""
        with self._lock:
            place = self._packs.place(pack_id)
            return -np.inf if place is None else float(self._packs.last_lookup[place])

    def facts(self) -> PackFacts:
        """Copies of the columns that retention plans with."""
        with self._lock:
            packs = self._packs
            at = packs.places_known()
            return PackFacts(
                packs.numbers[at],
                packs.parent[at],
                packs.count[at].astype(np.int64),
                packs.chosen[at].astype(np.int64),
                packs.first_seen[at],
                packs.last_lookup[at],
            )

    # -- reading it whole --------------------------------------------------------------------

    def entries_of(self, pack_id: int) -> EntryTable | None:
        """All chunks of a pack in its order, also those found elsewhere or hidden."""
        with self._lock:
            place = self._packs.place(pack_id)
            if place is None:
                return None
            first = int(self._packs.first_row[place])
            return self._rows.table(slice(first, first + int(self._packs.count[place])))

    def page(self, cursor: int, limit: int, *, realm: bytes | None = None) -> Page:
        """Up to `limit` findable entries from `cursor` on (0 begins), by pack id.

        An entry there all the while is listed exactly once, whatever else comes and goes.
        """
        start_id, skip = cursor >> _INDEX_BITS, cursor & ((1 << _INDEX_BITS) - 1)
        with self._lock:
            numbers = self._packs.numbers_known()
        entries: list[tuple[int, bytes, int]] = []
        for number in np.sort(numbers[numbers >= start_id]).tolist():
            for index, key, length in self._listed(
                number, skip if number == start_id else 0, realm
            ):
                if len(entries) == limit:
                    return Page(tuple(entries), (number << _INDEX_BITS) | index)
                entries.append((number, key, length))
        return Page(tuple(entries), None)

    def _listed(self, number: int, skip: int, realm: bytes | None) -> list[tuple[int, bytes, int]]:
        """(index, key, length) of a pack's findable entries from index `skip` on."""
        with self._lock:
            place = self._packs.place(number)
            if place is None:
                return []
            own_realm = self._realm_of_space[self._packs.space[place]]
            if realm is not None and own_realm != self._realm_of.get(realm, -1):
                return []
            span = self._entries.span(place)
            shown = np.flatnonzero(self._rows.flags[span[skip:]] == INDEXED) + skip
            keys = self._rows.keys[span[shown]].tobytes()
            lengths = self._rows.lengths[span[shown]].tolist()
        return [
            (index, keys[16 * at : 16 * at + 16], lengths[at])
            for at, index in enumerate(shown.tolist())
        ]
