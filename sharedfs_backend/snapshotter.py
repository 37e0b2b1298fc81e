"""Writing snapshots, and removing what they make superfluous: older ones, and dead journals.

By habit the lowest live writer does this, but correctness never depends on who does, nor on only
one doing it: two at once leave two snapshots with common parents, which the next one merges. The
order of removals and its reasons stand in `snapshots`. Each `step` is one small part of the work.
"""

from __future__ import annotations

from collections.abc import Iterable

from sharedfs_backend.context import Context
from sharedfs_backend.directories import create_in
from sharedfs_backend.facts import Pack, WriterView
from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.layout import (
    EMPTY_TABLE,
    Coverage,
    FormatError,
    PackRows,
    PackState,
    Snapshot,
    SnapshotName,
    SnapshotPack,
    decode_snapshot,
    encode_snapshot,
    journal_path,
)
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.snapshots import SNAPSHOT_BYTES_MAX, SnapshotReader, read_whole

WRITE_BYTES = 8 << 20
UNCOVERED_BYTES = 16 << 20
"""A snapshot is worth its writing when this much journal would be read without it,"""
RETIRABLE_JOURNALS = 8
"""or when this many dead or ended journals could go,"""
RETIRE_AFTER_LEASES = 4
"""or when a dead journal has waited for this many leases."""


