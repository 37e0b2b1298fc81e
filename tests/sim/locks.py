"""Stand-ins for threading's primitives that wait in virtual time.

While a world is installed, `threading.Lock`, `RLock`, `Condition` and `Event` made by a simulated
task are these; those made by anybody else are the real ones. So code under test may wait for a
lock held across a yield without blocking the one thread that holds the baton, and every wait is
seen by the scheduler (a circle of waits is a reported deadlock, not a hang).

Waiters of a dead client are let through at once: its memory is gone and its tasks only unwind.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from tests.sim.world import SimKilled, Task, World


class SimEvent:
    """threading.Event and the runtime's Waiter."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for task in self._waiting:
            self._world.wake(task)
        self._waiting.clear()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout_seconds: float | None = None, *, timeout: float | None = None) -> bool:
        world = self._world
        seconds = timeout if timeout_seconds is None else timeout_seconds
        task = world.current
        deadline = None if seconds is None else world.time + max(seconds, 0.0) / task.client.rate
        while not self._set:
            left = None if deadline is None else deadline - world.time
            if left is not None and left <= 0:
                return False
            self._waiting.append(task)
            world.block("event", left)
            if task in self._waiting:
                self._waiting.remove(task)
        return True


class SimLock:
    """A lock; free, it is taken without a switch."""

    reentrant = False

    def __init__(self, world: World) -> None:
        self._world = world
        self._owner: Task | None = None
        self._depth = 0
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = self._world
        task = world.current
        if task.client.dead:
            return True
        if self._owner is task and self.reentrant:
            self._depth += 1
            return True
        deadline = None if timeout < 0 else world.time + timeout
        while self._owner is not None and not self._owner.client.dead:
            if not blocking or (deadline is not None and world.time >= deadline):
                return False
            self._waiting.append(task)
            world.block(
                f"lock of {self._owner}", None if deadline is None else deadline - world.time
            )
            if task in self._waiting:
                self._waiting.remove(task)
        self._owner, self._depth = task, 1
        return True

    def release(self) -> None:
        if self._world.current.client.dead:
            return
        self._depth -= 1
        if self._depth > 0:
            return
        self._owner = None
        if self._waiting:
            self._world.wake(self._waiting.popleft())

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.release()


class SimRLock(SimLock):
    reentrant = True


class SimCondition:
    """threading.Condition over a SimLock."""

    def __init__(self, world: World, lock: SimLock | None = None) -> None:
        self._world = world
        self._lock = lock if lock is not None else SimRLock(world)
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._waiting: deque[Task] = deque()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        world = self._world
        task = world.current
        self._waiting.append(task)
        depth, self._lock._depth = self._lock._depth, 1
        self._lock.release()
        try:
            world.block("condition", None if timeout is None else timeout / task.client.rate)
        finally:
            notified = task not in self._waiting
            if not notified:
                self._waiting.remove(task)
            if not task.client.dead:
                self._lock.acquire()
                self._lock._depth = depth
        return notified

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        world = self._world
        deadline = None if timeout is None else world.time + timeout
        while not predicate():
            left = None if deadline is None else deadline - world.time
            if left is not None and left <= 0:
                return predicate()
            self.wait(left)
        return True

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            self._world.wake(self._waiting.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


@contextmanager
def installed(world: World) -> Generator[None]:
    """Within it, threading's primitives made by tasks of `world` are the simulated ones."""
    real = {name: getattr(threading, name) for name in ("Lock", "RLock", "Condition", "Event")}

    def inside() -> bool:
        return world.current.client is not world.god

    def lock() -> Any:
        return SimLock(world) if inside() else real["Lock"]()

    def rlock() -> Any:
        return SimRLock(world) if inside() else real["RLock"]()

    def condition(lock: Any = None) -> Any:
        simulated = inside() and (lock is None or isinstance(lock, SimLock))
        return SimCondition(world, lock) if simulated else real["Condition"](lock)

    def event() -> Any:
        return SimEvent(world) if inside() else real["Event"]()

    made = {"Lock": lock, "RLock": rlock, "Condition": condition, "Event": event}
    for name, replacement in made.items():
        setattr(threading, name, replacement)
    try:
        yield
    finally:
        for name, original in real.items():
            setattr(threading, name, original)


__all__ = ["SimCondition", "SimEvent", "SimKilled", "SimLock", "SimRLock", "installed"]
