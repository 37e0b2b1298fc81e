"""Turns: background work that one thread does at a time, and another goes on with if it hangs.

Refresh and chores keep state that belongs to whoever has the turn. A thread whose file operation
does not return keeps it for `HANG_SECONDS`; then the turn passes to another, after `on_taken` put
the state in order. Should the old thread ever wake up, its operation ends in `TurnOver`, which
nobody catches: it leaves without touching what is no longer its own (I6).

Knows no file and no journal: operations are passed through to the files below, one by one.
Thread-safe; a turn that hangs costs one thread, and the lane decides how many there are (I9).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ParamSpec, TypeVar

from sharedfs_backend.files import Buffer, FileFailure, Files, Handle
from sharedfs_backend.runtime import Lane, LaneFull, Runtime

HANG_SECONDS = 30.0
"""Twice what the breaker waits: by then the file system is known to be sick, or well again."""

P = ParamSpec("P")
R = TypeVar("R")


class TurnOver(Exception):
    """This thread hung for so long that another has taken over. Never caught on the way out."""


class Turns:
    """See the module. `idle_seconds`: a turn without any file operation for so long hangs too.

    `on_free()` is called whenever a turn has ended: whoever waits for the next may look again."""

    def __init__(
        self,
        runtime: Runtime,
        idle_seconds: float,
        on_free: Callable[[], None] = lambda: None,
    ) -> None:
        self._runtime = runtime
        self._idle_seconds = max(idle_seconds, HANG_SECONDS)
        self._on_free = on_free
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._turn = 0
        self._is_taken = False
        self._in_call = False
        self._active = 0.0
        self.overtaken = 0

    @property
    def is_taken(self) -> bool:
        """Somebody is at it, or hangs in it."""
        return self._is_taken

    def start(self, work: Callable[[], None], on_taken: Callable[[], None]) -> bool:
        """Run `work` on a background worker unless somebody is at it. False if none could."""
        now = self._runtime.now()
        with self._lock:
            patience = HANG_SECONDS if self._in_call else self._idle_seconds
            taken_over = self._is_taken
            if taken_over and now - self._active <= patience:
                return True
            self._turn += 1
            turn = self._turn
            self._is_taken, self._in_call, self._active = True, False, now
            self.overtaken += taken_over

        def run() -> None:
            self._mine.turn = turn
            try:
                if taken_over:
                    on_taken()
                work()
            except TurnOver:
                return
            finally:
                self._mine.turn = None
                self._give_back(turn)
                self._on_free()

        try:
            self._runtime.submit(Lane.BACKGROUND, run)
        except LaneFull:
            self._give_back(turn)
            return False
        return True

    def take_for_good(self) -> bool:
        """Nobody else gets a turn from now on; False if somebody has it at present."""
        with self._lock:
            if self._is_taken:
                return False
            self._turn += 1
            self._is_taken, self._active = True, float("inf")
            return True

    def _give_back(self, turn: int) -> None:
        with self._lock:
            if self._turn == turn:
                self._is_taken = False

    def call(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """One file operation of the calling thread's turn; TurnOver if that has passed."""
        turn = getattr(self._mine, "turn", None)
        if turn is None:
            return work(*args, **kwargs)  # a tool at work on its own thread
        self._note(turn, in_call=True)
        try:
            return work(*args, **kwargs)
        finally:
            self._note(turn, in_call=False)

    def _note(self, turn: int, *, in_call: bool) -> None:
        now = self._runtime.now()
        with self._lock:
            if self._turn != turn:
                raise TurnOver
            self._in_call, self._active = in_call, now


class TurnFiles:
    """`inner`, for the work of one `Turns`."""

    def __init__(self, inner: Files, turns: Turns) -> None:
        self._inner = inner
        self._call = turns.call

    def create(self, path: str) -> Handle:
        return self._opened(self._inner.create, path)

    def open_read(self, path: str) -> Handle:
        return self._opened(self._inner.open_read, path)

    def open_write(self, path: str) -> Handle:
        return self._opened(self._inner.open_write, path)

    def _opened(self, work: Callable[[str], Handle], path: str) -> Handle:
        opened: list[Handle] = []
        try:
            self._call(lambda: opened.append(work(path)))
        except TurnOver:
            for handle in opened:
                with suppress(FileFailure):  # nothing was done with it
                    self._inner.close(handle)
            raise
        return opened[0]

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        return self._call(self._inner.read, handle, offset, into)

    def write(self, handle: Handle, offset: int, parts: Sequence[Buffer]) -> None:
        self._call(self._inner.write, handle, offset, parts)

    def flush(self, handle: Handle, offset: int, length: int) -> None:
        self._call(self._inner.flush, handle, offset, length)

    def close(self, handle: Handle) -> None:
        """Also when the turn is over: a handle kept would leak."""
        begun: list[Handle] = []

        def work() -> None:
            begun.append(handle)
            self._inner.close(handle)

        try:
            self._call(work)
        except TurnOver:
            if not begun:
                with suppress(FileFailure):  # opened for work that is no longer ours
                    self._inner.close(handle)
            raise

    def unlink(self, path: str) -> None:
        self._call(self._inner.unlink, path)

    def list(self, path: str) -> list[str]:
        return self._call(self._inner.list, path)

    def make_dir(self, path: str) -> None:
        self._call(self._inner.make_dir, path)

    def size(self, path: str) -> int:
        return self._call(self._inner.size, path)

    def free_bytes(self) -> int | None:
        return self._call(self._inner.free_bytes)
