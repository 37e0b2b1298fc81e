"""One deterministic world: clients made of tasks, virtual time, freezes and kills, from one seed.

Tasks are real threads, but only the holder of the baton runs; it gives the baton on whenever it
sleeps, waits or touches the disk. What runs next is the earliest entry of one heap of virtual
times, so a seed fixes every interleaving. Each client reads its own clock (offset and drift):
nothing in the code under test may compare clocks of two clients.

A killed client's tasks get `SimKilled` at their next step and at every one after it. A frozen
client's tasks do not advance; calls that are already inside the kernel may still take effect.
It knows nothing of files, packs or the store.
"""

from __future__ import annotations

import _thread
import heapq
import random
import sys
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

# Virtual seconds between becoming ready and running: small, but enough to shuffle ready tasks.
JITTER_SECONDS = 50e-6
# Real seconds without any switch after which a thread is held to be blocked for good.
REAL_HANG_SECONDS = 15.0
TRANSCRIPT_MAX = 20_000


class SimKilled(BaseException):
    """The client died. Not an Exception, so that no handler of the code under test eats it."""


class SimProblem(Exception):
    """The world cannot go on: a deadlock, a hang in real time, or an error in a task."""


class Client:
    """One simulated process: a clock, a set of tasks, and whether it lives."""

    def __init__(self, world: World, name: str, offset: float, rate: float) -> None:
        self.world, self.name, self.offset, self.rate = world, name, offset, rate
        self.dead = False
        self.frozen_until = 0.0
        self.machine_frozen = False  # then even calls inside the kernel stand still
        self.ordered: dict[int, Task] = {}
        self.parked: list[tuple[Task, int]] = []  # what became due while it was frozen

    def now(self) -> float:
        """Seconds on this client's own monotonic clock."""
        return self.offset + self.world.time * self.rate

    def __repr__(self) -> str:
        return self.name


class Task:
    """One thread of one client. `tag` says whose request it serves; tasks it starts inherit it."""

    __slots__ = ("baton", "client", "in_kernel", "name", "number", "tag", "token", "waits_for")

    def __init__(self, client: Client, name: str, tag: str, number: int) -> None:
        self.client, self.name, self.tag, self.number = client, name, tag, number
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.token = 0
        self.in_kernel = False
        self.waits_for = "start"

    def __repr__(self) -> str:
        return f"{self.client.name}/{self.name}"


@dataclass
class _Pool:
    """Threads that finished their task and wait for the next one."""

    idle: list[_Thread] = field(default_factory=list)


class _Thread:
    __slots__ = ("lock", "task", "work")

    def __init__(self) -> None:
        self.lock = _thread.allocate_lock()
        self.lock.acquire()
        self.work: Callable[[], None] | None = None
        self.task: Task | None = None


