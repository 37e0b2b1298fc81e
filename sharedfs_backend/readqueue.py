"""ReadQueue: which piece is read next, and by how many workers. Decisions and counts, no I/O.

First come, first served by task; at most `ReadDepth.value` workers, leaving out those lost in a
call whose task has ended (they may never return; others take their place while buffers last).
Bounded (I9): `pieces_max` pieces of unfinished tasks, whether waiting, being read, or parked until
another worker has opened their pack. Thread-safe; its lock is held around arithmetic only.

It must not know files, handles or memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from sharedfs_backend.depth import ReadDepth
from sharedfs_backend.misses import MissKind
from sharedfs_backend.readplan import Piece
from sharedfs_backend.readtask import ReadTask

PIECES_MAX = 65536
"""256 GiB of 4 MiB pieces: some ten MiB of bookkeeping."""


class ReadQueue:
    """Pieces of all unfinished tasks, and the workers that take them."""

    def __init__(self, depth: ReadDepth, buffers_max: int, pieces_max: int = PIECES_MAX) -> None:
        self._depth = depth
        self._buffers_max = buffers_max
        self._pieces_max = pieces_max
        self._lock = threading.Lock()
        self._closed = False
        self._tasks: dict[int, ReadTask] = {}
        self._queue: deque[ReadTask] = deque()  # those with pending pieces
        self._pieces = 0
        self._workers = 0  # at work or about to be; the lost are among them
        self._lost = 0

    def admit(self, task: ReadTask, pieces: Sequence[Piece]) -> MissKind | None:
        """Queue a new task's pieces; else why not."""
        with self._lock:
            if self._closed:
                return MissKind.CLOSED
            if self._pieces + len(pieces) > self._pieces_max:
                return MissKind.BUSY
            self._tasks[id(task)] = task
            self._pieces += len(pieces)
            task.queue.pieces = len(pieces)
            self._enqueue(task, pieces)
        return None

    def put_back(self, task: ReadTask, piece: Piece) -> None:
        """A piece that had to wait for something can be read now."""
        with self._lock:
            if not task.queue.is_over:
                self._enqueue(task, (piece,))

    def hire(self) -> int:
        """How many more workers should start now; they count as started."""
        with self._lock:
            waiting = sum(len(task.queue.pending) for task in self._queue)
            wanted = max(0, min(self._limit() - (self._workers - self._lost), waiting))
            self._workers += wanted
            return wanted

    def dismiss(self, workers: int) -> bool:
        """Hired ones that could not start. True if nobody is left to do the work."""
        with self._lock:
            self._workers -= workers
            return self._workers == 0

    def take(self) -> tuple[ReadTask, Piece] | None:
        """A worker's next piece, or None: this worker is done."""
        with self._lock:
            while self._queue and self._workers - self._lost <= self._limit():
                task = self._queue[0]
                if task.queue.pending:
                    task.queue.in_flight += 1
                    return task, task.queue.pending.popleft()
                task.queue.is_queued = False
                self._queue.popleft()
            self._workers -= 1
            return None

    def returned(self, task: ReadTask) -> None:
        """The worker is back from the piece it took."""
        with self._lock:
            task.queue.in_flight -= 1
            if task.queue.is_over:
                self._lost -= 1

    def drop(self, task: ReadTask) -> None:
        """The task has ended: nobody takes its pieces, whoever is reading one counts as lost."""
        with self._lock:
            task.queue.is_over = True
            task.queue.pending.clear()
            self._lost += task.queue.in_flight
            self._pieces -= task.queue.pieces
            self._tasks.pop(id(task), None)

    def observe(
        self, read_seconds: float, busy_seconds: float, reads: int, quickest_seconds: float
    ) -> bool:
        """What a piece took. True if more workers are wanted than before."""
        with self._lock:
            before = self._depth.value
            after = self._depth.observe(
                read_seconds, busy_seconds, reads=reads, quickest_seconds=quickest_seconds
            )
            return after > before

    def tasks(self) -> list[ReadTask]:
        """The unfinished ones, oldest first."""
        with self._lock:
            return list(self._tasks.values())

    def close(self) -> None:
        """No task is admitted from now on."""
        with self._lock:
            self._closed = True

    def gauges(self) -> dict[str, int]:
        with self._lock:
            return {
                "tasks": len(self._tasks),
                "pieces_queued": self._pieces,
                "workers": self._workers,
                "workers_lost": self._lost,
                "depth": self._depth.value,
            }

    def _enqueue(self, task: ReadTask, pieces: Sequence[Piece]) -> None:
        task.queue.pending.extend(pieces)
        if not task.queue.is_queued:
            task.queue.is_queued = True
            self._queue.append(task)

    def _limit(self) -> int:
        """Workers to keep busy; buffers in the hands of lost ones are out of reach."""
        return min(self._depth.value, max(1, self._buffers_max - self._lost))
