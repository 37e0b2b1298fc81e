"""Putting: taking stores in. A queue with a linger in front of `storing`, and a time to give up.

    submit -> linger (coalesce scheduler steps) -> store, on the write lane -> done

A task is done only when its record is published, so its buffers are lent until then; each is read
inside the task's gate (I7). A store that cannot be done (sick disk, too late, too much queued) is
dropped and counted; it never fails a request, and its task ends within the buffers' time to live
whatever hangs (I6). Bytes queued are bounded (I9). Never does I/O itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sharedfs_backend.context import Context
from sharedfs_backend.gate import Gate
from sharedfs_backend.packjob import LATE
from sharedfs_backend.puttask import Part, PutItem, PutTask
from sharedfs_backend.realms import Realm
from sharedfs_backend.runtime import Lane, LaneFull
from sharedfs_backend.storing import Storer

__all__ = ["Part", "PutItem", "PutTask", "Putter"]

log = logging.getLogger("sharedfs_backend")

LINGER_ENOUGH_BYTES = 64 << 20
"""A batch of this size gains nothing from waiting for more."""


@dataclass(slots=True)
class Waiting:
    """A realm's lingering parts."""

    realm: Realm
    parts: list[Part] = field(default_factory=list)
    nbytes: int = 0
    due: float = 0.0


class Putter:
    """See the module. Thread-safe."""

    def __init__(
        self,
        context: Context,
        storer: Storer,
        *,
        healthy: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        settings = context.settings
        self._runtime = context.runtime
        self._stats = context.stats
        self._linger_seconds = settings.linger_seconds
        self._linger_bytes = min(settings.linger_bytes_max, LINGER_ENOUGH_BYTES)
        self._queue_bytes_max = settings.queue_bytes_max
        self._buffer_ttl_seconds = settings.buffer_ttl_seconds
        self._expires = context.rules.check_clock_before_trailer
        self._storer = storer
        self._healthy = healthy
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: dict[bytes, Waiting] = {}
        self._queued_bytes = 0
        self._tasks: dict[PutTask, None] = {}  # in order of submission
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
                self._tasks.pop(task, None)
                self._queued_bytes -= nbytes
            if on_done is not None:
                on_done(task)

        task = PutTask(realm, items, now, done, Gate(self._runtime.waiter))
        nbytes = task.nbytes
        parts = [(task, index) for index in range(len(items))]
        with self._lock:
            before = self._queued_bytes  # a store larger than the queue must have its turn
            has_room = before < self._queue_bytes_max and not self._closed
            self._queued_bytes += nbytes
            self._tasks[task] = None
        if not items:
            task.finish()
        elif not self._healthy():
            self._stats.add("stores_dropped_sick")
            self._storer.drop(parts, "sick")
        elif not (has_room and self._queue(realm, parts, nbytes, now)):
            self._stats.once(
                "stores_dropped_queue",
                "a store of %d bytes was dropped: %d bytes are queued already",
                nbytes,
                before,
            )
            self._storer.drop(parts, "queue full")
        return task

    def _queue(self, realm: Realm, parts: list[Part], nbytes: int, now: float) -> bool:
        """False if the store is closing."""
        with self._lock:
            if self._closed:
                return False
            waiting = self._waiting.get(realm.digest)
            if waiting is None:
                waiting = Waiting(realm, due=now + self._linger_seconds)
                self._waiting[realm.digest] = waiting
            waiting.parts += parts
            waiting.nbytes += nbytes
            ready = waiting.nbytes >= self._linger_bytes or self._linger_seconds == 0
            if ready:
                del self._waiting[realm.digest]
        if ready:
            self._start(waiting)
        else:
            self._wake()
        return True

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
        try:
            self._runtime.submit(
                Lane.WRITE, lambda: self._storer.store(waiting.realm, waiting.parts)
            )
        except LaneFull:
            self._stats.add("stores_dropped_lane")
            self._storer.drop(waiting.parts, "no worker")

    # -- the end -----------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Give up what is too late to be written, wait no longer for what hangs. No I/O.

        Past half of the buffers' time to live a pack without a trailer gets none. What is written
        may still be published; past the whole of it the task ends in any case.
        """
        self._storer.wait_no_longer(now)
        if not self._expires:
            return
        late = now - self._buffer_ttl_seconds / 2
        with self._lock:
            tasks = [task for task in self._tasks if task.submitted < late]
        if not tasks:
            return
        self._storer.hurry(late)
        for task in tasks:
            is_void = now - task.submitted > self._buffer_ttl_seconds
            is_free = task.gate.try_shut()
            if is_void and not is_free:
                self._stats.add("stores_stuck")
            if is_free or is_void:
                try:
                    self._give_up(task, LATE, written=is_void)
                except Exception:  # a mistake of ours must not keep the others, and time, waiting
                    log.exception("a store that is too late could not be given up")

    def _give_up(self, task: PutTask, reason: str, *, written: bool) -> None:
        parts = [(task, index) for index in task.unsettled(written=written)]
        if parts:
            self._stats.add("chunks_given_up", len(parts))
            self._storer.settle(parts, stored=False, failed=reason)

    def close(self) -> list[PutTask]:
        """Take nothing more in; the tasks that are still under way."""
        with self._lock:
            self._closed = True
            lingering = list(self._waiting.values())
            self._waiting.clear()
            tasks = list(self._tasks)
        for waiting in lingering:
            self._start(waiting)
        self._storer.wait_no_longer(None)
        return tasks

    def abandon(self, deadline: float) -> None:
        """End every task: nobody gets at a buffer any more, as far as that can be had in time."""
        with self._lock:
            tasks = list(self._tasks)
        for task in tasks:
            task.gate.try_shut()
        for task in tasks:
            task.cancel(max(0.0, deadline - self._runtime.now()))
            self._give_up(task, "closed", written=True)