class Snapshotter:
    """See the module. One thread at a time calls its methods."""

    def __init__(self, context: Context, ledger: Ledger, reader: SnapshotReader) -> None:
        self._files = context.files
        self._runtime = context.runtime
        self._seal = context.seal
        self._profile = context.profile
        self._stats = context.stats
        self._rules = context.rules
        self._lease_seconds = context.settings.lease_seconds
        self._ledger = ledger
        self._reader = reader
        self._generation = 0

    # -- whether -----------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Enough uncovered journal bytes, or enough journals that could be retired."""
        uncovered, retirable, oldest = 0, 0, now
        for view in self._ledger.writers():
            if view.vanished:
                continue
            rest = view.covered - self._covered(view.writer)
            uncovered += max(0, rest)
            if rest > 0 and self._may_retire(view):
                retirable += 1
                oldest = min(oldest, view.last_change)
        waited = now - oldest > RETIRE_AFTER_LEASES * self._lease_seconds
        return uncovered > UNCOVERED_BYTES or retirable >= RETIRABLE_JOURNALS or waited

    def _covered(self, writer: str) -> int:
        return max(
            (
                snapshot.coverage[writer].offset
                for snapshot in self._reader.adopted.values()
                if writer in snapshot.coverage
            ),
            default=0,
        )

    def _may_retire(self, view: WriterView) -> bool:
        if view.ended:
            return True
        if self._profile.unlink_needs_end:
            return False
        return self._ledger.is_dead(view.writer) or not self._rules.journal_retired_when_dead

    # -- writing -----------------------------------------------------------------------------

    def write(self, writer: str) -> SnapshotName | None:
        """Write, read back and adopt a snapshot of the ledger; None if that failed."""
        if not self._reader.read_new(self._files):
            return None
        start = self._runtime.now()
        parents = tuple(sorted(self._reader.adopted))
        known = [*parents, *self._reader.invalid()]
        generation = 1 + max((name.generation for name in known), default=0)
        # A name is never used twice, also when its file was deleted since (I1).
        self._generation = max(generation, self._generation + 1)
        name = SnapshotName(self._generation, writer)
        gathered = self._gather(name, parents, start)
        if gathered is None:
            self._stats.once(
                "snapshots_incomplete",
                "no snapshot can be written: some packs are not held; raise chunks_max (%d)",
                self._ledger.catalog.chunks_max,
            )
            return None
        data = encode_snapshot(gathered, self._seal)
        del gathered  # each of these is as large as all rows of the catalog
        try:
            try:
                self._write_file(name.path, data, start)
            finally:
                if not self._rules.snapshot_outlived_by_verified_successor:
                    self._remove(parents)
            nbytes = len(data)
            del data
            back = read_whole(self._files, name.path, SNAPSHOT_BYTES_MAX)
            snapshot = decode_snapshot(back, self._seal)
        except (FileFailure, FormatError) as error:
            self._stats.once("snapshots_failed", "snapshot %s not written: %s", name.path, error)
            return None
        self._reader.noted(name, nbytes)
        self._reader.adopt(name, snapshot)
        self._stats.add("snapshots_written")
        return name

    def _write_file(self, path: str, data: bytes, start: float) -> None:
        """All but the last block, then the clock, then the rest: a snapshot gathered too long
        ago must not become valid, or it would bring back what was forgotten since."""
        handle = create_in(self._files, path)
        try:
            last = max(0, len(data) - 4096)
            view = memoryview(data)
            for at in range(0, last, WRITE_BYTES):
                self._files.write(handle, at, [view[at : min(last, at + WRITE_BYTES)]])
            if self._runtime.now() - start > self._lease_seconds / 2:
                raise FileFailure(FailureKind.TIMEOUT, "write", path, "took over half a lease")
            self._files.write(handle, last, [view[last:]])
        finally:
            self._files.close(handle)

    def _gather(
        self,
        name: SnapshotName,
        parents: tuple[SnapshotName, ...],
        now: float,
    ) -> Snapshot | None:
        """All that is known, None if some of it is not held here: what a snapshot leaves out is
        lost with the journals it covers. Entries are copied after the lock is released: what
        changes meanwhile lies beyond the coverage."""
        with self._ledger.lock:
            coverage = {
                view.writer: Coverage(view.covered, view.ended)
                for view in self._ledger.writers()
                if not view.vanished and view.covered
            }
            forget = self._forgettable(now)
            self._ledger.forget_tombstones(pack.name for pack in forget)
            packs = self._ledger.packs()
        if not self._rules.snapshots_cover_all:
            own = {pack.realm for pack in packs if self._ledger.is_own(pack.name.writer)}
            packs = [pack for pack in packs if pack.realm in own]
        rows: list[SnapshotPack] = []
        for pack in packs:
            row = self._row(pack, now) or self._row(pack, now)  # dropped just then: asked again
            if row is not None:
                rows.append(row)
            elif pack.live:
                return None
        return Snapshot(name.generation, name.writer, parents, coverage, PackRows.of(rows))

    def _row(self, pack: Pack, now: float) -> SnapshotPack | None:
        """The pack as a row, None for a pack whose entries this process could not hold."""
        catalog = self._ledger.catalog
        if pack.live:
            entries = catalog.entries_of(pack.pack_id) if pack.pack_id >= 0 else None
            if entries is None or pack.layout is None:
                return None
            looked_up = catalog.last_lookup_of(pack.pack_id)
            return SnapshotPack(
                name=pack.name,
                realm=pack.realm,
                layout=pack.layout,
                rank=pack.rank,
                version=pack.version,
                total_bytes=pack.total_bytes,
                state=PackState.LIVE,
                touch_age_seconds=max(0.0, now - looked_up) if looked_up > float("-inf") else None,
                age_seconds=max(0.0, now - pack.first_seen),
                entries=entries,
            )
        if not pack.dropped:
            return None
        return SnapshotPack(
            name=pack.name,
            realm=pack.realm or None,
            layout=pack.layout,
            rank=pack.rank,
            version=pack.version,
            total_bytes=pack.total_bytes,
            state=PackState.GONE if pack.gone else PackState.DROPPED,
            touch_age_seconds=None,
            age_seconds=max(0.0, now - pack.dropped_seen),
            entries=EMPTY_TABLE,
        )

    def _forgettable(self, now: float) -> list[Pack]:
        """Tombstones that no journal and no snapshot left could contradict."""
        existing = {view.writer for view in self._ledger.writers() if not view.vanished}
        snapshots = list(self._reader.adopted.values())
        if not self._rules.tombstones_outlive_names:
            return [pack for pack in self._ledger.packs() if pack.gone]
        return [
            pack
            for pack in self._ledger.packs()
            if pack.gone
            and now - pack.dropped_seen > 2 * self._lease_seconds
            and pack.name.writer not in existing
            and not existing.intersection(pack.committers)
            and not any(snapshot.may_name(pack.name) for snapshot in snapshots)
        ]

    def forget(self, now: float) -> None:
        """What every process forgets for itself: tombstones nobody can contradict, and writers
        that left nothing behind."""
        self._ledger.forget_tombstones(pack.name for pack in self._forgettable(now))
        self._ledger.forget_vanished(self._reader.covers)

    # -- removing ----------------------------------------------------------------------------

    def remove_superseded(self, now: float) -> None:
        """Unlink snapshots whose verified successor is a lease old, and torn ones of the dead."""
        adopted = dict(self._reader.adopted)
        old: set[SnapshotName] = set()
        for name, snapshot in adopted.items():
            if now - self._reader.verified_at[name] >= self._lease_seconds:
                old.update(parent for parent in snapshot.parents if parent in adopted)
        for name, seen in self._reader.invalid().items():
            if now - seen >= self._lease_seconds and self._ledger.is_dead(name.writer):
                old.add(name)
        self._remove(old)

    def _remove(self, names: Iterable[SnapshotName]) -> None:
        for name in names:
            if self._unlink(name.path):
                self._reader.removed(name)
                self._stats.add("snapshots_removed")

    def retire_journals(self, settled: set[str]) -> None:
        """Unlink journals that a verified snapshot covers whole and that nobody will write again.

        `settled`: writers none of whose packs can be unnamed any more (an orphan pass saw to it).
        """
        for view in self._ledger.writers():
            if view.vanished or view.unreadable or not self._may_retire(view):
                continue
            is_settled = view.ended or view.writer in settled
            if not is_settled and self._rules.journal_retired_when_dead:
                continue
            if self._ledger.is_current(view.writer) and not view.ended:
                continue
            covered = self._covered(view.writer) >= max(view.covered, 1 if view.ended else 0)
            if not covered and self._rules.journal_retired_when_covered:
                continue
            if self._unlink(journal_path(view.writer)):
                self._ledger.retire(view.writer)
                self._stats.add("journals_retired")

    def _unlink(self, path: str) -> bool:
        try:
            self._files.unlink(path)
        except FileFailure as failure:
            if failure.kind is not FailureKind.MISSING:
                self._stats.failed(failure, "removing a superseded file")
                return False
        return True
