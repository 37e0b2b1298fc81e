"""Progress of a running case: a bar on a terminal, a line now and then elsewhere, or nothing.

It goes to standard error; results never depend on it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

LINE_SECONDS = 20.0


class Silent:
    """Shows nothing; for tests."""

    def total(self, steps: int) -> None:
        """Nothing is shown."""

    def step(self, text: str) -> None:
        """Nothing is shown."""


class Shown:
    """One case's bar. A context manager; not thread-safe."""

    def __init__(self, name: str, now: Callable[[], float] = time.monotonic) -> None:
        self._name, self._now = name, now
        self._console = Console(file=sys.stderr)
        self._bar: RichProgress | None = None
        self._done, self._all, self._said = 0, 0, float("-inf")
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = RichProgress(*columns, TimeElapsedColumn(), console=self._console)
            self._task = self._bar.add_task(name, total=None)

    def __enter__(self) -> Shown:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def total(self, steps: int) -> None:
        self._all = steps
        if self._bar is not None:
            self._bar.update(self._task, total=steps)

    def step(self, text: str) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=f"{self._name}: {text}"[:60])
            return
        now = self._now()
        if now - self._said >= LINE_SECONDS:
            self._said = now
            self._console.print(f"{self._name} {self._done}/{self._all or '?'}: {text}")
