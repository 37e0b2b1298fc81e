"""One thread that works off what LMCache submits, so that a submit is an append and no more.

LMCache's controller threads are shared by all requests; whatever costs time (deriving keys, asking
the catalog, reading an identity) happens here or further down. Lookups, loads and unlocks go first,
in their order; stores when none of those waits. Work that lacks its realm is parked, without
holding up the rest, until the realm is there or the patience is over; from then on whatever asks
for that realm is answered at once: a hang costs one deadline, not one for each request (I6).

Knows nothing of keys or stores: work is a callable. Bounded (I9): beyond the limits `submit` says
no, and the caller answers with a miss. After `close` no work runs.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

log = logging.getLogger("sharedfs_backend.mp")

WAITING_MAX = 4096
"""Pieces of work waiting for the thread, and pieces parked."""


class Parked(Exception):
    """Raised by work that cannot go on before `signal(token)`."""

    def __init__(self, token: Hashable) -> None:
        super().__init__(token)
        self.token = token


@dataclass(frozen=True, slots=True)
class Work:
    """`run()` does it, or raises Parked. `give_up()` answers in its place; it never raises."""

    run: Callable[[], object]
    give_up: Callable[[], object]
    at: float
    urgent: bool = True


class Dispatcher:
    """See the module's text. `submit` and `signal` from any thread."""

    def __init__(
        self,
        patience_seconds: float,
        idle: Callable[[], None],
        idle_seconds: float = 1.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience = patience_seconds
        self._idle, self._idle_seconds, self._now = idle, idle_seconds, now
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._urgent: deque[Work] = deque()
        self._others: deque[Work] = deque()
        self._lock = threading.Lock()
        self._parked: dict[Hashable, list[Work]] = {}
        self._signalled: set[Hashable] = set()
        self._late: set[Hashable] = set()
        self._closed = False
        self.overflows = 0
        self.failures = 0
        self._thread = threading.Thread(target=self._loop, name="sharedfs-dispatch", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._urgent) + len(self._others)

    @property
    def parked(self) -> int:
        return sum(len(works) for works in self._parked.values())

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closed

    def submit(self, work: Work) -> bool:
        """False when the queue is full or closed: nothing will run."""
        lane = self._urgent if work.urgent else self._others
        if self._closed or len(lane) >= WAITING_MAX:
            self.overflows += 1
            return False
        lane.append(work)
        self._tokens.put(None)
        return True

    def signal(self, token: Hashable) -> None:
        """What waited for `token` may go on; so may what asks for it later."""
        with self._lock:
            self._signalled.add(token)
            self._late.discard(token)
            works = self._parked.pop(token, [])
        for work in works:
            (self._urgent if work.urgent else self._others).append(work)
            self._tokens.put(None)

    def close(self, timeout_seconds: float) -> bool:
        """Run nothing more, give up what waits. False if the thread did not end in time."""
        self._closed = True
        self._tokens.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_seconds)
        with self._lock:
            left = [work for works in self._parked.values() for work in works]
            self._parked.clear()
        for work in [*self._urgent, *self._others, *left]:
            work.give_up()
        self._urgent.clear()
        self._others.clear()
        return not self._thread.is_alive()

    def _loop(self) -> None:
        idled = self._now()
        while not self._closed:
            try:
                self._tokens.get(timeout=self._idle_seconds)
                self._step()
            except queue.Empty:
                pass
            now = self._now()
            if now - idled >= self._idle_seconds and not self._closed:
                idled = now
                self._expire(now)
                self._guard(self._idle)

    def _step(self) -> None:
        if self._closed:
            return
        lane = self._urgent or self._others
        if lane:
            work = lane.popleft()
            try:
                work.run()
            except Parked as parked:
                self._park(work, parked.token)
            except Exception:
                self.failures += 1
                log.exception("sharedfs: a task failed inside; it is answered as a miss")
                self._guard(work.give_up)

    def _park(self, work: Work, token: Hashable) -> None:
        with self._lock:
            known, late = token in self._signalled, token in self._late
            full = self.parked >= WAITING_MAX
            if not known and not full and not late:
                self._parked.setdefault(token, []).append(work)
                return
        if known:
            self._urgent.append(work)
            self._tokens.put(None)
            return
        self.overflows += full
        self._guard(work.give_up)

    def _expire(self, now: float) -> None:
        late = []
        with self._lock:
            for token, works in list(self._parked.items()):
                if any(now - work.at > self._patience for work in works):
                    self._late.add(token)
                    late += self._parked.pop(token)
        for work in late:
            self._guard(work.give_up)

    def _guard(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:
            self.failures += 1
            log.exception("sharedfs: a background step failed")
