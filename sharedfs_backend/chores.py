"""Chores: what a store does when nobody asks it to, and when.

Heartbeats and touches, sweeping, orphan passes, snapshots, settings. Each is one small class of
its own; here stands only their order and rhythm. One thread at a time runs `step`, on a background
worker, because every chore may do I/O and any I/O may hang (I6). By habit the lowest live writer
does what serves everybody; correctness depends neither on who nor on how many do it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sharedfs_backend.context import Context
from sharedfs_backend.doubts import Doubts
from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.layout import Beat, Record, SettingsRecord, Touch
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.namespace import is_kept, newest_settings, repeat_settings
from sharedfs_backend.orphans import OrphanPass
from sharedfs_backend.publisher import Publisher
from sharedfs_backend.snapshotter import Snapshotter
from sharedfs_backend.sweeper import Sweeper

log = logging.getLogger(__name__)

SETTINGS_SECONDS = 30.0
STEP_SECONDS_MAX = 1.0
ORPHAN_SLICE_SECONDS = 1.0
"""Of an orphan pass at a time, so that the other chores get their turn."""
ORPHAN_PASS_LEASES = 4
"""A pass over all packs every so many leases, and whenever a writer died."""


class Chores:
    """See the module."""

    def __init__(
        self,
        context: Context,
        ledger: Ledger,
        publisher: Publisher,
        *,
        doubts: Doubts,
        sweeper: Sweeper,
        orphans: OrphanPass,
        snapshotter: Snapshotter,
        record: SettingsRecord,
        cap_bytes: Callable[[], int | None],
        set_cap: Callable[[int | None], None],
        take_touches: Callable[[float], list[tuple[int, float]]],
    ) -> None:
        settings = context.settings
        lease_seconds, drop_delay_seconds = settings.lease_seconds, settings.drop_delay_seconds
        self._files = context.files
        self._runtime = context.runtime
        self._seal = context.seal
        self._stats = context.stats
        self._ledger = ledger
        self._publisher = publisher
        self._doubts = doubts
        self._sweeper = sweeper
        self._orphans = orphans
        self._snapshotter = snapshotter
        self._beat_seconds = lease_seconds / 4
        self._lease_seconds = lease_seconds
        self._patience_seconds = 2 * settings.refresh_seconds
        self._record = record
        self._next_repeat = float("-inf")
        self._repeat_pause = 0.0
        self._cap_is_fixed = settings.cap_bytes is not None
        self._cap_bytes = cap_bytes
        self._set_cap = set_cap
        self._take_touches = take_touches
        now = self._runtime.now()
        self._next_beat = now + self._beat_seconds
        self._next_forget = now + self._beat_seconds
        self._next_settings = now + SETTINGS_SECONDS
        self._next_orphans = now + ORPHAN_PASS_LEASES * lease_seconds
        self._counter = 0
        self.seconds = max(0.05, min(STEP_SECONDS_MAX, drop_delay_seconds / 4, lease_seconds / 16))

    def step(self) -> None:
        """Everything that is due."""
        now = self._runtime.now()
        if now >= self._next_beat:
            self._next_beat = now + self._beat_seconds
            self._beat(now)
        if not self._cap_is_fixed and now >= self._next_settings:
            self._next_settings = now + SETTINGS_SECONDS
            self._reload_cap()
        self._doubts.step()
        self._sweeper.step(self._cap_bytes(), self._patience_seconds)
        self._look_for_orphans(self._runtime.now())
        self._keep_snapshots(self._runtime.now())

    def _beat(self, now: float) -> None:
        touches = self._take_touches(now)
        records: list[Record] = []
        ages = tuple(
            (pack.name, max(0.0, now - at))
            for pack_id, at in touches
            if (pack := self._ledger.by_id(pack_id)) is not None
        )
        if ages:
            records.append(Touch(ages))
        if self._publisher.writer is not None:
            self._counter += 1
            records.append(Beat(self._counter))
        if records:
            self._publisher.publish(records, lambda _: None)

    def _reload_cap(self) -> None:
        """Settings never go back: with the file of the newest ones the cap would be lost, too."""
        known = self._record
        try:
            found = newest_settings(self._files, self._seal)
            if (found.number, found.writer) >= (known.number, known.writer):
                self._record = found
            elif not is_kept(self._files, self._seal, known):
                self._repeat(known)
        except FileFailure as failure:
            if failure.kind is FailureKind.MISSING and known.number:
                self._repeat(known)  # all of them, with their directory
            else:
                self._stats.failed(failure, "reading the settings")
        self._set_cap(self._record.cap_bytes)

    def _repeat(self, lost: SettingsRecord) -> None:
        self._stats.once(
            "settings_lost",
            "settings %d.%s are missing or damaged: this process keeps to them, cap included, "
            "and says them again; `sharedfs init --cap` changes the cap",
            lost.number,
            lost.writer,
        )
        now = self._runtime.now()
        if self._publisher.writer is None or now < self._next_repeat:
            return  # who only reads writes nothing
        self._repeat_pause = 2 * max(self._repeat_pause, SETTINGS_SECONDS)  # may leave a torn file
        self._next_repeat = now + self._repeat_pause
        writer = self._runtime.random_bytes(8).hex()
        try:
            self._record = repeat_settings(self._files, self._seal, writer, lost)
            self._repeat_pause = 0.0
        except FileFailure as failure:
            self._stats.failed(failure, "saying the settings again")

    def _look_for_orphans(self, now: float) -> None:
        capped = self._cap_bytes() is not None
        first = capped and not self._orphans.judged_once
        leader = self._sweeper.is_leader()
        unsettled = leader and any(
            view.writer not in self._orphans.settled
            and not view.ended
            and not view.vanished
            and self._ledger.is_dead(view.writer)
            for view in self._ledger.writers()
        )
        periodic = leader and now >= self._next_orphans
        again = now >= self._orphans.next_allowed
        if first or (again and (periodic or unsettled)):
            self._orphans.acts = leader
            self._orphans.begin()
            if periodic:
                self._next_orphans = now + ORPHAN_PASS_LEASES * self._lease_seconds
        while self._orphans.step() and self._runtime.now() - now < ORPHAN_SLICE_SECONDS:
            pass  # each step is a part of the pass

    def _keep_snapshots(self, now: float) -> None:
        if now >= self._next_forget:
            self._next_forget = now + self._beat_seconds
            self._snapshotter.forget(now)
        writer = self._publisher.writer
        if writer is None or not self._sweeper.is_leader():
            return
        if self._snapshotter.is_due(now):
            self._snapshotter.write(writer)
        self._snapshotter.remove_superseded(now)
        self._snapshotter.retire_journals(self._orphans.settled)
