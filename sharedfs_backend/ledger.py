"""The ledger: what every journal and snapshot said, merged into one view of the namespace.

Pure state. It knows packs (committed, dropped, gone), writers (how far read, when last heard of)
and the bytes they stand for, and keeps the catalog's index in step; it never touches a file and
reads no clock: the time comes in as an argument, on this process's own monotonic clock.

Merging is order-free: a pack's three facts (committed, dropped, gone) only ever become true, so
journals and snapshots may be read in any order, any number of times, and every process that has
read the same records holds the same view (I4). A drop kills a name for ever, also when it is read
before the commit it refers to (I1, I5). A writer is dead when this observer saw no change for a
lease on its own clock; no clock of another machine is consulted (I3).

Thread-safe: one lock, held around arithmetic only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from sharedfs_backend.catalog import Catalog, PackBatch
from sharedfs_backend.layout import (
    Beat,
    Begin,
    Commit,
    Coverage,
    Drop,
    End,
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

LAYOUTS_MAX = 65536
"""Fingerprints remembered; more layouts than any namespace has."""


@dataclass(slots=True, eq=False)
class Pack:
    """One pack's facts. `pack_id` is its number in the catalog, -1 when it is not there."""

    name: PackName
    pack_id: int = -1
    realm: bytes = b""
    layout: LayoutDescriptor | None = None
    rank: int = 0
    version: int = 0
    total_bytes: int = 0
    committed: bool = False
    dropped: bool = False
    gone: bool = False
    snapshotted: bool = False
    first_seen: float = 0.0
    dropped_seen: float = 0.0
    committers: tuple[str, ...] = ()

    @property
    def live(self) -> bool:
        return self.committed and not self.dropped and not self.gone


@dataclass(slots=True)
class WriterView:
    """How far one journal was read, and when it was last seen to change."""

    writer: str
    covered: int = 0
    ended: bool = False
    vanished: bool = False
    unreadable: bool = False
    first_seen: float = 0.0
    last_change: float = 0.0
    last_polled: float = 0.0
    """When its journal was last read without an error: silence is only what was listened to."""


@dataclass(slots=True)
class Usage:
    """Bytes below the root as far as this process knows."""

    live_bytes: int = 0
    dropped_bytes: int = 0
    orphan_bytes: int = 0
    journal_bytes: int = 0
    snapshot_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return (
            self.live_bytes
            + self.dropped_bytes
            + self.orphan_bytes
            + self.journal_bytes
            + self.snapshot_bytes
        )


@dataclass(slots=True)
class Changes:
    """What applying records newly brought: for closing descriptors and for the audit."""

    committed: list[Pack] = field(default_factory=list)
    dropped: list[Pack] = field(default_factory=list)


