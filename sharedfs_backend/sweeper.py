"""The sweeper: keeps the namespace below its cap by dropping the least valuable packs.

Order: `drop` record, drop delay, unlink, `gone` record. After the drop no lookup anywhere reports
the pack (within the bound of I4); loads under way have the delay to finish; unlinking is safe at
any time since a committed pack is closed (I1), so a crash after any step costs hits at most (I5)
and any sweeper finishes what a dead one began. Correctness never depends on who sweeps, or on only
one doing so: by habit the lowest live writer does, and whoever was refused credit and waited.

If the disk itself is full, one share of what lies there goes, and no more until that is unlinked:
whatever happens before, the catalog is not emptied. If it is so full that not even a drop record
can be appended, committed victims are unlinked first and recorded later: their readers find them
missing, which is a miss.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from sharedfs_backend.capacity import Crowd, low_watermark_bytes
from sharedfs_backend.context import Context
from sharedfs_backend.facts import Pack
from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.layout import Drop, Gone, PackName
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.publisher import Publisher
from sharedfs_backend.retention import Candidate, plan

CHOICE_SHARE = 8.0
"""A choice is made at most in one part of so many of the time."""
UNLINKS_A_STEP = 64
"""So that one step of a long sweep does not hold up the other chores."""


class Sweeper:
    """See the module. One thread at a time calls `step`; the rest comes from anywhere."""

    def __init__(
        self,
        context: Context,
        ledger: Ledger,
        publisher: Publisher,
        *,
        locked: Callable[[], frozenset[int]],
        settled: Callable[[], set[str]],
        on_dropped: Callable[[Iterable[Pack]], None],
    ) -> None:
        settings = context.settings
        self._files = context.files
        self._runtime = context.runtime
        self._stats = context.stats
        self._rules = context.rules
        self._lease_seconds = settings.lease_seconds
        self._drop_delay_seconds = settings.drop_delay_seconds
        self._high_ratio = settings.high_watermark_ratio
        self._low_ratio = settings.low_watermark_ratio
        self._ledger = ledger
        self._publisher = publisher
        self._locked = locked
        self._settled = settled
        self._on_dropped = on_dropped
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._disk_full = False
        self._next_choice = float("-inf")
        self._mine: set[PackName] = set()
        self._unrecorded: dict[PackName, float] = {}
        """Packs that go before their record does -> since when."""
        self._unlinked: set[PackName] = set()
        """Files removed, which is not on record yet."""

    def ask(self, *, disk_full: bool = False) -> None:
        """A store found no room: sweep whatever the watermark says. `disk_full`: whatever the cap
        says, too; the disk may hold less, or others' files."""
        with self._lock:
            self._disk_full |= disk_full
            if self._asked_at is not None:
                return
            self._asked_at = self._runtime.now()
        self._stats.add("sweeps_asked")

    def step(self, cap_bytes: int | None, patience_seconds: float) -> None:
        """Choose victims if need be, then unlink what is due."""
        now = self._runtime.now()
        wanted = cap_bytes is not None or self._asked_at is not None
        if wanted and now >= self._next_choice:
            self._choose(cap_bytes, now, patience_seconds)
        self.finish(now)

    # -- choosing ----------------------------------------------------------------------------

    def _choose(self, cap_bytes: int | None, now: float, patience_seconds: float) -> None:
        usage = self._ledger.usage()
        remaining = usage.total_bytes - usage.dropped_bytes
        asked_at = self._asked_at
        asked = asked_at is not None
        leader = self.is_leader()
        to_free = 0
        if cap_bytes is not None:
            low = self.low_bytes(cap_bytes)
            if not asked and remaining <= min(cap_bytes * self._high_ratio, 2 * low):
                return
            to_free = remaining - low
        waited = asked_at is not None and now - asked_at >= patience_seconds
        if not (leader or waited):
            return
        with self._lock:
            self._asked_at, disk_full, self._disk_full = None, self._disk_full, False
        if cap_bytes is None or disk_full:
            to_free = max(to_free, self._full_disk_bytes(usage.live_bytes, now))
        if to_free <= 0:
            return
        victims = self.victims(to_free, now)
        took = self._runtime.now() - now  # of many packs a choice takes a while
        freed = sum(p.total_bytes for name in victims if (p := self._ledger.pack(name)) is not None)
        wait = self._drop_delay_seconds / 4 if freed < to_free else 0.0  # the rest is too young
        self._next_choice = now + max(wait, CHOICE_SHARE * took)
        if victims:
            self.drop(victims)

    def _full_disk_bytes(self, live_bytes: int, now: float) -> int:
        """What to free when the disk itself is full: a share of all that lies there. What was
        dropped lies there until it is unlinked, and counts as freed, so that stores refused
        meanwhile drop no more; not if whoever dropped it should have unlinked it long ago."""
        pending, young = self._ledger.pending(), now - 2 * self._drop_delay_seconds
        with self._lock:
            dropped = [p for p in pending if p.name in self._mine or p.dropped_seen >= young]
            packs = [self._ledger.pack(name) for name in self._unrecorded]
            first = [pack for pack in packs if pack is not None and pack.live]
            leaving = [pack for pack in (*dropped, *first) if pack.name not in self._unlinked]
        remaining = live_bytes - sum(pack.total_bytes for pack in first)
        lying = remaining + sum(pack.total_bytes for pack in leaving)
        return remaining - int(lying * self._low_ratio)

    def is_leader(self) -> bool:
        """This process holds the lowest live writer id, or nobody else writes."""
        live = self._ledger.live_writers(self._publisher.writer)
        return not live or live[0] == self._publisher.writer

    def crowd(self) -> Crowd:
        """The writers that share what is below the cap."""
        live = len(self._ledger.live_writers(self._publisher.writer))
        return Crowd(max(1, live), max(1, self._ledger.unsettled_writers(self._settled())))

    def low_bytes(self, cap_bytes: int) -> int:
        merge_bytes = self._ledger.usage().merge_bytes
        return low_watermark_bytes(cap_bytes, self._low_ratio, self.crowd(), merge_bytes)

    def victims(self, bytes_to_free: int, now: float) -> list[PackName]:
        """Names to drop, least valuable first."""
        chosen = plan(
            self.candidates(),
            bytes_to_free,
            now,
            self._drop_delay_seconds,
            self._lease_seconds / 4,
        )
        return [candidate.name for candidate in chosen]

    def candidates(self) -> list[Candidate]:
        """All live packs, as retention sees them."""
        locked = self._locked()
        with self._lock:
            going = set(self._unrecorded)
        facts = self._ledger.catalog.facts()
        columns = zip(
            facts.pack_ids.tolist(),
            facts.parents.tolist(),
            facts.counts.tolist(),
            facts.chosen.tolist(),
            facts.last_lookup.tolist(),
            strict=True,
        )
        return [
            Candidate(
                name=pack.name,
                pack_id=pack_id,
                parent_id=parent_id,
                total_bytes=pack.total_bytes,
                chunks=chunks,
                last_lookup=last_lookup,
                first_seen=pack.first_seen,
                duplicate=found_here == 0,
                locked=pack_id in locked,
            )
            for pack_id, parent_id, chunks, found_here, last_lookup in columns
            if (pack := self._ledger.by_id(pack_id)) is not None
            and pack.live
            and pack.name not in going
        ]

    def drop(self, names: list[PackName]) -> None:
        """Publish the drop of `names`; unlink them when the drop delay is over."""
        packs = [pack for name in names if (pack := self._ledger.pack(name)) is not None]
        if not self._rules.drop_before_unlink:
            self._unlink(names)
            return

        def done(published: bool) -> None:
            if published:
                self.finish_own(names)
                self._stats.add("packs_dropped", len(names))
            elif self._publisher.is_full:
                self._stats.add("packs_dropped_unrecorded", len(names))
                self.disown(names)
            else:
                self._asked_at = self._runtime.now()  # another time
                return
            self._on_dropped(packs)

        self._publisher.publish((Drop(tuple(names)),), done)

    # -- finishing ---------------------------------------------------------------------------

    def finish(self, now: float) -> None:
        """Unlink what was dropped long enough ago, own or abandoned, and record it gone."""
        abandoned_seconds = self._drop_delay_seconds + self._lease_seconds
        with self._lock:
            mine = set(self._mine)  # before the question: what is dropped meanwhile stays
        pending = self._ledger.pending()
        leader = bool(pending) and self.is_leader()
        due: list[PackName] = []
        with self._lock:
            names = {pack.name for pack in pending}
            self._mine -= mine - names
            self._unlinked &= names | self._unrecorded.keys()
            for pack in pending:
                age = now - pack.dropped_seen
                delay = self._drop_delay_seconds if pack.name in self._mine else abandoned_seconds
                if age >= delay and (leader or pack.name in self._mine):
                    due.append(pack.name)
            due += [
                name
                for name, since in self._unrecorded.items()
                if now - since >= self._drop_delay_seconds
            ]
        if due:
            self._unlink(due[:UNLINKS_A_STEP])

    def finish_own(self, names: Iterable[PackName]) -> None:
        """Dropped on record by this process: it unlinks them once the drop delay is over."""
        with self._lock:
            self._mine.update(names)

    def disown(self, names: Iterable[PackName]) -> None:
        """Packs to be removed first and recorded later: no record names them, or none can be
        written on a full disk. This process finds nothing in them from now on."""
        now = self._runtime.now()
        for name in names:
            self._ledger.condemn(name, None)
            with self._lock:
                self._unrecorded.setdefault(name, now)

    def _unlink(self, names: list[PackName]) -> None:
        removed: list[PackName] = []
        for name in names:
            try:
                self._files.unlink(name.path)
            except FileFailure as failure:
                if failure.kind is not FailureKind.MISSING:
                    self._stats.failed(failure, "unlinking a dropped pack")
                    continue
            removed.append(name)
        if removed:
            with self._lock:
                self._unlinked.update(removed)
            self._record_gone(tuple(removed))

    def _record_gone(self, names: tuple[PackName, ...]) -> None:
        def done(published: bool) -> None:
            if published:
                with self._lock:
                    self._mine.difference_update(names)
                    self._unlinked.difference_update(names)
                    for name in names:
                        self._unrecorded.pop(name, None)
                self._stats.add("packs_unlinked", len(names))

        self._publisher.publish((Drop(names), Gone(names)), done)
