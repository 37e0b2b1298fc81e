"""The ledger: what every journal and snapshot said, merged into one view of the namespace.

Pure state. It knows packs (committed, dropped, gone), writers (how far read, when last heard of)
and the bytes they stand for, and keeps the catalog's index in step; it never touches a file and
reads no clock: the time comes in as an argument, on this process's own monotonic clock.

Merging is order-free: a pack's three facts (committed, dropped, gone) only ever become true, so
journals and snapshots may be read in any order, any number of times, and every process that has
read the same records holds the same view (I4). A drop kills a name for ever, also when it is read
before the commit it refers to (I1, I5). A writer is dead when this observer saw no change for a
lease on its own clock; no clock of another machine is consulted (I3).

Thread-safe: one lock, held around arithmetic only. Past 400 lines because all of it is one view
under that lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from sharedfs_backend.catalog import Catalog
from sharedfs_backend.facts import BytesKnown, Changes, Pack, WriterView
from sharedfs_backend.indexing import PackIndex
from sharedfs_backend.layout import (
    Beat,
    Begin,
    Commit,
    Coverage,
    Drop,
    End,
    EntryTable,
    Gone,
    LayoutDescriptor,
    PackCommit,
    PackName,
    PackRows,
    PackState,
    Record,
    Seal,
    Snapshot,
    Touch,
)
from sharedfs_backend.rules import Rules

Entry = tuple[int, Sequence[Record]]
"""A journal entry: the offset after it, and its records."""


class Ledger:
    """See the module. Public methods take the lock themselves."""

    def __init__(self, catalog: Catalog, seal: Seal, rules: Rules, lease_seconds: float) -> None:
        self.catalog = catalog
        self.lock = threading.RLock()
        self._rules = rules
        self._lease_seconds = lease_seconds
        self._index = PackIndex(catalog, seal)
        self._packs: dict[PackName, Pack] = {}
        self._writers: dict[str, WriterView] = {}
        self._own: set[str] = set()
        self._current: str | None = None
        self._bytes = BytesKnown()
        self._orphans: dict[PackName, int] = {}
        self._pending: dict[PackName, Pack] = {}  # dropped, not gone
        self._snapshot_sizes: dict[str, int] = {}

    # -- reading records ---------------------------------------------------------------------

    def apply(
        self, writer: str, next_offset: int, records: Sequence[Record], now: float
    ) -> Changes:
        """Merge one journal entry; returns what it newly brought. Idempotent."""
        return self.apply_all(writer, [(next_offset, records)], now)

    def apply_all(self, writer: str, entries: Iterable[Entry], now: float) -> Changes:
        """Merge journal entries, in order; the packs they commit enter the catalog together."""
        changes = Changes()
        fresh: list[tuple[Pack, EntryTable]] = []
        with self.lock:
            view = self._view(writer, now)
            for next_offset, records in entries:
                if next_offset > view.covered:
                    self._grow(view, next_offset)
                    view.covered = next_offset
                    view.last_change = now
                for record in records:
                    self._apply_one(view, record, now, changes, fresh)
            fresh = [(pack, table) for pack, table in fresh if pack.live and pack.pack_id < 0]
            if fresh:
                self._index.add_commits(fresh)
        changes.committed += [pack for pack, _ in fresh]
        return changes

    def _apply_one(
        self,
        view: WriterView,
        record: Record,
        now: float,
        changes: Changes,
        fresh: list[tuple[Pack, EntryTable]],
    ) -> None:
        match record:
            case Commit(packs=packs):
                for commit in packs:
                    pack = self._commit(commit, view.writer, now)
                    if pack is not None:
                        fresh.append((pack, commit.entries))
            case Drop(names=names):
                changes.dropped += [p for name in names if (p := self._drop(name, now)) is not None]
            case Gone(names=names):
                changes.dropped += [p for name in names if (p := self._gone(name, now)) is not None]
            case Touch(ages=ages):
                for name, age_seconds in ages:
                    self._touch(name, now - age_seconds)
            case End():
                view.ended = True
            case Begin() | Beat():
                pass

    def _view(self, writer: str, now: float) -> WriterView:
        view = self._writers.get(writer)
        if view is None:
            view = WriterView(writer, first_seen=now, last_change=now, last_polled=now)
            self._writers[writer] = view
        return view

    def _pack(self, name: PackName, now: float) -> Pack:
        pack = self._packs.get(name)
        if pack is None:
            pack = Pack(name, first_seen=now)
            self._packs[name] = pack
            pack.total_bytes = self._orphans.pop(name, 0)
            self._bytes.orphan_bytes -= pack.total_bytes
        return pack

    def _commit(self, commit: PackCommit, writer: str, now: float) -> Pack | None:
        pack = self._pack(commit.name, now)
        if writer and writer not in pack.committers:
            pack.committers = (*pack.committers, writer)
        revivable = not self._rules.drop_is_for_ever and not pack.gone
        if pack.committed and not (revivable and pack.dropped):
            return None
        self._recount_dropped(pack, -1)
        pack.committed = True
        pack.realm, pack.layout, pack.rank = commit.realm, commit.layout, commit.rank
        pack.version, pack.total_bytes = commit.version, commit.total_bytes
        if revivable:
            pack.dropped = False
            self._pending.pop(pack.name, None)
        if pack.gone:
            return None
        if pack.dropped:
            self._bytes.dropped_bytes += pack.total_bytes
            return None
        self._bytes.live_bytes += pack.total_bytes
        return pack

    def _drop(self, name: PackName, now: float) -> Pack | None:
        pack = self._pack(name, now)
        if pack.dropped or pack.gone:
            return None
        pack.dropped = True
        pack.dropped_seen = now
        self._pending[name] = pack
        if pack.committed:
            self._bytes.live_bytes -= pack.total_bytes
        self._bytes.dropped_bytes += pack.total_bytes
        self._index.remove(pack)
        return pack

    def _recount_dropped(self, pack: Pack, sign: int) -> None:
        """Take out, or put back, what a pack counts as that was dropped before it was committed:
        until its commit is read, no record says how long its file is."""
        if pack.dropped and not pack.gone and not pack.committed:
            self._bytes.dropped_bytes += sign * pack.total_bytes

    def _gone(self, name: PackName, now: float) -> Pack | None:
        """The pack, if it was not known as dropped."""
        pack = self._pack(name, now)
        if pack.gone:
            return None
        is_news = not pack.dropped
        if pack.dropped:
            self._bytes.dropped_bytes -= pack.total_bytes
        elif pack.committed:
            self._bytes.live_bytes -= pack.total_bytes
        if is_news:
            pack.dropped_seen = now
        pack.dropped = pack.gone = True
        self._pending.pop(name, None)
        self._index.remove(pack)
        return pack if is_news else None

    def _touch(self, name: PackName, at: float) -> None:
        pack = self._packs.get(name)
        if pack is not None and pack.pack_id >= 0:
            self.catalog.touch_pack(pack.pack_id, at)

    # -- reading snapshots -------------------------------------------------------------------

    def adopt(self, snapshot: Snapshot, now: float) -> Changes:
        """Merge a verified snapshot. Never revives what is known as dropped; idempotent."""
        changes = Changes()
        rows = snapshot.packs
        fresh: list[tuple[int, Pack]] = []
        with self.lock:
            for row, name in enumerate(rows.names()):
                pack = self._packs.get(name)
                state = int(rows.states[row])
                if pack is None or not pack.committed:
                    pack = self._adopt_facts(rows, row, name, now)
                    if pack.live and state == PackState.LIVE:
                        fresh.append((row, pack))
                pack.snapshotted = True
                if state == PackState.LIVE and not self._rules.adopting_never_revives:
                    self._revive(rows, row, pack, fresh)
                if state != PackState.LIVE:
                    dropped = self._drop(name, now)
                    if dropped is not None:
                        changes.dropped.append(dropped)
                if state == PackState.GONE:
                    self._gone(name, now)
            self._index.add_rows(rows, fresh, now)
            for writer, coverage in snapshot.coverage.items():
                self._cover(writer, coverage, now)
        changes.committed += [pack for _, pack in fresh]
        return changes

    def _adopt_facts(self, rows: PackRows, row: int, name: PackName, now: float) -> Pack:
        pack = self._pack(name, now)
        realm, layout = int(rows.realm_index[row]), int(rows.layout_index[row])
        self._recount_dropped(pack, -1)
        pack.total_bytes = max(pack.total_bytes, int(rows.total_bytes[row]))
        if realm < 0 or layout < 0:
            self._recount_dropped(pack, +1)
            return pack
        pack.realm, pack.layout = rows.realms[realm], rows.layouts[layout]
        pack.rank, pack.version = int(rows.ranks[row]), int(rows.versions[row])
        pack.committed = True
        if not pack.gone:
            if pack.dropped:
                self._bytes.dropped_bytes += pack.total_bytes
            else:
                self._bytes.live_bytes += pack.total_bytes
        return pack

    def _revive(self, rows: PackRows, row: int, pack: Pack, fresh: list[tuple[int, Pack]]) -> None:
        """Only with the rule `adopting_never_revives` off: what that rule prevents."""
        if pack.dropped and not pack.gone:
            self._bytes.dropped_bytes -= pack.total_bytes
            self._bytes.live_bytes += pack.total_bytes
            pack.dropped = False
            self._pending.pop(pack.name, None)
            fresh.append((row, pack))

    def _cover(self, writer: str, coverage: Coverage, now: float) -> None:
        view = self._view(writer, now)
        if coverage.offset > view.covered:
            self._grow(view, coverage.offset)
            view.covered = coverage.offset
        view.ended = view.ended or coverage.ended

    def _grow(self, view: WriterView, nbytes: int) -> None:
        """Its journal is at least so long, readable or not."""
        if nbytes > view.nbytes:
            if not view.vanished:
                self._bytes.journal_bytes += nbytes - view.nbytes
            view.nbytes = nbytes

    # -- writers -----------------------------------------------------------------------------

    def own(self, writer: str, now: float) -> None:
        """This process writes under `writer` from now on (it may have had others before)."""
        with self.lock:
            self._own.add(writer)
            self._current = writer
            self._view(writer, now)

    def is_current(self, writer: str) -> bool:
        """This process writes under it now. An id it gave up is read on like anybody else's:
        an append that hung may still come."""
        return writer == self._current

    def is_own(self, writer: str) -> bool:
        return writer in self._own

    def see_journals(self, writers: Iterable[str], now: float) -> None:
        """Journals found by a listing. One that was gone is there: it was only not seen."""
        with self.lock:
            for writer in writers:
                view = self._view(writer, now)
                if view.vanished:
                    view.vanished = False
                    view.last_change = view.last_polled = now
                    self._bytes.journal_bytes += view.nbytes

    def writer(self, writer: str) -> WriterView | None:
        return self._writers.get(writer)

    def writers(self) -> list[WriterView]:
        with self.lock:
            return list(self._writers.values())

    def is_dead(self, writer: str) -> bool:
        """Ended, retired, unknown, or silent for a lease as seen from here."""
        if writer == self._current:
            return False
        view = self._writers.get(writer)
        if view is None or view.ended or view.vanished:
            return True
        return view.last_polled - view.last_change >= self._lease_seconds

    def polled(self, writer: str, begun: float, nbytes: int = 0) -> None:
        """Its journal was read to its end at `nbytes`; damaged or not, they count. `begun`: when
        it was opened; what came later this read need not have seen."""
        with self.lock:
            view = self._writers.get(writer)
            if view is not None:
                view.last_polled = begun
                self._grow(view, nbytes)

    def live_writers(self, current: str | None) -> list[str]:
        """Ids that may still write, lowest first; `current` is this process's own, if any."""
        with self.lock:
            return sorted(
                writer
                for writer in self._writers
                if writer == current or not (writer in self._own or self.is_dead(writer))
            )

    def unreadable_writers(self) -> list[str]:
        """Those whose journals say things that only a later version understands."""
        with self.lock:
            return [w for w, view in self._writers.items() if view.unreadable and not view.vanished]

    def forget_vanished(self, is_covered: Callable[[str], bool]) -> None:
        """Forget writers whose journals are gone and that no snapshot speaks of, and ids this
        process gave up that nothing speaks of any more (I9)."""
        with self.lock:
            for writer, view in list(self._writers.items()):
                if view.vanished and writer != self._current and not is_covered(writer):
                    del self._writers[writer]
            given_up = self._own - self._writers.keys() - {self._current}
            known = [*self._packs.values()] if given_up else []
            orphans = [*self._orphans]
        for pack in known:
            given_up.discard(pack.name.writer)
            given_up.difference_update(pack.committers)
        given_up.difference_update(name.writer for name in orphans)
        with self.lock:
            self._own -= given_up

    def unsettled_writers(self, settled: set[str]) -> int:
        """Writers that may have bytes in flight nobody has counted: not ended, not retired, and
        not among the dead that are known to be `settled`."""
        with self.lock:
            return sum(
                not (view.ended or view.vanished or writer in settled)
                for writer, view in self._writers.items()
            )

    def retire(self, writer: str) -> None:
        """Its journal is no more; all it said is in a snapshot."""
        with self.lock:
            view = self._writers.get(writer)
            if view is not None and not view.vanished:
                view.vanished = True
                self._bytes.journal_bytes -= view.nbytes

    def forget_writer(self, writer: str) -> None:
        with self.lock:
            self._writers.pop(writer, None)
            self._own.discard(writer)

    # -- packs -------------------------------------------------------------------------------

    def pack(self, name: PackName) -> Pack | None:
        return self._packs.get(name)

    def by_id(self, pack_id: int) -> Pack | None:
        return self._index.by_id(pack_id)

    def fingerprint(self, layout: LayoutDescriptor) -> bytes:
        """The layout's fingerprint, remembered."""
        return self._index.fingerprint(layout)

    def layout_of_space(self, space: int) -> LayoutDescriptor | None:
        return self._index.layout_of_space(space)

    @property
    def pack_count(self) -> int:
        """Packs and tombstones."""
        return len(self._packs)

    @property
    def writer_count(self) -> int:
        """Writers, and ids this process gave up."""
        with self.lock:
            return len(self._own.union(self._writers))

    def packs(self) -> list[Pack]:
        with self.lock:
            return list(self._packs.values())

    def pending(self) -> list[Pack]:
        """Packs dropped and not gone: files that somebody has to unlink."""
        with self.lock:
            return list(self._pending.values())

    def condemn(self, name: PackName, key: bytes | None) -> None:
        """Take a chunk, or a whole pack, out of this process's index; storable again."""
        with self.lock:
            pack = self._packs.get(name)
            if pack is not None and pack.pack_id >= 0:
                self.catalog.hide(pack.pack_id, key)

    def quarantine(self, realm: bytes, rank: int) -> None:
        """Stop finding anything of this realm and rank, now and later (failed audit, I8)."""
        with self.lock:
            self._index.quarantine(realm, rank)

    def is_quarantined(self, realm: bytes, rank: int) -> bool:
        return self._index.is_quarantined(realm, rank)

    def forget_tombstones(self, names: Iterable[PackName]) -> None:
        with self.lock:
            for name in names:
                self._packs.pop(name, None)

    # -- bytes -------------------------------------------------------------------------------

    def usage(self) -> BytesKnown:
        with self.lock:
            known = self._bytes
            return BytesKnown(
                known.live_bytes,
                known.dropped_bytes,
                known.orphan_bytes,
                known.journal_bytes,
                sum(self._snapshot_sizes.values()),
            )

    def see_orphan(self, name: PackName, total_bytes: int) -> None:
        """A file below packs/ that no record names yet, or only a drop; it counts towards usage."""
        with self.lock:
            pack = self._packs.get(name)
            if pack is not None and not pack.committed:
                self._recount_dropped(pack, -1)
                pack.total_bytes = total_bytes
                self._recount_dropped(pack, +1)
            elif pack is None and name not in self._orphans:
                self._orphans[name] = total_bytes
                self._bytes.orphan_bytes += total_bytes

    def orphan_gone(self, name: PackName) -> None:
        with self.lock:
            self._bytes.orphan_bytes -= self._orphans.pop(name, 0)

    def orphans(self) -> list[PackName]:
        with self.lock:
            return list(self._orphans)

    def see_snapshots(self, sizes: dict[str, int]) -> None:
        """All snapshot files that exist, with their sizes in bytes."""
        with self.lock:
            self._snapshot_sizes = dict(sizes)