class Ledger:
    """See the module. Public methods take the lock themselves."""

    def __init__(self, catalog: Catalog, seal: Seal, rules: Rules, lease_seconds: float) -> None:
        self.catalog = catalog
        self.lock = threading.RLock()
        self._seal = seal
        self._rules = rules
        self._lease_seconds = lease_seconds
        self._packs: dict[PackName, Pack] = {}
        self._by_id: dict[int, Pack] = {}
        self._ids_made = 0
        self._writers: dict[str, WriterView] = {}
        self._own: set[str] = set()
        self._layouts: dict[int, LayoutDescriptor] = {}
        self._fingerprints: dict[LayoutDescriptor, bytes] = {}
        self._quarantined: set[tuple[bytes, int]] = set()
        self._usage = Usage()
        self._orphans: dict[PackName, int] = {}
        self._snapshot_sizes: dict[str, int] = {}

    # -- reading records ---------------------------------------------------------------------

    def apply(
        self, writer: str, next_offset: int, records: Iterable[Record], now: float
    ) -> Changes:
        """Merge one journal entry; returns what it newly brought. Idempotent."""
        changes = Changes()
        with self.lock:
            view = self._view(writer, now)
            if next_offset > view.covered:
                self._usage.journal_bytes += next_offset - view.covered
                view.covered = next_offset
                view.last_change = now
            for record in records:
                self._apply_one(writer, view, record, now, changes)
        return changes

    def _apply_one(
        self, writer: str, view: WriterView, record: Record, now: float, changes: Changes
    ) -> None:
        match record:
            case Commit(packs=packs):
                for commit in packs:
                    pack = self._commit(commit, writer, now)
                    if pack is not None:
                        changes.committed.append(pack)
            case Drop(names=names):
                for name in names:
                    pack = self._drop(name, now)
                    if pack is not None:
                        changes.dropped.append(pack)
            case Gone(names=names):
                for name in names:
                    self._gone(name, now)
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
            self._usage.orphan_bytes -= self._orphans.pop(name, 0)
        return pack

    def _commit(self, commit: PackCommit, writer: str, now: float) -> Pack | None:
        pack = self._pack(commit.name, now)
        if writer and writer not in pack.committers:
            pack.committers = (*pack.committers, writer)
        revivable = not self._rules.drop_is_for_ever and not pack.gone
        if pack.committed and not (revivable and pack.dropped):
            return None
        pack.committed = True
        pack.realm, pack.layout, pack.rank = commit.realm, commit.layout, commit.rank
        pack.version, pack.total_bytes = commit.version, commit.total_bytes
        if revivable:
            pack.dropped = False
        if pack.gone:
            return None
        if pack.dropped:
            self._usage.dropped_bytes += pack.total_bytes
            return None
        self._usage.live_bytes += pack.total_bytes
        if (pack.realm, pack.rank) not in self._quarantined:
            self._index(pack, commit)
        return pack

    def _index(self, pack: Pack, commit: PackCommit) -> None:
        space = self._space(pack)
        pack_id = self._ids_made
        added = self.catalog.add_pack(
            pack_id, sort_key(pack.name), space, pack.version, commit.entries, now=pack.first_seen
        )
        if added:
            self._ids_made += 1
            pack.pack_id = pack_id
            self._by_id[pack_id] = pack

    def _space(self, pack: Pack) -> int:
        assert pack.layout is not None
        space = self.catalog.space(pack.realm, self.fingerprint(pack.layout))
        self._layouts[space] = pack.layout
        return space

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

    def _unindex(self, pack: Pack) -> None:
        if pack.pack_id >= 0:
            self.catalog.remove_pack(pack.pack_id)
            del self._by_id[pack.pack_id]
            pack.pack_id = -1

    def _drop(self, name: PackName, now: float) -> Pack | None:
        pack = self._pack(name, now)
        if pack.dropped or pack.gone:
            return None
        pack.dropped = True
        pack.dropped_seen = now
        if pack.committed:
            self._usage.live_bytes -= pack.total_bytes
            self._usage.dropped_bytes += pack.total_bytes
        self._unindex(pack)
        return pack

    def _gone(self, name: PackName, now: float) -> None:
        pack = self._pack(name, now)
        if pack.gone:
            return
        if pack.committed and pack.dropped:
            self._usage.dropped_bytes -= pack.total_bytes
        elif pack.committed:
            self._usage.live_bytes -= pack.total_bytes
        pack.dropped = pack.gone = True
        self._unindex(pack)

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
            self._index_rows(rows, fresh, now)
            for writer, coverage in snapshot.coverage.items():
                self._cover(writer, coverage, now)
        changes.committed += [pack for _, pack in fresh]
        return changes

    def _adopt_facts(self, rows: PackRows, row: int, name: PackName, now: float) -> Pack:
        pack = self._pack(name, now)
        realm, layout = int(rows.realm_index[row]), int(rows.layout_index[row])
        pack.total_bytes = max(pack.total_bytes, int(rows.total_bytes[row]))
        if realm < 0 or layout < 0:
            return pack
        pack.realm, pack.layout = rows.realms[realm], rows.layouts[layout]
        pack.rank, pack.version = int(rows.ranks[row]), int(rows.versions[row])
        pack.committed = True
        if not pack.gone:
            if pack.dropped:
                self._usage.dropped_bytes += pack.total_bytes
            else:
                self._usage.live_bytes += pack.total_bytes
        return pack

    def _revive(self, rows: PackRows, row: int, pack: Pack, fresh: list[tuple[int, Pack]]) -> None:
        """Only with the rule `adopting_never_revives` off: what that rule prevents."""
        if pack.dropped and not pack.gone:
            self._usage.dropped_bytes -= pack.total_bytes
            self._usage.live_bytes += pack.total_bytes
            pack.dropped = False
            fresh.append((row, pack))

    def _index_rows(self, rows: PackRows, fresh: list[tuple[int, Pack]], now: float) -> None:
        wanted = [
            (row, pack) for row, pack in fresh if (pack.realm, pack.rank) not in self._quarantined
        ]
        if not wanted:
            return
        at = np.array([row for row, _ in wanted])
        touched = rows.touch_ms[at] / 1000.0
        ids = np.arange(self._ids_made, self._ids_made + len(wanted))
        self._ids_made += len(wanted)
        spaces = [self._space(pack) for _, pack in wanted]
        added = self.catalog.add_packs(
            PackBatch(
                pack_ids=ids,
                sort_keys=b"".join(sort_key(pack.name) for _, pack in wanted),
                spaces=np.array(spaces, np.int32),
                versions=rows.versions[at].astype(np.uint32),
                first_rows=rows.starts()[at],
                counts=rows.counts[at],
                entries=rows.entries,
                first_seen=np.full(len(wanted), now),
                last_lookup=now - np.where(touched < 0, rows.age_ms[at] / 1000.0, touched),
            )
        )
        for (_, pack), pack_id, is_added in zip(wanted, ids.tolist(), added.tolist(), strict=True):
            if is_added:
                pack.pack_id = pack_id
                self._by_id[pack_id] = pack

    def _cover(self, writer: str, coverage: Coverage, now: float) -> None:
        view = self._view(writer, now)
        if coverage.offset > view.covered:
            if not view.vanished:
                self._usage.journal_bytes += coverage.offset - view.covered
            view.covered = coverage.offset
        view.ended = view.ended or coverage.ended

    # -- writers -----------------------------------------------------------------------------

    def own(self, writer: str, now: float) -> None:
        """This process writes under `writer` from now on (it may have had others before)."""
        with self.lock:
            self._own.add(writer)
            self._view(writer, now)

    def is_own(self, writer: str) -> bool:
        return writer in self._own

    def see_journals(self, writers: Iterable[str], now: float) -> None:
        """Journals found by a listing."""
        with self.lock:
            for writer in writers:
                self._view(writer, now)

    def writer(self, writer: str) -> WriterView | None:
        return self._writers.get(writer)

    def writers(self) -> list[WriterView]:
        with self.lock:
            return list(self._writers.values())

    def is_dead(self, writer: str) -> bool:
        """Ended, retired, unknown, or silent for a lease as seen from here."""
        if writer in self._own:
            return False
        view = self._writers.get(writer)
        if view is None or view.ended or view.vanished:
            return True
        return view.last_polled - view.last_change >= self._lease_seconds

    def polled(self, writer: str, now: float) -> None:
        """Its journal was just read to its end."""
        with self.lock:
            view = self._writers.get(writer)
            if view is not None:
                view.last_polled = now

    def live_writers(self, current: str | None) -> list[str]:
        """Ids that may still write, lowest first; `current` is this process's own, if any."""
        with self.lock:
            return sorted(
                writer
                for writer in self._writers
                if writer == current or not (writer in self._own or self.is_dead(writer))
            )

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
                self._usage.journal_bytes -= view.covered

    def forget_writer(self, writer: str) -> None:
        with self.lock:
            self._writers.pop(writer, None)
            self._own.discard(writer)

    # -- packs -------------------------------------------------------------------------------

    def pack(self, name: PackName) -> Pack | None:
        return self._packs.get(name)

    def by_id(self, pack_id: int) -> Pack | None:
        return self._by_id.get(pack_id)

    def packs(self) -> list[Pack]:
        with self.lock:
            return list(self._packs.values())

    def condemn(self, name: PackName, key: bytes | None) -> None:
        """Take a chunk, or a whole pack, out of this process's index; storable again."""
        with self.lock:
            pack = self._packs.get(name)
            if pack is not None and pack.pack_id >= 0:
                self.catalog.hide(pack.pack_id, key)

    def quarantine(self, realm: bytes, rank: int) -> None:
        """Stop finding anything of this realm and rank, now and later (failed audit, I8)."""
        with self.lock:
            self._quarantined.add((realm, rank))
            for pack in list(self._by_id.values()):
                if pack.realm == realm and pack.rank == rank:
                    self.catalog.hide(pack.pack_id, None)

    def is_quarantined(self, realm: bytes, rank: int) -> bool:
        return (realm, rank) in self._quarantined

    def forget_tombstones(self, names: Iterable[PackName]) -> None:
        with self.lock:
            for name in names:
                self._packs.pop(name, None)

    # -- bytes -------------------------------------------------------------------------------

    def usage(self) -> Usage:
        with self.lock:
            usage = self._usage
            return Usage(
                usage.live_bytes,
                usage.dropped_bytes,
                usage.orphan_bytes,
                usage.journal_bytes,
                sum(self._snapshot_sizes.values()),
            )

    def see_orphan(self, name: PackName, total_bytes: int) -> None:
        """A file below packs/ that no record names yet; it counts towards usage."""
        with self.lock:
            if name not in self._packs and name not in self._orphans:
                self._orphans[name] = total_bytes
                self._usage.orphan_bytes += total_bytes

    def orphan_gone(self, name: PackName) -> None:
        with self.lock:
            self._usage.orphan_bytes -= self._orphans.pop(name, 0)

    def orphans(self) -> list[PackName]:
        with self.lock:
            return list(self._orphans)

    def see_snapshots(self, sizes: dict[str, int]) -> None:
        """All snapshot files that exist, with their sizes in bytes."""
        with self.lock:
            self._snapshot_sizes = dict(sizes)


def sort_key(name: PackName) -> bytes:
    """Orders names the same way everywhere: the lower name wins between equal versions."""
    return name.digest + bytes.fromhex(name.writer) + name.seq.to_bytes(8, "big")
