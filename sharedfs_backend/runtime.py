"""What the store needs from the world besides files: time, randomness, workers, waiting.

Everything that decides when and where code runs comes in through a `Runtime`, so that a test can
replace it by one simulated world driven by a single seed (the same code then runs under freezes
and kills). `ThreadRuntime` is the real one: daemon threads in bounded lanes, because a thread lost
in a file-system call that never returns must neither block the interpreter's exit nor grow the
process without bound (I6, I9).

This module knows nothing of files, packs or LMCache.
"""

from __future__ import annotations

import enum
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Lane(enum.Enum):
    """A bounded set of workers. A lane never waits for work queued behind it in the same lane."""

    READ = "read"
    WRITE = "write"
    BACKGROUND = "background"


class LaneFull(Exception):
    """The lane's queue has reached its limit; the work was not accepted."""


class Waiter(Protocol):
    """A one-shot event that a simulated world can implement too."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout_seconds: float | None = None) -> bool: ...


class Runtime(Protocol):
    """Time, randomness and workers. Thread-safe."""

    def now(self) -> float:
        """Seconds on a monotonic clock of this machine. Never compared between machines."""

    def random_bytes(self, count: int) -> bytes:
        """Unpredictable bytes (`os.urandom`); engines seed `random`, so that is never used."""

    def submit(self, lane: Lane, work: Callable[[], None]) -> None:
        """Run `work` on a worker of `lane`. Raises LaneFull at the queue's limit."""

    def waiter(self) -> Waiter: ...

    def close(self, timeout_seconds: float) -> None:
        """Stop accepting work and let idle workers go; a worker stuck in a call is abandoned."""


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Unlike CLOCK_MONOTONIC it counts the time a machine is suspended: a lease runs on for the
others meanwhile."""

LOST_SECONDS = 30.0
"""A piece of work that takes longer is taken for lost in a call that may never return: another
worker starts in its place, if work waits. Twice what a breaker needs to notice a hanging call."""


@dataclass(slots=True)
class _LaneState:
    workers_max: int
    queue_max: int
    queue: deque[Callable[[], None]] = field(default_factory=deque)
    workers: int = 0
    idle: int = 0
    busy_since: dict[int, float] = field(default_factory=dict)
    """Thread -> when its present work began."""

    def lost(self, now: float) -> int:
        """Workers that may never come back; as many as the lane has may be replaced."""
        lost = sum(now - since > LOST_SECONDS for since in self.busy_since.values())
        return min(lost, self.workers_max)


class ThreadRuntime:
    """The real world. Workers are daemon threads, started on demand, at most `workers_max` a lane
    and as many again for those lost in calls that do not return (I9).

    Time goes on while the machine is suspended, so that whoever was asleep knows for how long. A
    worker whose work raises reports through `threading.excepthook` and lives on: the store
    translates every expected error before it gets here, so such an error is our own mistake.
    """

    def __init__(
        self,
        *,
        read_workers_max: int = 32,
        write_workers_max: int = 8,
        background_workers_max: int = 2,
        queue_max: int = 65536,
    ) -> None:
        self._closed = False
        self._lanes = {
            Lane.READ: _LaneState(read_workers_max, queue_max),
            Lane.WRITE: _LaneState(write_workers_max, queue_max),
            Lane.BACKGROUND: _LaneState(background_workers_max, queue_max),
        }
        # Callers' threads take the locks themselves: an exception out of a signal handler lands in
        # a Condition's own __enter__ or __exit__, in Python, with the lock held for good.
        self._locks = {lane: threading.Lock() for lane in Lane}
        self._wakeups = {lane: threading.Condition(lock) for lane, lock in self._locks.items()}

    def now(self) -> float:
        return time.clock_gettime(_CLOCK)

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def waiter(self) -> Waiter:
        return threading.Event()

    def submit(self, lane: Lane, work: Callable[[], None]) -> None:
        state, wakeup = self._lanes[lane], self._wakeups[lane]
        with self._locks[lane]:
            if self._closed:
                raise LaneFull("the runtime is closed")
            if len(state.queue) >= state.queue_max:
                raise LaneFull(f"{len(state.queue)} pieces of work wait in lane {lane.value}")
            state.queue.append(work)
            if state.idle >= len(state.queue):
                wakeup.notify()
            elif not self._start_worker(lane, state) and not state.workers:
                state.queue.remove(work)
                raise LaneFull(f"no thread can be started for lane {lane.value}")

    def relieve(self) -> None:
        """Replace workers that are lost, where work waits for them. Called now and then."""
        for lane, wakeup in self._wakeups.items():
            state = self._lanes[lane]
            if state.queue and not state.idle:
                with wakeup:
                    for _ in range(len(state.queue)):
                        if self._closed or not self._start_worker(lane, state):
                            break

    def _start_worker(self, lane: Lane, state: _LaneState) -> bool:
        """One more worker if there may be one (lock held)."""
        limit = state.workers_max
        if state.workers >= limit:
            limit += state.lost(self.now())
        if state.workers >= limit:
            return False
        state.workers += 1
        name = f"sharedfs-{lane.value}-{state.workers}"
        try:
            threading.Thread(target=self._work, args=(lane,), name=name, daemon=True).start()
        except RuntimeError:  # no more threads for this process
            state.workers -= 1
            return False
        return True

    def _work(self, lane: Lane) -> None:
        state, wakeup = self._lanes[lane], self._wakeups[lane]
        me = threading.get_ident()
        while True:
            with wakeup:
                state.busy_since.pop(me, None)
                surplus = state.workers > state.workers_max + state.lost(self.now())
                while not state.queue or surplus:
                    if self._closed or surplus:
                        state.workers -= 1
                        return
                    state.idle += 1
                    wakeup.wait()
                    state.idle -= 1
                work = state.queue.popleft()
                state.busy_since[me] = self.now()
            try:
                work()
            except Exception:  # our own mistake: report it, keep the worker
                threading.excepthook(
                    threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                )
            del work

    def close(self, timeout_seconds: float) -> None:
        deadline = self.now() + timeout_seconds
        self._closed = True
        for lane, wakeup in self._wakeups.items():
            with self._locks[lane]:
                wakeup.notify_all()
            while self._lanes[lane].workers and self.now() < deadline:
                time.sleep(0.002)
