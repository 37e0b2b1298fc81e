"""The store's `Runtime` inside a simulated world: a client's clock, seeded bytes, lanes of tasks.

A lane runs at most `workers_max` tasks at once and queues the rest up to `queue_max`, like the
real one; a task stuck in a call keeps its worker. Submitting is a yield point. Work inherits the
tag of whoever submitted it, so that file operations can be charged to the request behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sharedfs_backend.runtime import Lane, LaneFull
from tests.sim.locks import SimEvent
from tests.sim.world import Client, World


@dataclass(slots=True)
class _LaneState:
    workers_max: int
    workers: int = 0
    queue: deque[tuple[Callable[[], None], str]] = field(default_factory=deque)


class SimRuntime:
    """One client's Runtime."""

    def __init__(
        self,
        world: World,
        client: Client,
        *,
        workers_max: dict[Lane, int] | None = None,
        queue_max: int = 4096,
    ) -> None:
        self._world, self._client, self._queue_max = world, client, queue_max
        limits = {Lane.READ: 4, Lane.WRITE: 6, Lane.BACKGROUND: 2, **(workers_max or {})}
        self._lanes = {lane: _LaneState(limits[lane]) for lane in Lane}
        self._closed = False

    def now(self) -> float:
        return self._client.now()

    def random_bytes(self, count: int) -> bytes:
        return self._world.random.randbytes(count)

    def waiter(self) -> SimEvent:
        return SimEvent(self._world)

    def submit(self, lane: Lane, work: Callable[[], None]) -> None:
        state = self._lanes[lane]
        if self._closed:
            raise LaneFull("the runtime is closed")
        if len(state.queue) >= self._queue_max:
            raise LaneFull(f"{len(state.queue)} pieces of work wait in lane {lane.value}")
        state.queue.append((work, self._world.current.tag))
        if state.workers < state.workers_max:
            state.workers += 1
            name = f"{lane.value}{state.workers}"
            self._world.start(self._client, name, lambda: self._work(state), tag="lane")
        if self._world.current is not self._world.main:
            self._world.pause()

    def _work(self, state: _LaneState) -> None:
        task = self._world.current
        while state.queue:
            work, task.tag = state.queue.popleft()
            work()
            task.tag = "lane"
        state.workers -= 1

    def close(self, timeout_seconds: float) -> None:
        """Stop accepting work; what is queued still runs, as in the real one."""
        self._closed = True
        deadline = self.now() + timeout_seconds
        while any(state.workers for state in self._lanes.values()) and self.now() < deadline:
            self._world.sleep(0.01)
