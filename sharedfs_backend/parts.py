"""Parts: what a store is made of, wired together, and what moves them on.

Here stands which part knows which, and the one function that time calls (`tick`). It does no I/O
on the calling thread: what has to touch the file system is put on a lane, at most one refresh and
one round of chores at a time, so a hung call holds up its own kind of work only (I6).

No decision is taken here that another module could take. Past 400 lines because every part is
wired here, once.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sharedfs_backend.auditor import Auditor
from sharedfs_backend.buffers import BufferPool
from sharedfs_backend.capacity import Credits, Refusal, pack_bytes_max, share
from sharedfs_backend.catalog import Catalog
from sharedfs_backend.chores import Chores
from sharedfs_backend.context import Context
from sharedfs_backend.depth import ReadDepth
from sharedfs_backend.dirty import DirtyBudget
from sharedfs_backend.doubts import Doubts
from sharedfs_backend.facts import Changes, Pack
from sharedfs_backend.fdcache import FdCache
from sharedfs_backend.files import (
    CachedReads,
    FileFailure,
    Files,
    FlushMethod,
    HashedWrite,
    LocalFiles,
    WatchedFiles,
)
from sharedfs_backend.finding import Finder
from sharedfs_backend.keyring import KeyRing
from sharedfs_backend.layout import NAMESPACE_PATH, UNIT_BYTES, PackCommit
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.loading import Loader
from sharedfs_backend.native import loops
from sharedfs_backend.opening import open_within_time, reach
from sharedfs_backend.orphans import OrphanPass
from sharedfs_backend.publisher import Publisher
from sharedfs_backend.putting import Putter
from sharedfs_backend.reader import PackReader
from sharedfs_backend.readstep import Fill, native_fill, python_fill
from sharedfs_backend.realms import RealmTable
from sharedfs_backend.refresh import EARLY_SECONDS, Refresher
from sharedfs_backend.rules import Rules
from sharedfs_backend.runtime import Lane, LaneFull, Runtime
from sharedfs_backend.settings import Settings
from sharedfs_backend.snapshots import SnapshotReader
from sharedfs_backend.snapshotter import Snapshotter
from sharedfs_backend.stats import Stats
from sharedfs_backend.storing import Storer
from sharedfs_backend.sweeper import Sweeper
from sharedfs_backend.turns import TurnFiles, Turns
from sharedfs_backend.writer import PackWriter

log = logging.getLogger("sharedfs_backend")

TICK_SECONDS_MAX = 0.25
PROBE_SECONDS = 5.0
"""Least time between two probes asked for: the breaker knows when, the lane may be slow."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What lies in the namespace, as far as this process knows. Bytes."""

    live_bytes: int
    total_bytes: int
    pack_count: int
    chunk_count: int
    cap_bytes: int | None


