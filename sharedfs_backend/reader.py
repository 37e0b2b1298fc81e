"""PackReader: loads chunks from packs. Pieces in parallel, verified in cache, copied in the gate.

A load is planned into pieces (readplan.py) that workers of Lane.READ take from one queue, as many
at a time as the mount's latency asks for (depth.py). A worker reads into a private buffer, verifies
unit by unit and copies what belongs to whom inside the task's gate; what the mount has in memory
goes there at once (readstep.py). It never waits for another read. Whatever goes wrong is a miss for
the chunks concerned (misses.py): counted by kind, logged once by kind.

Keeps I2 and I7 (with readtask.py), I6: a task ends at its deadline, counted from submit, whatever
its reads do (`expire`, `ReadTask.wait`); I9: queue, buffers, handles and depth have a maximum, and
a read that never returns costs one worker and one buffer. Thread-safe. Knows nothing of catalogs.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sharedfs_backend.buffers import BufferPool, PrivateBuffer
from sharedfs_backend.depth import ReadDepth
from sharedfs_backend.fdcache import FdCache, Lease
from sharedfs_backend.files import CheckedLoad, FailureKind, FileFailure, Files, Handle
from sharedfs_backend.layout.seal import UNIT_BYTES, Seal
from sharedfs_backend.misses import Miss, MissKind, kind_of_open_failure, kind_of_read_failure
from sharedfs_backend.native import Loops
from sharedfs_backend.readplan import ChunkRead, Piece, plan_reads
from sharedfs_backend.readqueue import PIECES_MAX, ReadQueue
from sharedfs_backend.readstep import (
    Fill,
    copy_verified,
    load_checked,
    parts_of,
    read_in_place,
    verifiers,
)
from sharedfs_backend.readtask import Destination, ReadTask
from sharedfs_backend.rules import Rules
from sharedfs_backend.runtime import Lane, LaneFull, Runtime

if TYPE_CHECKING:
    from sharedfs_backend.files import Buffer

logger = logging.getLogger("sharedfs.reader")

UNITS_IN_PLACE_MAX = 4
"""In a piece that may come from memory: all of it is one call, and between two calls a worker's own
state has left the caches (docs/bench-l2.md)."""
SHARES_IN_PLACE = 4
"""Such pieces for each worker at least, so that one that is held up leaves its work to others."""

_SILENT = {MissKind.CANCELLED, MissKind.CLOSED}


class PackReader:
    """Loads of one process. Closed by `close`, which ends what is under way."""

    def __init__(
        self,
        files: Files,
        runtime: Runtime,
        seal: Seal,
        *,
        fds: FdCache,
        buffers: BufferPool,
        depth: ReadDepth,
        fill: Fill | None = None,
        loops: Loops | None = None,
        load: CheckedLoad | None = None,
        pieces_max: int = PIECES_MAX,
        rules: Rules | None = None,
    ) -> None:
        """`fill`: reads in place, where the mount can tell what it has in memory. `loops`: used
        for verifying and copying as far as the seal allows; with `load` for the reads too."""
        self._files = files
        self._runtime = runtime
        self._seal = seal
        self._fds = fds
        self._buffers = buffers
        self._fill = fill
        self._verifier = verifiers(seal, loops)
        usable = loops is not None and not seal.keyed
        self._load_checked = load if usable else None
        self._doors = loops.doors if loops is not None and self._load_checked is not None else None
        self._gated = (rules or Rules()).gate_copies
        self._depth = depth
        self._queue = ReadQueue(depth, buffers.buffers_max, pieces_max)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._logged: set[MissKind] = set()

    # -- submitting ----------------------------------------------------------------------------

    def now(self) -> float:
        return self._runtime.now()

    def submit(
        self,
        reads: Sequence[ChunkRead],
        destinations: Sequence[Buffer],
        *,
        deadline: float,
        on_done: Callable[[ReadTask], None] | None = None,
    ) -> ReadTask:
        """Start loading `reads[i]` into `destinations[i]` (writable, contiguous, of its length).

        `deadline` is an instant of `Runtime.now`. `on_done` is called once, on some thread (this
        one if there is nothing to wait for), without any lock held, when the outcomes stand and no
        destination will be touched again. Never waits for I/O."""
        task = ReadTask(
            self,
            reads,
            [_writable(one) for one in destinations],
            seal=self._seal,
            deadline=deadline,
            on_done=on_done,
            waiter=self._runtime.waiter,
            gated=self._gated,
            doors=None if self._doors is None else self._doors(len(reads)),
        )
        self._count("loads")
        if task.prepare():
            self.end(task)
            return task
        refused = self._queue.admit(task, plan_reads(reads, self._piece_bytes(reads)))
        if refused is not None:
            self.end(task, refused)
        else:
            self._start_workers()
        return task

    def _piece_bytes(self, reads: Sequence[ChunkRead]) -> int:
        """How much one worker reads at a time."""
        units = 1
        if self._fill is not None:
            total = sum(read.length for read in reads)
            shares = SHARES_IN_PLACE * self._depth.value * UNIT_BYTES
            units = min(UNITS_IN_PLACE_MAX, max(1, total // shares))
        return max(units * UNIT_BYTES, self._buffers.buffer_bytes)

    def _start_workers(self) -> None:
        """As many as the depth allows and the queue can feed."""
        wanted = self._queue.hire()
        for started in range(wanted):
            try:
                self._runtime.submit(Lane.READ, self._work)
            except LaneFull:
                if self._queue.dismiss(wanted - started):
                    self._end_all(MissKind.BUSY)
                return

    # -- working -------------------------------------------------------------------------------

    def _work(self) -> None:
        """A worker: takes pieces until there is none, or more workers than the depth wants."""
        while (taken := self._queue.take()) is not None:
            task, piece = taken
            is_last = False
            try:
                if task.is_wanted(piece):
                    is_last = self._load(task, piece)
            except Exception as error:  # our own mistake: it costs this piece, not the worker
                logger.exception("reading pack %s", piece.pack.path)
                is_last = task.fail(piece, Miss(MissKind.IO, repr(error)))
            finally:
                self._queue.returned(task)
            if is_last:
                self.end(task)

    def _load(self, task: ReadTask, piece: Piece) -> bool:
        """One piece; a stale handle is renewed once. True if it decided the last chunk."""
        lease = self._lease(task, piece)
        if isinstance(lease, bool):
            return lease
        failure = self._read(task, piece, lease)
        if isinstance(failure, bool):
            return failure
        if failure.kind is FailureKind.STALE:
            self._count("reopens")
            lease = self._lease(task, piece)
            if isinstance(lease, bool):
                return lease
            failure = self._read(task, piece, lease)
            if isinstance(failure, bool):
                return failure
        return task.fail(piece, Miss(kind_of_read_failure(failure.kind), str(failure)))

    def _lease(self, task: ReadTask, piece: Piece) -> Lease | bool:
        """A lease on the piece's pack. Else (parked, or failed) whether that decided the last."""
        task.queue.parked_at.add(piece.pack)
        found = self._fds.acquire(piece.pack, task, partial(self._resume, task, piece))
        if found is None:
            return False
        if isinstance(found, Lease):
            return found
        try:
            self._count("opens")
            handle = self._files.open_read(piece.pack.path)
        except FileFailure as failure:
            self._fds.failed(found, failure)
            return task.fail_pack(piece.pack, _open_miss(failure))
        lease = self._fds.opened(found, handle)
        self._start_workers()
        return lease

    def _resume(self, task: ReadTask, piece: Piece, failure: FileFailure | None) -> None:
        """Another worker opened the pack `piece` waits for, or could not."""
        if failure is None:
            self._queue.put_back(task, piece)
        elif task.fail_pack(piece.pack, _open_miss(failure)):
            self.end(task)

    def _read(self, task: ReadTask, piece: Piece, lease: Lease) -> bool | FileFailure:
        """Whether this piece decided the last chunk, or why it could not be read at all."""
        buffer = self._buffers.acquire()
        is_stale = False
        try:
            if buffer is None:
                return task.fail(piece, Miss(MissKind.BUSY, "no private buffer is free"))
            return self._read_into(task, piece, lease.handle, buffer)
        except FileFailure as failure:
            is_stale = failure.kind is FailureKind.STALE
            return failure
        finally:
            if buffer is not None:
                self._buffers.release(buffer)
            self._fds.release(lease, discard=is_stale)

    def _read_into(
        self, task: ReadTask, piece: Piece, handle: Handle, buffer: PrivateBuffer
    ) -> bool:
        """From memory straight to its place, if that is where it is; else in steps of at most a
        buffer, each verified and copied while it is warm."""
        now, size = self._runtime.now, self._buffers.buffer_bytes
        began = now()
        if self._fill is not None:
            is_last = read_in_place(task, piece, handle, self._fill, buffer)
            if is_last is not None:
                self._note_read(piece, 0.0, now() - began, float("inf"), in_place=True)
                return is_last
        if self._load_checked is not None and task.gate.doors is not None:
            found = load_checked(task, task.gate.doors, piece, handle, self._load_checked, buffer)
            if found is None:
                return self._fail_short(task, piece, f"fewer than {piece.length} bytes")
            loaded, is_last = found
            self._note_read(
                piece, loaded.read_seconds, loaded.busy_seconds, loaded.quickest_seconds
            )
            return is_last
        read_seconds = busy_seconds = 0.0
        quickest_seconds = float("inf")
        is_last = False
        at = 0
        verifier = self._verifier()
        for start in range(0, piece.length, size):
            length = min(size, piece.length - start)
            began = now()
            got = self._files.read(handle, piece.offset + start, buffer.view[:length])
            came = now()
            if got != length:
                detail = f"wanted {length} bytes at {piece.offset + start}, found {got}"
                return self._fail_short(task, piece, detail)
            parts = parts_of(piece.spans, at, start, start + length)
            at += sum(part.ends for part in parts)
            is_last |= copy_verified(task, parts, buffer, verifier)
            read_seconds += came - began
            quickest_seconds = min(quickest_seconds, came - began)
            busy_seconds += now() - came
        self._note_read(piece, read_seconds, busy_seconds, quickest_seconds)
        return is_last

    def _fail_short(self, task: ReadTask, piece: Piece, detail: str) -> bool:
        # An NFS handle never sees more than when it was opened: the next try has a new one.
        self._fds.forget(piece.pack)
        return task.fail(piece, Miss(MissKind.SHORT, detail))

    def _note_read(
        self,
        piece: Piece,
        read_seconds: float,
        busy_seconds: float,
        quickest_seconds: float,
        *,
        in_place: bool = False,
    ) -> None:
        reads = -(-piece.length // self._buffers.buffer_bytes)
        with self._lock:
            self._counts["reads"] += reads
            self._counts["reads_in_place"] += in_place
            self._counts["bytes_read"] += piece.length
        if self._queue.observe(read_seconds, busy_seconds, reads, quickest_seconds):
            self._start_workers()

    # -- ending --------------------------------------------------------------------------------

    def end(self, task: ReadTask, kind: MissKind = MissKind.CLOSED) -> None:
        """The task is over: what is not decided by now is a miss of this kind. Idempotent."""
        if not task.end(kind):
            return
        self._queue.drop(task)
        for name in task.queue.parked_at:
            self._fds.unpark(name, task)
        loaded = task.loaded
        with self._lock:
            self._counts["chunks_loaded"] += sum(loaded)
            self._counts["bytes_loaded"] += sum(
                read.length for read, is_loaded in zip(task.reads, loaded, strict=True) if is_loaded
            )
        task.report()
        self._start_workers()  # its workers may be lost: others take their place

    def expire(self, now: float) -> float | None:
        """End every task whose deadline has come; the next deadline, if there is one.

        For a timer: loads waited for with `ReadTask.wait` end themselves."""
        tasks = self._queue.tasks()
        for task in tasks:
            if task.deadline <= now:
                self.end(task, MissKind.DEADLINE)
        return min((task.deadline for task in tasks if task.deadline > now), default=None)

    def _end_all(self, kind: MissKind) -> None:
        for task in self._queue.tasks():
            self.end(task, kind)

    def end_all(self) -> None:
        """Every task ends, none is taken any more, no destination is touched. No I/O."""
        self._queue.close()
        for task in self._queue.tasks():
            self.end(task, MissKind.CLOSED)
            task.gate.shut()  # somebody else may have been ending it

    def close(self) -> None:
        """The same, and idle handles are closed, on this thread."""
        self.end_all()
        self._fds.close()

    # -- telling -------------------------------------------------------------------------------

    def note_miss(self, read: ChunkRead, miss: Miss) -> None:
        """Count a miss; log the first of its kind."""
        with self._lock:
            self._counts[f"miss_{miss.kind.value}"] += 1
            if miss.kind in self._logged or miss.kind in _SILENT:
                return
            self._logged.add(miss.kind)
        logger.warning(
            "load miss (%s) in pack %s, chunk at %d of %d bytes: %s; "
            "further ones of this kind are only counted",
            miss.kind.value,
            read.pack.path,
            read.offset,
            read.length,
            miss.detail or "not decided in time",
        )

    def stats(self) -> dict[str, int]:
        """Counters since the start, and gauges."""
        with self._lock:
            counts = dict(self._counts)
        held = {"open_packs": len(self._fds), "buffer_bytes": self._buffers.bytes_held}
        return counts | self._queue.gauges() | held

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1


def _open_miss(failure: FileFailure) -> Miss:
    return Miss(kind_of_open_failure(failure.kind), str(failure))


def _writable(destination: Buffer) -> Destination:
    """The caller's memory as a flat array. Raises ValueError if it cannot be written."""
    view = memoryview(destination)
    if not view.nbytes:
        return None
    if view.readonly:
        raise ValueError("a destination is read-only")
    return np.frombuffer(view, np.uint8)
