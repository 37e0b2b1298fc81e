"""Storing: from chunks in hand to committed packs. What runs on the write lane.

    sort out what the catalog has -> plan a pack -> reserve credit -> write -> publish -> settle
                                           (or wait for it: `waitlist`)

A chunk is written by one task at a time; others that bring it meanwhile wait for that one. Every
part handed in is settled exactly once, also when the disk is full, the credit spent, a buffer no
flat memory or the code mistaken; credits are settled when the bytes are counted elsewhere or will
never be. After ENOSPC or EDQUOT writing backs off and a sweep is asked for. A pack that could not
be written or published is unlinked again, or counted as an orphan until it is (I5, I6).

Which chunks go into which pack is decided in `cutting`; it knows no queue and no linger. Past 400
lines because every way a part can end is here, once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from sharedfs_backend.capacity import Credits, Refusal, SpaceBackoff
from sharedfs_backend.context import Context
from sharedfs_backend.cutting import Batch, Written, cut
from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.layout import (
    Commit,
    LayoutDescriptor,
    PackCommit,
    PackName,
    pack_digest,
)
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.packjob import CANCELLED
from sharedfs_backend.publisher import Publisher
from sharedfs_backend.puttask import Part, by_task, item_of
from sharedfs_backend.realms import Realm
from sharedfs_backend.runtime import Lane, LaneFull
from sharedfs_backend.waitlist import Unpaid, Waitlist
from sharedfs_backend.writer import PackJob, PackWriter, WriteOutcome, WrittenPack

log = logging.getLogger("sharedfs_backend")

BROKEN = "internal error"
QUARANTINED = "sharing has stopped for this realm and rank (audit)"

Place = tuple[bytes, bytes, bytes]
"""(realm, fingerprint, key) of a chunk."""


@dataclass(slots=True)
class InFlight:
    """A chunk being written, and who else wants it stored."""

    leader: Part
    followers: list[Part] = field(default_factory=list)


class Storer:
    """See the module. Thread-safe. `audit(realm, parts)` is shown what others have stored."""

    def __init__(
        self,
        context: Context,
        ledger: Ledger,
        publisher: Publisher,
        writer: PackWriter,
        *,
        credits: Credits,
        pack_bytes_max: Callable[[], int],
        packs_at_once: int,
        audit: Callable[[Realm, list[Part]], None],
        on_begun: Callable[[PackJob], None],
        on_refused: Callable[[Refusal], None],
        on_stored: Callable[[PackCommit], None],
        on_unpublished: Callable[[Sequence[PackCommit]], None],
        on_left_over: Callable[[Sequence[PackName]], None],
    ) -> None:
        self._files = context.files
        self._runtime = context.runtime
        self._seal = context.seal
        self._stats = context.stats
        self._align_bytes = context.profile.align_bytes
        self._packs_at_once = packs_at_once
        self._unlink_own_failures = not context.profile.orphans_offline_only
        self._buffer_ttl_seconds = context.settings.buffer_ttl_seconds
        self._ledger = ledger
        self._publisher = publisher
        self._writer = writer
        self._credits = credits
        self._pack_bytes_max = pack_bytes_max
        self._audit = audit
        self._on_begun = on_begun
        self._on_refused = on_refused
        self._on_stored = on_stored
        self._on_unpublished = on_unpublished
        self._on_left_over = on_left_over
        self._space = SpaceBackoff()
        self._lock = threading.Lock()
        self._seq = 0
        self._in_flight: dict[Place, InFlight] = {}
        self._batches: dict[Batch, None] = {}
        self._waitlist = Waitlist(context.settings.buffer_ttl_seconds / 4)

    # -- cutting -----------------------------------------------------------------------------

    def store(self, realm: Realm, parts: list[Part]) -> None:
        """Store these, in prefix order. Blocks on I/O; settles every part sooner or later."""
        if self._publisher.writer is None:
            self._publisher.ensure_writer(lambda done: self._cut_as(realm, parts, done))
        else:
            self._cut_as(realm, parts, True)

    def _cut_as(self, realm: Realm, parts: list[Part], has_writer: bool) -> None:
        writer = self._publisher.writer
        if not has_writer or writer is None:
            self._stats.add("stores_dropped_journal")
            self.drop(parts, "no journal")
            return
        wanted: list[Part] = []
        attached: list[Part] = []
        try:
            self._sort_out(realm, parts, wanted, attached)
            packs = cut(wanted, self._pack_bytes_max(), self._packs_at_once)
        except Exception:
            log.exception("a store of %d chunks was given up", len(parts))
            self.settle(parts, stored=False, failed=BROKEN)
            return
        if attached:
            self._audit_and_settle(realm, attached)
            packs = [pack for pack in packs if not self._is_quarantined(realm, pack)]
        if packs:
            self._begin_all(realm, packs, writer)

    def _begin_all(self, realm: Realm, packs: list[list[Part]], writer: str) -> None:
        batch = Batch(len(packs), min(task.submitted for pack in packs for task, _ in pack))
        with self._lock:
            self._batches[batch] = None
        # All are planned before the first is written: planning beside busy writers takes longer.
        jobs = [self._begin(realm, batch, pack, writer) for pack in packs]
        for job, pack in zip(jobs, packs, strict=True):
            if job is not None:
                self._start_pack(batch, job, pack)

    def _is_quarantined(self, realm: Realm, pack: list[Part]) -> bool:
        """The audit has just stopped sharing what this pack would be part of; it is dropped."""
        found = self._ledger.is_quarantined(realm.digest, item_of(pack[0]).rank)
        if found:
            self.drop(pack, QUARANTINED)
        return found

    def _begin(self, realm: Realm, batch: Batch, pack: list[Part], writer: str) -> PackJob | None:
        """One pack: planned and paid for, ready to be written; None if it was given up."""
        now = self._runtime.now()
        refusal: Refusal | None = Refusal.NO_SPACE
        reserved_bytes = 0
        try:
            job = self._job(realm, pack, writer)
            if not self._space.is_waiting(now):
                refusal = self._credits.reserve(job.total_bytes, now)
            if refusal is None:
                reserved_bytes = job.total_bytes
                self._on_begun(job)
        except Exception:  # a buffer that is no flat memory, say: the caller's mistake or ours
            log.exception("a pack of %d chunks was given up", len(pack))
            if reserved_bytes:
                self._credits.settle(reserved_bytes)
            self._pack_done(batch, None, pack, BROKEN)
            return None
        if refusal is None:
            return job
        if self._waitlist.add(Unpaid(realm, pack, job.submitted, refusal), now):
            self._stats.add("stores_waited")
            self._on_refused(refusal)
            self._decide(batch, None, pack)
        else:
            self._decide(batch, None, pack)
            self._refused(refusal, pack)
        return None

    def retry(self) -> None:
        """There is new credit: what waited for it tries again, on a worker."""
        if len(self._waitlist):
            with suppress(LaneFull):  # so much is going on that the next credit will do
                self._runtime.submit(Lane.WRITE, self._retry)

    def _retry(self) -> None:
        self._publisher.ensure_writer(lambda _: self._begin_again(self._waitlist.take()))

    def _begin_again(self, waited: list[Unpaid]) -> None:
        writer = self._publisher.writer
        for unpaid in waited:
            wanted = [part for part in unpaid.pack if not part[0].gate.is_shut]
            self.drop([part for part in unpaid.pack if part not in wanted], CANCELLED)
            if wanted and writer is None:
                self._refused(unpaid.refusal, wanted)
            elif wanted and writer is not None:
                self._begin_all(unpaid.realm, [wanted], writer)

    def wait_no_longer(self, now: float | None) -> None:
        """Drop what has waited long enough for credit; all of it, for good, with `now` None."""
        late = self._waitlist.close() if now is None else self._waitlist.take_late(now)
        for unpaid in late:
            self._refused(unpaid.refusal, unpaid.pack)

    def _sort_out(
        self, realm: Realm, parts: list[Part], wanted: list[Part], there: list[Part]
    ) -> None:
        """Into what must be written and what others have; the rest waits for those writing it."""
        present = self._present(realm, parts)
        quarantined: list[Part] = []
        ranks = {item_of(part).rank for part in parts}
        stopped = {rank for rank in ranks if self._ledger.is_quarantined(realm.digest, rank)}
        places = self._places(parts)
        with self._lock:
            for part, place, is_present in zip(parts, places, present, strict=True):
                if stopped and item_of(part).rank in stopped:
                    quarantined.append(part)
                elif is_present:
                    there.append(part)
                elif (in_flight := self._in_flight.get(place)) is None:
                    self._in_flight[place] = InFlight(part)
                    wanted.append(part)
                else:
                    in_flight.followers.append(part)
        self._stats.add("chunks_deduplicated", len(parts) - len(wanted) - len(quarantined))
        if quarantined:
            self.drop(quarantined, QUARANTINED)

    def _places(self, parts: Sequence[Part]) -> list[Place]:
        """Where each chunk belongs. Neighbours nearly always share their layout object."""
        places: list[Place] = []
        before: LayoutDescriptor | None = None
        fingerprint = b""
        for part in parts:
            item = item_of(part)
            if item.layout is not before:
                before, fingerprint = item.layout, self._ledger.fingerprint(item.layout)
            places.append((part[0].realm.digest, fingerprint, item.key))
        return places

    def _present(self, realm: Realm, parts: list[Part]) -> list[bool]:
        present = [False] * len(parts)
        by_layout: dict[LayoutDescriptor, list[int]] = {}
        for place, part in enumerate(parts):
            by_layout.setdefault(item_of(part).layout, []).append(place)
        for layout, places in by_layout.items():
            space = self._ledger.catalog.known_space(realm.digest, self._ledger.fingerprint(layout))
            if space is None:
                continue
            keys = b"".join(item_of(parts[place]).key for place in places)
            found = self._ledger.catalog.find(keys, space, now=self._runtime.now())
            for place, is_hit in zip(places, found.hits, strict=True):
                present[place] = is_hit
        return present

    def _job(self, realm: Realm, pack: list[Part], writer: str) -> PackJob:
        items = [item_of(part) for part in pack]
        layout = items[0].layout
        fingerprint = self._ledger.fingerprint(layout)
        keys = [item.key for item in items]
        space = self._ledger.catalog.space(realm.digest, fingerprint)
        versions = self._ledger.catalog.highest_versions(b"".join(keys), space)
        with self._lock:
            self._seq += 1
            seq = self._seq
        return PackJob.plan(
            name=PackName(pack_digest(self._seal, realm.digest, fingerprint, keys), writer, seq),
            realm=realm.digest,
            layout=layout,
            fingerprint=fingerprint,
            rank=items[0].rank,
            version=1 + int(np.max(versions, initial=0)),
            keys=tuple(keys),
            buffers=tuple(item.buffer for item in items),
            gates=tuple(task.gate for task, _ in pack),
            submitted=min(task.submitted for task, _ in pack),
            ttl_seconds=self._buffer_ttl_seconds,
            align_bytes=self._align_bytes,
        )

    def _refused(self, refusal: Refusal, pack: list[Part]) -> None:
        self.settle(pack, stored=False, failed=f"not written: {refusal.value}")
        self._stats.once(
            f"stores_dropped_{refusal.name.lower()}",
            "a store of %d chunks was dropped: %s",
            len(pack),
            refusal.value,
        )
        self._on_refused(refusal)

    # -- writing and publishing ----------------------------------------------------------------

    def _write_pack(self, batch: Batch, job: PackJob, pack: list[Part]) -> None:
        try:
            outcome = self._writer.write(job)
        except Exception:
            log.exception("writing pack %s", job.name.path)
            outcome = WriteOutcome(None, created=True, reason="broken")
        self._written(batch, job, pack, outcome)

    def _start_pack(self, batch: Batch, job: PackJob, pack: list[Part]) -> None:
        try:
            self._runtime.submit(Lane.WRITE, lambda: self._write_pack(batch, job, pack))
        except LaneFull:
            self._stats.add("stores_dropped_lane")
            self._credits.settle(job.total_bytes)
            self._pack_done(batch, None, pack, "no worker")

    def _written(self, batch: Batch, job: PackJob, pack: list[Part], outcome: WriteOutcome) -> None:
        if outcome.written is not None:
            self._space.worked()
            for task, index in pack:
                task.note_written(index)
            self._pack_done(batch, outcome.written, pack)
            return
        self._stats.add(f"stores_failed_{outcome.reason}")
        try:
            if outcome.created:
                self._clear_failed(job)
        finally:
            self._credits.settle(job.total_bytes)
            if outcome.failure is not None and outcome.failure.kind is FailureKind.NO_SPACE:
                self._out_of_space()
            self._pack_done(batch, None, pack, outcome.reason)

    def _out_of_space(self) -> None:
        """Write no more for a while, and have room made."""
        self._space.failed(self._runtime.now())
        self._on_refused(Refusal.DISK_FULL)

    def _clear_failed(self, job: PackJob) -> None:
        """Our own unfinished file: closed, never to be written again, named by nobody."""
        self._ledger.see_orphan(job.name, job.total_bytes)
        if not self._unlink_own_failures:
            return
        try:
            self._files.unlink(job.name.path)
        except FileFailure as failure:
            if failure.kind is not FailureKind.MISSING:
                self._on_left_over((job.name,))  # counted as an orphan until it is cleared
                return
        self._ledger.orphan_gone(job.name)

    def _pack_done(
        self, batch: Batch, written: WrittenPack | None, pack: list[Part], failed: str = ""
    ) -> None:
        if written is None:
            self.settle(pack, stored=False, failed=f"not written: {failed}")
        self._decide(batch, written, pack)

    def _decide(self, batch: Batch, written: WrittenPack | None, pack: list[Part]) -> None:
        """One pack less to wait for; the last one publishes the batch."""
        ready = batch.decided(written, pack)
        if batch.is_over:
            with self._lock:
                self._batches.pop(batch, None)
        if ready:
            self._publish(ready)

    def _publish(self, ready: Written) -> None:
        commits = tuple(written.commit for written, _ in ready)

        def done(published: bool) -> None:
            for written, pack in ready:
                try:
                    self._tell(published, written, len(pack))
                finally:
                    self._credits.settle(written.commit.total_bytes)
                    failed = None if published else "not published"
                    self.settle(pack, stored=published, failed=failed)
            for commit in commits if published else ():  # nobody has to wait for this
                self._on_stored(commit)
            if not published and self._publisher.is_full:
                self._out_of_space()

        self._publisher.publish((Commit(commits),), done)

    def _tell(self, published: bool, written: WrittenPack, chunks: int) -> None:
        commit = written.commit
        if not published:
            self._ledger.see_orphan(commit.name, commit.total_bytes)
            self._on_unpublished((commit,))
            return
        self._stats.add("packs_stored")
        self._stats.add("chunks_stored", chunks)
        self._stats.add("bytes_stored", written.payload_bytes)

    # -- settling ------------------------------------------------------------------------

    def settle(self, pack: Sequence[Part], *, stored: bool, failed: str | None) -> None:
        """Decide these parts, and those that wait for them."""
        followers: list[Part] = []
        places = self._places(pack)
        with self._lock:
            for part, place in zip(pack, places, strict=True):
                held = self._in_flight.get(place)
                if held is not None and held.leader == part:
                    followers += held.followers
                    del self._in_flight[place]
        for task, indexes in by_task(pack):
            task.settle(indexes, stored=stored, present=stored, failed=failed)
        for task, indexes in by_task(followers):
            task.settle(indexes, stored=False, present=stored, failed=failed)

    def drop(self, parts: Sequence[Part], reason: str) -> None:
        """Parts that nobody began to write."""
        self._stats.add("chunks_dropped", len(parts))
        self.settle(parts, stored=False, failed=reason)

    def _audit_and_settle(self, realm: Realm, parts: list[Part]) -> None:
        """What others have: compared now and then, before anything is written beside it (I8)."""
        try:
            self._audit(realm, parts)
        except Exception:
            log.exception("an audit was given up")
        for part in parts:
            task, index = part
            if self._ledger.is_quarantined(realm.digest, item_of(part).rank):
                self.drop([part], QUARANTINED)
            else:
                task.settle((index,), stored=False, present=True)

    # -- not waiting any longer ----------------------------------------------------------------

    def hurry(self, submitted_before: float) -> None:
        """Publish what is written of batches that are kept by a hung write. No I/O."""
        with self._lock:
            late = [batch for batch in self._batches if batch.submitted < submitted_before]
        for batch in late:
            ready = batch.hurry()
            if ready:
                self._publish_later(ready)

    def _publish_later(self, ready: Written) -> None:
        try:
            self._runtime.submit(Lane.WRITE, lambda: self._publish(ready))
        except LaneFull:
            for written, pack in ready:
                self._tell(False, written, len(pack))
                self._credits.settle(written.commit.total_bytes)
                self.settle(pack, stored=False, failed="no worker")
