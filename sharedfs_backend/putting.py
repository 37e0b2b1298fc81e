"""Storing: from batches of chunks to committed packs, off the request's thread.

    submit -> linger (coalesce scheduler steps) -> cut: drop what the catalog has, group, split
           -> reserve credit -> write packs in parallel -> publish one commit record -> done

Nobody hears of a pack before its record is published, and a task is done only after that, so its
buffers are lent until then; each is read inside the task's gate (I7). A store that cannot be done
(no room, sick disk, too late, too much queued) is dropped and counted; it never fails a request
(I6). Memory, queue and packs in flight are bounded (I9).

Decisions about what to write where are in `cut`, which is pure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sharedfs_backend.capacity import Credits, Refusal
from sharedfs_backend.context import Context
from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.gate import Gate
from sharedfs_backend.layout import (
    CHUNKS_PER_PACK_MAX,
    Commit,
    LayoutDescriptor,
    PackCommit,
    PackName,
    pack_digest,
)
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.publisher import Publisher
from sharedfs_backend.realms import Realm
from sharedfs_backend.runtime import Lane, LaneFull
from sharedfs_backend.writer import PackJob, PackWriter, WriteOutcome, WrittenPack

PARALLEL_PACK_BYTES = 32 << 20
"""A batch is split for parallel writing once each part would still be this large: file systems
admit one writer of a file at a time, but every further pack costs an open on loading."""
PARALLEL_PACKS = 4
CANCEL_SECONDS = 10.0
LINGER_ENOUGH_BYTES = 64 << 20
"""A batch of this size gains nothing from waiting for more."""


@dataclass(frozen=True, slots=True, eq=False)
class PutItem:
    """One chunk to store. `buffer` is C-contiguous and stays valid until the task is done."""

    key: bytes
    buffer: memoryview
    layout: LayoutDescriptor
    rank: int = 0


class PutTask:
    """A store under way. Lists are by item and valid once done.

    `stored`: this task wrote and published it. `present`: it is in the namespace, by whomever.
    `failed`: why some are not, or None.
    """

    def __init__(
        self,
        realm: Realm,
        items: Sequence[PutItem],
        submitted: float,
        on_done: Callable[[PutTask], None] | None,
        gate: Gate,
    ) -> None:
        self.realm = realm
        self.items = items
        self.submitted = submitted
        self.gate = gate
        self.stored = [False] * len(items)
        self.present = [False] * len(items)
        self.bytes_written = 0
        self.failed: str | None = None
        self._on_done = on_done
        self._left = len(items)
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return sum(item.buffer.nbytes for item in self.items)

    @property
    def is_done(self) -> bool:
        return self._left == 0

    def settle(self, index: int, *, stored: bool, present: bool, failed: str | None = None) -> None:
        """Item `index` is decided; the last one completes the task."""
        with self._lock:
            self.stored[index] = stored
            self.present[index] = present
            if stored:
                self.bytes_written += self.items[index].buffer.nbytes
            if failed is not None and self.failed is None:
                self.failed = failed
            self._left -= 1
            last = self._left == 0
        if last:
            self.finish()

    def finish(self) -> None:
        """Everything is decided; nobody may read the buffers any more."""
        self.gate.shut(CANCEL_SECONDS)
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(self)

    def cancel(self, timeout_seconds: float = CANCEL_SECONDS) -> bool:
        """Whether nobody reads the buffers any more; what is not stored yet will not be.

        False only when a write that reads them has been stuck in the kernel all that time.
        """
        return self.gate.shut(timeout_seconds)


Part = tuple[PutTask, int]
"""An item of a task: (task, index)."""


def item_of(part: Part) -> PutItem:
    return part[0].items[part[1]]


@dataclass(slots=True)
class Waiting:
    """A realm's lingering parts."""

    realm: Realm
    parts: list[Part] = field(default_factory=list)
    nbytes: int = 0
    due: float = 0.0