class Parts:
    """Everything of one process. Made by `Store`, closed once."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        files: Files | None,
        rules: Rules,
        *,
        create: bool,
    ) -> None:
        self.settings = settings
        self.runtime = runtime
        self.rules = rules
        self.stats = Stats()
        self.namespace = open_within_time(runtime, settings, files, create=create)
        self._wakeup = threading.Event()
        self._wire(files)
        self._next_chores = runtime.now()
        self._next_refresh = runtime.now()
        self._next_probe = runtime.now()
        self._timer: threading.Thread | None = None
        self._closing = False

    # -- making ------------------------------------------------------------------------------

    def _wire(self, files: Files | None) -> None:
        settings, runtime, rules, stats = self.settings, self.runtime, self.rules, self.stats
        seal, profile = self.namespace.seal, self.namespace.profile
        self.seal, self.profile = seal, profile
        reached = files if files is not None else reach(settings, profile)
        self.watched = WatchedFiles(reached, runtime)
        # What was injected is taken for a file system without calls of its own.
        self._local = reached if files is None and isinstance(reached, LocalFiles) else None
        self._loops = None if seal.keyed else loops()
        self.context = context = Context(
            self.watched, runtime, seal, profile, settings, stats, rules
        )
        self._refresh_turns = Turns(runtime, settings.lease_seconds / 2, self.wake)
        self._chore_turns = Turns(runtime, settings.lease_seconds / 2, self.wake)
        self.catalog = Catalog(settings.chunks_max)
        self.ledger = Ledger(self.catalog, seal, rules, settings.lease_seconds)
        self.keyring = KeyRing(seal, settings.keys_memo_max)
        self.realms = RealmTable(context)
        self.credits = Credits(settings.refresh_seconds, rules.in_flight_counts)
        capped = settings.cap_bytes is not None
        self.set_cap(settings.cap_bytes if capped else self.namespace.record.cap_bytes)
        self.publisher = Publisher(context, self.ledger)
        self.fds = FdCache(self.watched, runtime.now, handles_max=settings.open_files_max)
        cores = len(os.sched_getaffinity(0))
        self.reader = PackReader(
            self.watched,
            runtime,
            seal,
            fds=self.fds,
            buffers=BufferPool(profile.read_bytes, settings.buffer_bytes_max),
            depth=ReadDepth(cores, min(profile.read_depth_max, settings.read_threads_max)),
            fill=self._fill(),
            loops=self._loops,
            load=None if self._local is None else self.watched.watched_load(self._local.load),
            rules=rules,
        )
        self.finder = Finder(context, self.ledger, lambda: self.healthy, self._missed)
        self.loader = Loader(context, self.ledger, self.finder, self.reader, lambda: self.healthy)
        self.auditor = Auditor(context, self.ledger)
        self._wire_background()
        self._wire_putter()

    def _fill(self) -> Fill | None:
        """How what this machine has in memory is read to its place, if the mount can tell."""
        if self._local is None or self.profile.cached_reads is CachedReads.NONE:
            return None
        if self._loops is None:
            return python_fill(self.watched.counted(self._local.read_cached), self.seal)
        read = self.watched.counted_hashed(self._local.read_hashed, self.profile.piece_bytes)
        return native_fill(read)

    def _wire_background(self) -> None:
        ledger = self.ledger
        refreshing = self._in_turns(self._refresh_turns)
        context = self._in_turns(self._chore_turns)
        self.snapshots = SnapshotReader(refreshing, ledger, self._changed)
        self.refresher = Refresher(refreshing, ledger, self.snapshots, self._changed, self._passed)
        self.sweeper = Sweeper(
            context,
            ledger,
            self.publisher,
            locked=self.finder.locked_packs,
            settled=lambda: self.orphans.settled,
            on_dropped=self._dropped,
        )
        self.doubts = Doubts(
            context,
            ledger,
            self.publisher,
            on_dropped=self.sweeper.finish_own,
            on_full=self.sweeper.disown,
        )
        self.orphans = OrphanPass(context, ledger, self.publisher, self.refresher, self.snapshots)
        self.snapshotter = Snapshotter(context, ledger, self.snapshots)
        self.chores = Chores(
            context,
            ledger,
            self.publisher,
            doubts=self.doubts,
            sweeper=self.sweeper,
            orphans=self.orphans,
            snapshotter=self.snapshotter,
            record=self.namespace.record,
            cap_bytes=lambda: self._cap_bytes,
            set_cap=self.set_cap,
            take_touches=self.finder.take_touches,
        )

    def _in_turns(self, turns: Turns) -> Context:
        """The context of background work that others go on with when its thread hangs."""
        return replace(self.context, files=TurnFiles(self.watched, turns))

    def _wire_putter(self) -> None:
        settings = self.settings
        write_hashed: HashedWrite | None = None
        if (
            self._local is not None
            and self.profile.vectored
            and self.profile.piece_bytes < UNIT_BYTES
        ):
            step_bytes = self.profile.piece_bytes
            write_hashed = self.watched.watched_hashed(self._local.write_hashed, step_bytes)
        self.pack_writer = PackWriter(
            self.watched,
            self.runtime,
            self.seal,
            piece_bytes=self.profile.piece_bytes,
            dirty=DirtyBudget(
                None if self.profile.flush is FlushMethod.NONE else settings.dirty_bytes_max
            ),
            write_hashed=write_hashed,
            loops=self._loops,
            rules=self.rules,
        )
        self.storer = Storer(
            self.context,
            self.ledger,
            self.publisher,
            self.pack_writer,
            credits=self.credits,
            pack_bytes_max=self._pack_bytes_max,
            packs_at_once=self.profile.packs_for(len(os.sched_getaffinity(0))),
            audit=self.auditor.check_parts if settings.audit else lambda realm, parts: None,
            on_begun=self.auditor.begun if settings.audit else lambda job: None,
            on_refused=self._refused,
            on_stored=self._stored,
            on_unpublished=self.doubts.note,
            on_left_over=self.sweeper.disown,
        )
        self.putter = Putter(
            self.context, self.storer, healthy=lambda: self.healthy, wake=self.wake
        )

    # -- what parts tell each other ------------------------------------------------------------

    def set_cap(self, cap_bytes: int | None) -> None:
        self._cap_bytes = cap_bytes
        self.credits.cap(cap_bytes if self.rules.credits_bound_stores else None)

    @property
    def cap_bytes(self) -> int | None:
        return self._cap_bytes

    def _pack_bytes_max(self) -> int:
        limit = self.settings.pack_bytes_max or self.profile.pack_bytes_max
        if self._cap_bytes is not None:
            limit = min(limit, pack_bytes_max(self._cap_bytes))
        return limit

    def _missed(self) -> None:
        if self.refresher.ask_early():
            self._next_refresh = self.runtime.now()
            self.wake()

    def _refused(self, refusal: Refusal) -> None:
        if refusal in (Refusal.FULL, Refusal.DISK_FULL):
            self.sweeper.ask(disk_full=refusal is Refusal.DISK_FULL)
        elif refusal is not Refusal.NO_SPACE:  # that one has been told of already
            self._missed()

    def _stored(self, commit: PackCommit) -> None:
        if self.settings.audit:
            self.auditor.stored(commit)

    def _changed(self, changes: Changes, writer: str = "") -> None:
        self._dropped(changes.dropped)
        if self.settings.audit and not self.ledger.is_own(writer):
            self.auditor.check_foreign(changes.committed)

    def _dropped(self, packs: Iterable[Pack]) -> None:
        dropped = list(packs)
        for pack in dropped:
            self.fds.forget(pack.name)
        self.auditor.dropped(dropped)

    def _passed(self, started: float, now: float) -> None:
        """A complete pass over all journals: a new credit."""
        cap = self._cap_bytes
        if cap is None:
            return
        if self.rules.new_writer_lists_packs and not self.orphans.judged_once:
            return
        if self.ledger.unreadable_writers() or self.snapshots.newer:
            return  # not complete: what a later version stored is not counted
        usage = self.ledger.usage()
        granted = share(cap, usage.total_bytes + usage.merge_bytes, self.sweeper.crowd())
        self.credits.grant(granted, started, self.refresher.pass_seconds)
        self.storer.retry()

    # -- time --------------------------------------------------------------------------------

    def start_timer(self, relieve: Callable[[], None]) -> None:
        """A daemon thread that ticks and relieves lost workers, for a real runtime."""
        self._relieve = relieve
        self._timer = threading.Thread(target=self._run, name="sharedfs-timer", daemon=True)
        self._timer.start()

    def wake(self) -> None:
        self._wakeup.set()

    def wait(self, seconds: float) -> None:
        """Until it is time for the next tick: in `seconds`, or when something asks for it."""
        self._wakeup.wait(seconds)
        self._wakeup.clear()

    def _run(self) -> None:
        while not self._closing:
            try:
                seconds = self.tick()
                self._relieve()
            except Exception:  # our own mistake must not stop time
                log.exception("a tick failed")
                seconds = TICK_SECONDS_MAX
            self.wait(seconds)

    def tick(self) -> float:
        """Start what is due; seconds until the next round."""
        now = self.runtime.now()
        self.putter.start_due(now)
        self.putter.expire(now)
        self.reader.expire(now)
        if not self.watched.check():
            self._probe_if_due(now)
        if self._closing:
            return TICK_SECONDS_MAX
        begun = True
        if now >= self._next_refresh:
            begun &= self._refresh_turns.start(self._refresh, self.refresher.reset)
        if now >= self._next_chores:
            begun &= self._chore_turns.start(self._chore, self.orphans.reset)
        if not begun:
            self.stats.add("background_skipped")
        due = [self.putter.next_due()]
        if begun:  # who has a turn at present wakes us when it is over
            due += [
                None if turns.is_taken else at
                for turns, at in (
                    (self._refresh_turns, self._next_refresh),
                    (self._chore_turns, self._next_chores),
                )
            ]
        soon = min((at for at in due if at is not None), default=now + TICK_SECONDS_MAX)
        return min(TICK_SECONDS_MAX, max(0.001, soon - self.runtime.now()))

    def _probe_if_due(self, now: float) -> None:
        """Ask a sick file system whether it is well again; nobody else might for a long time."""
        if now < self._next_probe or not self.watched.probe_due():
            return
        self._next_probe = now + PROBE_SECONDS
        try:
            self.runtime.submit(Lane.BACKGROUND, self._probe)
        except LaneFull:
            self.stats.add("background_skipped")

    def _probe(self) -> None:
        try:
            self.watched.close(self.watched.open_read(NAMESPACE_PATH))
        except FileFailure as failure:
            self.stats.failed(failure, "asking whether the file system answers")

    def _refresh(self) -> None:
        seconds = self.refresher.step()
        self.credits.unread(self.refresher.unread.lost)
        if self.refresher.is_asked:  # meanwhile
            seconds = min(seconds, EARLY_SECONDS)
        self._next_refresh = self.runtime.now() + seconds

    def _chore(self) -> None:
        self.chores.step()
        self._next_chores = self.runtime.now() + self.chores.seconds

    def take_over_chores(self) -> None:
        """From now on the caller runs `chores.step` itself (tools)."""
        while not self._chore_turns.take_for_good():
            self.runtime.waiter().wait(0.01)

    def wait_current(self, timeout_seconds: float) -> bool:
        """Until a pass begun after this call is complete."""
        start = self.runtime.now()
        while self.refresher.last_good_pass_started < start:
            if self.runtime.now() - start > timeout_seconds:
                self.refresher.unread.tell(self.runtime.now())
                return False
            self._missed()
            self.runtime.waiter().wait(0.01)
        return True

    # -- state -------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        return self.watched.healthy

    def usage(self) -> Usage:
        usage = self.ledger.usage()
        return Usage(
            live_bytes=usage.live_bytes,
            total_bytes=usage.total_bytes,
            pack_count=self.catalog.pack_count,
            chunk_count=len(self.catalog),
            cap_bytes=self._cap_bytes,
        )

    def stats_snapshot(self) -> dict[str, float]:
        usage = self.ledger.usage()
        return {
            **self.stats.snapshot(),
            **self.watched.stats(),
            **self.reader.stats(),
            "catalog_chunks": len(self.catalog),
            "catalog_packs": self.catalog.pack_count,
            "catalog_rows": self.catalog.row_count,
            "catalog_bytes": self.catalog.memory_bytes(),
            "catalog_refused_chunks": self.catalog.refused_chunks,
            "catalog_age_seconds": self.runtime.now() - self.refresher.last_good_pass_started,
            "refresh_passes": self.refresher.passes_done,
            "piece_bytes": self.profile.piece_bytes,
            "read_bytes": self.profile.read_bytes,
            "live_bytes": usage.live_bytes,
            "dropped_bytes": usage.dropped_bytes,
            "orphan_bytes": usage.orphan_bytes,
            "journal_bytes": usage.journal_bytes,
            "snapshot_bytes": usage.snapshot_bytes,
            "cap_bytes": self._cap_bytes or 0,
            "queue_bytes": self.putter.queued_bytes,
            "in_flight_bytes": self.credits.in_flight_bytes,
            "locks_held": self.finder.locks_held,
            "keys_remembered": len(self.keyring),
            "packs_known": self.ledger.pack_count,
            "writers_known": self.ledger.writer_count,
            "audit_chunks": len(self.auditor),
            "writers_live": len(self.ledger.live_writers(self.publisher.writer)),
        }

    # -- the end -----------------------------------------------------------------------------

    def close(self, timeout_seconds: float, *, own_runtime: bool) -> None:
        """Finish what is queued within the time, end the journal, let everything go."""
        deadline = self.runtime.now() + timeout_seconds
        tasks = self.putter.close()
        while any(not task.is_done for task in tasks) and self.runtime.now() < deadline:
            self.runtime.waiter().wait(0.005)
        self._closing = True
        self.wake()
        self.putter.abandon(deadline)
        self.reader.end_all()
        self._by(deadline, Lane.WRITE, self._say_goodbye)
        self._by(deadline, Lane.READ, self.fds.close)
        if own_runtime:
            self.runtime.close(max(0.1, deadline - self.runtime.now()))
        timer = self._timer
        if timer is not None and timer is not threading.current_thread():
            timer.join(1.0)

    def _say_goodbye(self) -> None:
        self.doubts.step()
        self.publisher.end()

    def _by(self, deadline: float, lane: Lane, work: Callable[[], None]) -> None:
        """Do it on a worker, and wait for it until then: it may hang."""
        done = self.runtime.waiter()

        def run() -> None:
            work()
            done.set()

        try:
            self.runtime.submit(lane, run)
        except LaneFull:
            return
        done.wait(max(0.1, deadline - self.runtime.now()))