class World:
    """Scheduler and clock. Everything here is touched by the baton's holder only."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.time = 0.0
        self.steps = 0
        self.clients: dict[str, Client] = {}
        self.problems: list[str] = []
        self.transcript: deque[str] = deque(maxlen=TRANSCRIPT_MAX)
        self._heap: list[tuple[float, int, Task | None, int, Callable[[], None] | None]] = []
        self._serial = 0
        self._pool = _Pool()
        self.god = Client(self, "world", 0.0, 1.0)
        self.main = Task(self.god, "main", "", 0)
        self._stop = False
        self.closing = False
        self._watched: set[int] = set()
        self._horizon = float("inf")
        self.current: Task = self.main

    # -- clients and tasks ----------------------------------------------------------------------

    def client(self, name: str) -> Client:
        """A new client; a restarted process is a new client on (perhaps) the same machine."""
        assert name not in self.clients
        offset, rate = self.random.uniform(0, 1e6), 1 + self.random.uniform(-1e-4, 1e-4)
        made = self.clients[name] = Client(self, name, offset, rate)
        return made

    def start(
        self, client: Client | None, name: str, work: Callable[[], None], tag: str | None = None
    ) -> Task:
        """Start a task; it runs once the caller gives up the baton."""
        client = client or self.god
        self._serial += 1
        task = Task(client, name, self.current.tag if tag is None else tag, self._serial)
        client.ordered[task.number] = task
        thread = self._pool.idle.pop() if self._pool.idle else None
        if thread is None:
            thread = _Thread()
            thread.work, thread.task = work, task
            _thread.start_new_thread(self._thread_main, (thread,))
        else:
            thread.work, thread.task = work, task
            thread.lock.release()
        self._push(self.time + self.random.random() * JITTER_SECONDS, task)
        return task

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Run `call` at virtual `time`, between two steps of tasks; it must not yield."""
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, None, 0, call))

    def freeze(self, client: Client, seconds: float, *, machine: bool) -> None:
        self.say(client, f"frozen for {seconds:.3f} s{' with its machine' if machine else ''}")
        client.frozen_until = max(client.frozen_until, self.time + seconds)
        client.machine_frozen = machine
        self.at(client.frozen_until, lambda: self.thaw(client))

    def thaw(self, client: Client, *, early: bool = False) -> None:
        """Let a frozen client go on, if its time has come or it is to come `early`."""
        if self.time < client.frozen_until and not early:
            return
        client.frozen_until = self.time
        parked, client.parked = client.parked, []
        for task, token in parked:
            if token == task.token:
                self._push(self.time + self.random.random() * JITTER_SECONDS, task)

    def kill(self, client: Client) -> None:
        """All tasks of `client` see SimKilled from now on."""
        if client.dead:
            return
        self.say(client, "killed")
        client.dead = True
        for task in client.ordered.values():
            if task is not self.current:
                self.wake(task)
        client.parked.clear()
        if self.current.client is client:
            raise SimKilled(client.name)

    def close(self) -> None:
        """Unwind every task and let the threads go."""
        self.closing, self._stop = True, False
        self._watched.clear()
        for client in self.clients.values():
            self.kill(client)
        self.god.dead = True
        for task in self.god.ordered.values():
            self.wake(task)
        self._horizon = float("inf")
        self._run_main()
        for thread in self._pool.idle:
            thread.work = None
            thread.lock.release()
        self._pool.idle.clear()

    # -- what tasks call ------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Give up the baton for `seconds` of virtual time."""
        task = self.current
        self._check_alive(task)
        self._push(self.time + max(seconds, 0.0), task)
        task.waits_for = "time"
        self._switch(task)

    def pause(self) -> None:
        """Let other ready tasks run."""
        self.sleep(self.random.random() * JITTER_SECONDS)

    def block(self, why: str, seconds: float | None) -> None:
        """Wait until `wake` is called for this task or `seconds` have passed."""
        task = self.current
        self._check_alive(task)
        if seconds is not None:
            self._push(self.time + max(seconds, 0.0), task)
        task.waits_for = why
        self._switch(task)

    def wake(self, task: Task) -> None:
        """Make `task` ready, whatever it waits for; nothing if it is over."""
        if task.number not in task.client.ordered:
            return
        task.token += 1
        self._push(self.time + self.random.random() * JITTER_SECONDS, task)

    def say(self, who: object, text: str) -> None:
        """Add a line to the transcript."""
        self.transcript.append(f"{self.time:14.6f} {who!s:<18} {text}")

    # -- what the test calls --------------------------------------------------------------------

    def run(self, seconds: float = float("inf")) -> None:
        """Run until nothing is left to do, `stop` is called, or `seconds` have passed."""
        assert self.current is self.main
        self._stop = False
        self._horizon = self.time + seconds
        self._run_main()
        if self.problems:
            raise SimProblem("\n".join(self.problems))
        if self._horizon != float("inf") and not self._stop:
            self.time = max(self.time, self._horizon)

    def run_all(self, tasks: list[Task], limit_seconds: float) -> None:
        """Run until all `tasks` are over; SimProblem if they are not within the limit."""
        self._watched = {task.number for task in tasks if task.number in task.client.ordered}
        if self._watched:
            self.run(limit_seconds)
        if self._watched and not self._stop:
            what = f"not over after {limit_seconds} s" if self._heap else "deadlock"
            raise SimProblem(f"{what}: {self.describe()}")

    def stop(self) -> None:
        """Make `run` return after the current step."""
        self._stop = True

    def describe(self) -> str:
        """Who waits for what."""
        tasks = [t for c in [*self.clients.values(), self.god] for t in c.ordered.values()]
        return "; ".join(f"{task} waits for {task.waits_for}" for task in tasks)

    # -- scheduling -----------------------------------------------------------------------------

    def _push(self, time: float, task: Task) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, task, task.token, None))

    def _check_alive(self, task: Task) -> None:
        if task.client.dead:
            raise SimKilled(task.client.name)

    def _next(self) -> Task:
        while self._heap and not self._stop:
            time, _, task, token, call = self._heap[0]
            if time > self._horizon:
                break
            heapq.heappop(self._heap)
            if call is not None:
                self.time = max(self.time, time)
                self._call(call)
                continue
            assert task is not None
            if token != task.token:
                continue
            client = task.client
            frozen = client.frozen_until > time and not client.dead
            if frozen and (client.machine_frozen or not task.in_kernel):
                client.parked.append((task, token))
                continue
            self.time = max(self.time, time)
            self.steps += 1
            task.token += 1
            return task
        return self.main

    def _call(self, call: Callable[[], None]) -> None:
        current, self.current = self.current, self.main
        try:
            call()
        except Exception:
            self.problems.append(traceback.format_exc())
            self._stop = True
        finally:
            self.current = current

    def _switch(self, task: Task) -> None:
        following = self._next()
        if following is not task:
            self.current = following
            following.baton.release()
            task.baton.acquire()
        self._check_alive(task)

    def _run_main(self) -> None:
        following = self._next()
        if following is self.main:
            return
        self.current = following
        steps = self.steps
        following.baton.release()
        while not self.main.baton.acquire(timeout=REAL_HANG_SECONDS):
            if self.steps == steps:
                raise SimProblem(f"{self.current} blocks outside the simulation:\n{_stacks()}")
            steps = self.steps

    def _thread_main(self, thread: _Thread) -> None:
        while True:
            work, task = thread.work, thread.task
            if work is None or task is None:
                return
            task.baton.acquire()
            try:
                self._check_alive(task)
                work()
            except SimKilled:
                pass  # the client is dead: there is nobody to tell
            except BaseException:
                self.problems.append(f"in {task}:\n{traceback.format_exc()}")
                self._stop = True
            del work
            thread.work = thread.task = None
            del task.client.ordered[task.number]
            if task.number in self._watched:
                self._watched.discard(task.number)
                self._stop = self._stop or not self._watched
            self._pool.idle.append(thread)
            following = self._next()
            self.current = following
            del task
            following.baton.release()
            thread.lock.acquire()


def _stacks() -> str:
    return "\n".join("".join(traceback.format_stack(f)) for f in sys._current_frames().values())
