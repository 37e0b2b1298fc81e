"""Parts: what a store is made of, wired together, and what moves them on.

Here stands which part knows which, and the one function that time calls (`tick`). It does no I/O
on the calling thread: what has to touch the file system is put on a lane, at most one refresh and
one round of chores at a time, so a hung call holds up its own kind of work only (I6).

No decision is taken here that another module could take.
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
from sharedfs_backend.exceptions import NamespaceError
from sharedfs_backend.fdcache import FdCache
from sharedfs_backend.files import (
    FileFailure,
    Files,
    LocalFiles,
    WatchedFiles,
    differences,
    effective,
    mount_warnings,
    probe,
)
from sharedfs_backend.finding import Finder
from sharedfs_backend.keyring import KeyRing
from sharedfs_backend.layout import UNIT_BYTES, PackCommit
from sharedfs_backend.ledger import Changes, Ledger, Pack
from sharedfs_backend.loading import Loader
from sharedfs_backend.namespace import (
    Namespace,
    change_settings,
    open_namespace,
    require_root,
)
from sharedfs_backend.orphans import OrphanPass
from sharedfs_backend.publisher import Publisher
from sharedfs_backend.putting import Putter
from sharedfs_backend.reader import PackReader
from sharedfs_backend.realms import RealmTable
from sharedfs_backend.refresh import Refresher
from sharedfs_backend.rules import Rules
from sharedfs_backend.runtime import Lane, LaneFull, Runtime
from sharedfs_backend.settings import Settings
from sharedfs_backend.snapshots import SnapshotReader
from sharedfs_backend.snapshotter import Snapshotter
from sharedfs_backend.stats import Stats
from sharedfs_backend.sweeper import Sweeper
from sharedfs_backend.writer import PackWriter

log = logging.getLogger("sharedfs_backend")

OPEN_SECONDS = 20.0
"""How long a start-up waits for the file system to show the namespace."""
TICK_SECONDS_MAX = 0.25


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
        self.namespace = self._open_namespace(files, create)
        self._wire(files)
        self._refreshing = False
        self._choring = False
        self._next_chores = runtime.now()
        self._next_refresh = runtime.now()
        self._flag_lock = threading.Lock()
        self._wakeup = threading.Event()
        self._timer: threading.Thread | None = None
        self._closing = False

    # -- making ------------------------------------------------------------------------------

    def _open_namespace(self, files: Files | None, create: bool) -> Namespace:
        """On a lane, so that a file system that hangs costs a start-up its patience only."""
        if files is not None:
            return open_namespace(files, self.settings, create=create)
        result: list[Namespace | Exception] = []
        done = self.runtime.waiter()

        def work() -> None:
            try:
                if create:
                    require_root(self.settings.root)
                plain = LocalFiles(self.settings.root)
                found = open_namespace(plain, self.settings, create=create)
                result.append(self._fit_to_mount(plain, found) if create else found)
            except Exception as error:  # carried over to the waiting thread
                result.append(error)
            done.set()

        self.runtime.submit(Lane.BACKGROUND, work)
        if not done.wait(OPEN_SECONDS):
            raise NamespaceError(
                f"{self.settings.root}: no answer within {OPEN_SECONDS:g} s; is the file system "
                "mounted and its server alive?"
            )
        outcome = result[0]
        if isinstance(outcome, FileFailure):
            raise NamespaceError(f"{self.settings.root}: {outcome}") from outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _fit_to_mount(self, files: Files, found: Namespace) -> Namespace:
        """Probe this mount; the first to do so writes the profile into the namespace."""
        root, named = self.settings.root, self.settings.profile
        for warning in mount_warnings(root):
            log.warning("%s: %s", root, warning)
        mount = probe(root, name=named)
        if found.record.profile is None and named is None:
            writer = self.runtime.random_bytes(8).hex()
            change_settings(files, found.seal, writer, profile=mount.to_dict())
            return replace(found, profile=mount)
        for difference in differences(found.profile, mount):
            log.warning("%s: %s", root, difference)
        return replace(found, profile=effective(found.profile, mount))

    def _wire(self, files: Files | None) -> None:
        settings, runtime, rules, stats = self.settings, self.runtime, self.rules, self.stats
        seal, profile = self.namespace.seal, self.namespace.profile
        self.seal, self.profile = seal, profile
        self.watched = WatchedFiles(
            files if files is not None else LocalFiles(settings.root, profile), runtime
        )
        self.context = context = Context(
            self.watched, runtime, seal, profile, settings, stats, rules
        )
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
            buffers=BufferPool(max(UNIT_BYTES, profile.piece_bytes), settings.buffer_bytes_max),
            depth=ReadDepth(cores, min(profile.read_depth_max, settings.read_threads_max)),
            rules=rules,
        )
        self.finder = Finder(context, self.ledger, lambda: self.healthy, self._missed)
        self.loader = Loader(context, self.ledger, self.finder, self.reader, lambda: self.healthy)
        self.auditor = Auditor(context, self.ledger)
        self._wire_background()
        self._wire_putter()

    def _wire_background(self) -> None:
        context, ledger = self.context, self.ledger
        self.snapshots = SnapshotReader(context, ledger)
        self.refresher = Refresher(context, ledger, self.snapshots, self._changed, self._passed)
        self.sweeper = Sweeper(
            context,
            ledger,
            self.publisher,
            locked=self.finder.locked_packs,
            settled=lambda: self.orphans.settled,
            on_dropped=self._dropped,
        )
        self.orphans = OrphanPass(context, ledger, self.publisher, self.refresher)
        self.snapshotter = Snapshotter(context, ledger, self.snapshots)
        self.chores = Chores(
            context,
            ledger,
            self.publisher,
            sweeper=self.sweeper,
            orphans=self.orphans,
            snapshotter=self.snapshotter,
            cap_bytes=lambda: self._cap_bytes,
            set_cap=self.set_cap,
            take_touches=self.finder.take_touches,
        )

    def _wire_putter(self) -> None:
        settings = self.settings
        self.pack_writer = PackWriter(
            self.watched,
            self.runtime,
            self.seal,
            piece_bytes=self.profile.piece_bytes,
            dirty=DirtyBudget(settings.dirty_bytes_max),
            rules=self.rules,
        )
        self.putter = Putter(
            self.context,
            self.ledger,
            self.publisher,
            self.pack_writer,
            credits=self.credits,
            pack_bytes_max=self._pack_bytes_max,
            audit=self.auditor.check_parts if settings.audit else lambda realm, parts: None,
            on_refused=self._refused,
            on_stored=self._stored,
            on_unpublished=self.sweeper.disown,
            wake=self.wake,
        )

    # -- what parts tell each other ------------------------------------------------------------

    def set_cap(self, cap_bytes: int | None) -> None:
        self._cap_bytes = cap_bytes
        self.credits.cap(cap_bytes is not None and self.rules.credits_bound_stores)

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
            self.wake()

    def _refused(self, refusal: Refusal) -> None:
        if refusal is Refusal.FULL:
            self.sweeper.ask()
        elif self.refresher.ask_early():
            self.wake()

    def _stored(self, commit: PackCommit) -> None:
        if self.settings.audit:
            self.auditor.stored(commit)

    def _changed(self, changes: Changes, writer: str) -> None:
        self._dropped(changes.dropped)
        if self.settings.audit and not self.ledger.is_own(writer):
            self.auditor.check_foreign(changes.committed)

    def _dropped(self, packs: Iterable[Pack]) -> None:
        for pack in packs:
            self.fds.forget(pack.name)

    def _passed(self, started: float, now: float) -> None:
        """A complete pass over all journals: a new credit."""
        cap = self._cap_bytes
        if cap is None:
            return
        if self.rules.new_writer_lists_packs and not self.orphans.judged_once:
            return
        granted = share(cap, self.ledger.usage().total_bytes, self.sweeper.crowd())
        self.credits.grant(granted, started, self.refresher.pass_seconds)

    # -- time --------------------------------------------------------------------------------

    def start_timer(self) -> None:
        """A daemon thread that ticks, for a store with a real runtime."""
        self._timer = threading.Thread(target=self._run, name="sharedfs-timer", daemon=True)
        self._timer.start()

    def wake(self) -> None:
        self._wakeup.set()

    def _run(self) -> None:
        while not self._closing:
            try:
                seconds = self.tick()
            except Exception:  # our own mistake must not stop time
                log.exception("a tick failed")
                seconds = TICK_SECONDS_MAX
            self._wakeup.wait(seconds)
            self._wakeup.clear()

    def tick(self) -> float:
        """Start what is due; seconds until the next round."""
        now = self.runtime.now()
        self.putter.start_due(now)
        self.reader.expire(now)
        self.watched.check()
        if now >= self._next_refresh or self.refresher.is_asked:
            self._once("_refreshing", self._refresh)
        if now >= self._next_chores:
            self._once("_choring", self._chore)
        due = self.putter.next_due()
        soon = min(self._next_refresh, self._next_chores, due if due is not None else now + 1.0)
        return min(TICK_SECONDS_MAX, max(0.001, soon - self.runtime.now()))

    def _once(self, flag: str, work: Callable[[], None]) -> None:
        with self._flag_lock:
            if getattr(self, flag) or self._closing:
                return
            setattr(self, flag, True)

        def run() -> None:
            try:
                work()
            finally:
                setattr(self, flag, False)

        try:
            self.runtime.submit(Lane.BACKGROUND, run)
        except LaneFull:
            setattr(self, flag, False)
            self.stats.add("background_skipped")

    def _refresh(self) -> None:
        self._next_refresh = self.runtime.now() + self.refresher.step()

    def _chore(self) -> None:
        self.chores.step()
        self._next_chores = self.runtime.now() + self.chores.seconds

    def take_over_chores(self) -> None:
        """From now on the caller runs `chores.step` itself (tools)."""
        while True:
            with self._flag_lock:
                if not self._choring:
                    self._choring = True
                    return
            self.runtime.waiter().wait(0.01)

    def wait_current(self, timeout_seconds: float) -> bool:
        """Until a pass begun after this call is complete."""
        start = self.runtime.now()
        while self.refresher.last_good_pass_started < start:
            if self.runtime.now() - start > timeout_seconds:
                return False
            self.refresher.ask_early()
            self.wake()
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
            "catalog_bytes": self.catalog.memory_bytes(),
            "catalog_refused_chunks": self.catalog.refused_chunks,
            "catalog_age_seconds": self.runtime.now() - self.refresher.last_good_pass_started,
            "refresh_passes": self.refresher.passes_done,
            "live_bytes": usage.live_bytes,
            "dropped_bytes": usage.dropped_bytes,
            "orphan_bytes": usage.orphan_bytes,
            "journal_bytes": usage.journal_bytes,
            "snapshot_bytes": usage.snapshot_bytes,
            "cap_bytes": self._cap_bytes or 0,
            "queue_bytes": self.putter.queued_bytes,
            "in_flight_bytes": self.credits.in_flight_bytes,
            "locks_held": self.finder.locks_held,
            "writers_live": len(self.ledger.live_writers(self.publisher.writer)),
        }

    # -- the end -----------------------------------------------------------------------------

    def close(self, timeout_seconds: float, *, own_runtime: bool) -> None:
        """Finish what is queued within the time, end the journal, let everything go."""
        deadline = self.runtime.now() + timeout_seconds
        tasks = self.putter.close()
        while any(not task.is_done for task in tasks) and self.runtime.now() < deadline:
            self.runtime.waiter().wait(0.005)
        for task in tasks:
            task.cancel()
        self._closing = True
        self.wake()
        self.reader.close()
        self._end_journal(deadline)
        self.fds.close()
        if own_runtime:
            self.runtime.close(max(0.1, deadline - self.runtime.now()))
        timer = self._timer
        if timer is not None and timer is not threading.current_thread():
            timer.join(1.0)

    def _end_journal(self, deadline: float) -> None:
        done = self.runtime.waiter()

        def work() -> None:
            self.publisher.end()
            done.set()

        try:
            self.runtime.submit(Lane.WRITE, work)
        except LaneFull:
            return
        done.wait(max(0.1, deadline - self.runtime.now()))