@dataclass(slots=True, eq=False)
class Batch:
    """Packs of one cut, published together."""

    left: int
    written: list[tuple[WrittenPack, list[Part]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def cut(parts: Sequence[Part], pack_bytes_max: int) -> list[list[Part]]:
    """Parts grouped by layout and rank, in order, split into packs of at most `pack_bytes_max`.

    A chunk larger than that gets a pack of its own.
    """
    groups: dict[tuple[LayoutDescriptor, int], list[Part]] = {}
    for part in parts:
        item = item_of(part)
        groups.setdefault((item.layout, item.rank), []).append(part)
    packs: list[list[Part]] = []
    for group in groups.values():
        total = sum(item_of(part).buffer.nbytes for part in group)
        count = max(-(-total // pack_bytes_max), min(PARALLEL_PACKS, total // PARALLEL_PACK_BYTES))
        target = -(-total // max(1, count))
        pack: list[Part] = []
        size = 0
        for part in group:
            nbytes = item_of(part).buffer.nbytes
            over = size + nbytes > min(pack_bytes_max, target + nbytes // 2)
            if pack and (over or len(pack) >= CHUNKS_PER_PACK_MAX):
                packs.append(pack)
                pack, size = [], 0
            pack.append(part)
            size += nbytes
        if pack:
            packs.append(pack)
    return packs


class Putter:
    """See the module. `audit(realm, parts)` is shown what others have stored already."""

    def __init__(
        self,
        context: Context,
        ledger: Ledger,
        publisher: Publisher,
        writer: PackWriter,
        *,
        credits: Credits,
        pack_bytes_max: Callable[[], int],
        audit: Callable[[Realm, list[Part]], None],
        on_refused: Callable[[Refusal], None],
        on_stored: Callable[[PackCommit], None],
        on_unpublished: Callable[[Sequence[PackName]], None],
        wake: Callable[[], None],
    ) -> None:
        settings = context.settings
        self._files = context.files
        self._runtime = context.runtime
        self._seal = context.seal
        self._stats = context.stats
        self._align_bytes = context.profile.align_bytes
        self._unlink_own_failures = not context.profile.orphans_offline_only
        self._linger_seconds = settings.linger_seconds
        self._linger_bytes = min(settings.linger_bytes_max, LINGER_ENOUGH_BYTES)
        self._queue_bytes_max = settings.queue_bytes_max
        self._buffer_ttl_seconds = settings.buffer_ttl_seconds
        self._ledger = ledger
        self._publisher = publisher
        self._writer = writer
        self._credits = credits
        self._pack_bytes_max = pack_bytes_max
        self._audit = audit
        self._on_refused = on_refused
        self._on_stored = on_stored
        self._on_unpublished = on_unpublished
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: dict[bytes, Waiting] = {}
        self._queued_bytes = 0
        self._seq = 0
        self._in_flight: dict[tuple[bytes, bytes, bytes], list[Part]] = {}
        self._tasks: set[PutTask] = set()
        self._closed = False

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    # -- taking in ---------------------------------------------------------------------------

    def submit(
        self,
        realm: Realm,
        items: Sequence[PutItem],
        on_done: Callable[[PutTask], None] | None,
    ) -> PutTask:
        """Queue a store; no I/O. `on_done` runs on a worker (or here, if nothing is to be done)."""
        now = self._runtime.now()

        def done(task: PutTask) -> None:
            with self._lock:
                self._tasks.discard(task)
                self._queued_bytes -= nbytes
            if on_done is not None:
                on_done(task)

        task = PutTask(realm, items, now, done, Gate(self._runtime.waiter))
        nbytes = task.nbytes
        with self._lock:
            self._queued_bytes += nbytes
            self._tasks.add(task)
            refused = self._closed or self._queued_bytes > self._queue_bytes_max
        if not items:
            task.finish()
            return task
        if refused:
            self._stats.once(
                "stores_dropped_queue",
                "a store of %d bytes was dropped: %d bytes are queued already",
                nbytes,
                self._queued_bytes,
            )
            self._drop([(task, index) for index in range(len(items))], "queue full")
            return task
        with self._lock:
            waiting = self._waiting.get(realm.digest)
            if waiting is None:
                waiting = Waiting(realm, due=now + self._linger_seconds)
                self._waiting[realm.digest] = waiting
            waiting.parts += [(task, index) for index in range(len(items))]
            waiting.nbytes += nbytes
            ready = waiting.nbytes >= self._linger_bytes or self._linger_seconds == 0
            if ready:
                del self._waiting[realm.digest]
        if ready:
            self._start(waiting)
        else:
            self._wake()
        return task

    def next_due(self) -> float | None:
        """When the next lingering batch is to be started."""
        with self._lock:
            return min((waiting.due for waiting in self._waiting.values()), default=None)

    def start_due(self, now: float) -> None:
        """Start the batches that have lingered long enough."""
        with self._lock:
            due = [waiting for waiting in self._waiting.values() if waiting.due <= now]
            for waiting in due:
                del self._waiting[waiting.realm.digest]
        for waiting in due:
            self._start(waiting)

    def _start(self, waiting: Waiting) -> None:
        self._on_lane(lambda: self._cut(waiting.realm, waiting.parts), waiting.parts)

    def _on_lane(self, work: Callable[[], None], parts: list[Part]) -> None:
        try:
            self._runtime.submit(Lane.WRITE, work)
        except LaneFull:
            self._stats.add("stores_dropped_lane")
            self._drop(parts, "no worker")

    def _drop(self, parts: Sequence[Part], reason: str) -> None:
        self._stats.add("chunks_dropped", len(parts))
        for task, index in parts:
            task.settle(index, stored=False, present=False, failed=reason)

    # -- cutting -----------------------------------------------------------------------------

    def _cut(self, realm: Realm, parts: list[Part]) -> None:
        if self._publisher.writer is None:
            self._publisher.ensure_writer(lambda done: self._cut_as(realm, parts, done))
        else:
            self._cut_as(realm, parts, True)

    def _cut_as(self, realm: Realm, parts: list[Part], has_writer: bool) -> None:
        writer = self._publisher.writer
        if not has_writer or writer is None:
            self._stats.add("stores_dropped_journal")
            self._drop(parts, "no journal")
            return
        wanted, attached = self._new_parts(realm, parts)
        packs = cut(wanted, self._pack_bytes_max())
        batch = Batch(left=len(packs))
        jobs = [self._job(realm, pack, writer) for pack in packs]
        for job, pack in zip(jobs, packs, strict=True):
            refusal = self._credits.reserve(job.total_bytes, self._runtime.now())
            if refusal is not None:
                self._refused(refusal, pack)
                self._pack_done(batch, None, pack)
                continue
            self._start_pack(batch, job, pack)
        if attached:
            self._audit_and_settle(realm, attached)

    def _new_parts(self, realm: Realm, parts: list[Part]) -> tuple[list[Part], list[Part]]:
        """(what must be written, what others have stored); the rest waits for those writing it."""
        present = self._present(realm, parts)
        wanted: list[Part] = []
        there: list[Part] = []
        quarantined: list[Part] = []
        for part, is_present in zip(parts, present, strict=True):
            item = item_of(part)
            if self._ledger.is_quarantined(realm.digest, item.rank):
                quarantined.append(part)
                continue
            if is_present:
                there.append(part)
                continue
            place = (realm.digest, self._ledger.fingerprint(item.layout), item.key)
            with self._lock:
                followers = self._in_flight.get(place)
                if followers is None:
                    self._in_flight[place] = []
                    wanted.append(part)
                else:
                    followers.append(part)
        self._stats.add("chunks_deduplicated", len(parts) - len(wanted) - len(quarantined))
        if quarantined:
            self._drop(quarantined, "sharing has stopped for this realm and rank (audit)")
        return wanted, there

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
        self._stats.once(
            f"stores_dropped_{refusal.name.lower()}",
            "a store of %d chunks was dropped: %s",
            len(pack),
            refusal.value,
        )
        self._on_refused(refusal)

    # -- writing and publishing ----------------------------------------------------------------

    def _start_pack(self, batch: Batch, job: PackJob, pack: list[Part]) -> None:
        def work() -> None:
            outcome = self._writer.write(job)
            self._written(batch, job, pack, outcome)

        try:
            self._runtime.submit(Lane.WRITE, work)
        except LaneFull:
            self._stats.add("stores_dropped_lane")
            self._credits.settle(job.total_bytes)
            self._pack_done(batch, None, pack)

    def _written(self, batch: Batch, job: PackJob, pack: list[Part], outcome: WriteOutcome) -> None:
        if outcome.written is not None:
            self._pack_done(batch, outcome.written, pack)
            return
        self._stats.add(f"stores_failed_{outcome.reason}")
        if outcome.created:
            self._clear_failed(job)
        self._credits.settle(job.total_bytes)
        if outcome.failure is not None and outcome.failure.kind is FailureKind.NO_SPACE:
            self._on_refused(Refusal.FULL)
        self._pack_done(batch, None, pack)

    def _clear_failed(self, job: PackJob) -> None:
        """Our own unfinished file: closed, never to be written again, named by nobody."""
        self._ledger.see_orphan(job.name, job.total_bytes)
        if not self._unlink_own_failures:
            return
        try:
            self._files.unlink(job.name.path)
        except FileFailure as failure:
            if failure.kind is not FailureKind.MISSING:
                self._on_unpublished((job.name,))  # counted as an orphan until it is cleared
                return
        self._ledger.orphan_gone(job.name)

    def _pack_done(self, batch: Batch, written: WrittenPack | None, pack: list[Part]) -> None:
        with batch.lock:
            batch.left -= 1
            last = batch.left == 0
            if written is not None:
                batch.written.append((written, pack))
        if written is None:
            self._settle(pack, stored=False, failed="not written")
        if last and batch.written:
            self._publish(batch)

    def _publish(self, batch: Batch) -> None:
        commits = tuple(written.commit for written, _ in batch.written)

        def done(published: bool) -> None:
            for written, pack in batch.written:
                if not published:
                    self._ledger.see_orphan(written.commit.name, written.commit.total_bytes)
                    self._on_unpublished((written.commit.name,))
                else:
                    self._on_stored(written.commit)
                    self._stats.add("packs_stored")
                    self._stats.add("chunks_stored", len(pack))
                    self._stats.add("bytes_stored", written.payload_bytes)
                self._credits.settle(written.commit.total_bytes)
                self._settle(pack, stored=published, failed=None if published else "not published")

        self._publisher.publish((Commit(commits),), done)

    def _settle(self, pack: list[Part], *, stored: bool, failed: str | None) -> None:
        for task, index in pack:
            item = task.items[index]
            place = (task.realm.digest, self._ledger.fingerprint(item.layout), item.key)
            with self._lock:
                followers = self._in_flight.pop(place, [])
            task.settle(index, stored=stored, present=stored, failed=failed)
            for follower, at in followers:
                follower.settle(at, stored=False, present=stored, failed=failed)

    def _audit_and_settle(self, realm: Realm, parts: list[Part]) -> None:
        self._audit(realm, parts)
        for task, index in parts:
            task.settle(index, stored=False, present=True)

    # -- the end -----------------------------------------------------------------------------

    def close(self) -> list[PutTask]:
        """Take nothing more in; the tasks that are still under way."""
        with self._lock:
            self._closed = True
            lingering = list(self._waiting.values())
            self._waiting.clear()
            tasks = list(self._tasks)
        for waiting in lingering:
            self._start(waiting)
        return tasks
