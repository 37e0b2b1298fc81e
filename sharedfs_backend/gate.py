"""Gate: what every thread passes before it touches memory that somebody lent us (I7).

A task's buffers belong to its caller. Whoever reads or writes them does so inside the task's gate;
whoever ends the task (done, late, cancelled, closed) shuts the gate first and waits for those
inside. From then on nobody gets in, however late a hung call wakes up. Single parts (one chunk of
a load) can be shut alone.

Compiled code enters by `doors`, one for each part, which shut with the gate. Where it only reads
memory and may be stuck, it sees `stop_word` become 1: somebody who waited in vain for those inside
may have given the memory back.

It knows nothing of files or chunks. Thread-safe. Held inside: memory copies, or for a store the
write that reads the buffers; never anything that itself waits for the gate.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from sharedfs_backend.native import Doors
from sharedfs_backend.runtime import Waiter

WHOLE = -1
"""The part meant by who touches everything."""

LOOK_SECONDS = 0.00005
"""Between two looks at who is inside by a door: it takes a copy's time to leave."""


class Pass:
    """What `Gate.enter` hands out: True as a context if the gate was open."""

    __slots__ = ("_gate", "_part")

    def __init__(self, gate: Gate | None, part: int) -> None:
        self._gate = gate
        self._part = part

    def __enter__(self) -> bool:
        return self._gate is not None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._gate is not None:
            self._gate._leave(self._part)


class Gate:
    """Counts who is inside; once shut, it stays shut.

    `waiter` makes the event a shutting thread waits on (`Runtime.waiter`). A gate that is not
    `enforced` keeps nobody out and waits for nobody: for tests that show why there are gates.
    """

    __slots__ = (
        "_enforced",
        "_inside",
        "_lock",
        "_shut",
        "_shut_parts",
        "_waiter",
        "_waiting",
        "doors",
        "stop_word",
    )

    def __init__(
        self,
        waiter: Callable[[], Waiter] = threading.Event,
        *,
        enforced: bool = True,
        doors: Doors | None = None,
    ) -> None:
        self.doors = doors if enforced else None
        self._enforced = enforced
        self._lock = threading.Lock()
        self._waiter = waiter
        self._inside: dict[int, int] = {}
        self._shut = False
        self.stop_word: NDArray[np.uint8] = np.zeros(1, np.uint8)
        self._shut_parts: set[int] = set()
        self._waiting: list[tuple[int, Waiter]] = []

    @property
    def is_shut(self) -> bool:
        return self._shut

    def enter(self, part: int = WHOLE) -> Pass:
        """`with gate.enter(part) as is_open:` touch the memory only if `is_open`."""
        with self._lock:
            if self._enforced and (self._shut or part in self._shut_parts):
                return Pass(None, part)
            self._inside[part] = self._inside.get(part, 0) + 1
        return Pass(self, part)

    def shut(self, timeout_seconds: float | None = None) -> bool:
        """Nobody gets in any more; True once nobody is inside, False if that took too long."""
        with self._lock:
            self._shut = True
            self.stop_word[0] = self._enforced
            waiter = self._wait_for(WHOLE)
            free = self.doors is None or self.doors.shut()
        free = free or self._wait_at_doors(WHOLE, timeout_seconds)
        return free and (waiter is None or waiter.wait(timeout_seconds))

    def try_shut(self) -> bool:
        """Nobody gets in any more; whether nobody is inside now. Waits for nothing."""
        with self._lock:
            self._shut = True
            self.stop_word[0] = self._enforced
            free = self.doors is None or self.doors.shut()
            return free and not (self._enforced and self._is_inside(WHOLE))

    def shut_part(self, part: int, timeout_seconds: float | None = None) -> bool:
        """The same for one part. Those who entered for the whole are not waited for."""
        with self._lock:
            self._shut_parts.add(part)
            waiter = self._wait_for(part)
            free = self.doors is None or self.doors.shut_part(part)
        free = free or self._wait_at_doors(part, timeout_seconds)
        return free and (waiter is None or waiter.wait(timeout_seconds))

    def _wait_at_doors(self, part: int, timeout_seconds: float | None) -> bool:
        """They are shut: until nobody is inside. Compiled code tells nobody, so this looks."""
        assert self.doors is not None
        left = timeout_seconds
        while not self.doors.is_free(None if part == WHOLE else part):
            if left is not None and left <= 0:
                return False
            time.sleep(LOOK_SECONDS)
            left = None if left is None else left - LOOK_SECONDS
        return True

    def _wait_for(self, part: int) -> Waiter | None:
        if not (self._enforced and self._is_inside(part)):
            return None
        waiter = self._waiter()
        self._waiting.append((part, waiter))
        return waiter

    def _is_inside(self, part: int) -> bool:
        return bool(self._inside) if part == WHOLE else part in self._inside

    def _leave(self, part: int) -> None:
        with self._lock:
            left = self._inside[part] - 1
            if left:
                self._inside[part] = left
            else:
                del self._inside[part]
            if not self._waiting:
                return
            free = [waiter for waited, waiter in self._waiting if not self._is_inside(waited)]
            self._waiting = [item for item in self._waiting if self._is_inside(item[0])]
        for waiter in free:
            waiter.set()
