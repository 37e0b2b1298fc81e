"""What the command line says: tables for people, one JSON object for programs, errors for both.

Results go to standard output, everything else (progress, warnings, errors) to standard error, and
with `--json` an error is an object on standard output too, so a program reads one stream. This is
the only module of the package that prints.
"""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sharedfs_backend.exceptions import ConfigError, NamespaceError, SharedFSError
from sharedfs_backend.files import FileFailure

Report = Callable[[int, int], None]


class Status(enum.IntEnum):
    """Exit statuses."""

    OK = 0
    PROBLEMS = 1
    """The command ran and found damage."""
    USAGE = 2
    """A wrong option or setting; nothing was done."""
    NAMESPACE = 3
    """The namespace cannot be used: missing, newer, another secret, or no answer."""
    INTERRUPTED = 130


class Output:
    """One command's way of speaking."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._out = Console(highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)
        handler = logging.StreamHandler(self._err.file)
        handler.setFormatter(logging.Formatter("sharedfs: %(message)s"))
        logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)

    def result(
        self,
        fields: Mapping[str, object],
        shown: Sequence[tuple[str, object]],
        details: Sequence[tuple[str, str]] = (),
        heading: tuple[str, str] = ("", ""),
    ) -> None:
        """`fields` for programs; for people `shown` (label, value), then `details`."""
        if self._as_json:
            self._out.print(json.dumps(fields, indent=2), markup=False)
            return
        self._columns(shown)
        if details:
            self._out.print()
            self._columns([heading, *details])

    def sentences(self, lines: Sequence[str]) -> None:
        """Prose after a result, for people only."""
        if not self._as_json:
            for line in lines:
                self._out.print()
                self._out.print(line, markup=False)

    def _columns(self, rows: Sequence[tuple[str, object]]) -> None:
        """Two columns, never wrapped: names are for copying."""
        width = max(len(label) for label, _ in rows)
        for label, value in rows:
            self._out.print(f"{label:<{width}}  {value}", markup=False)

    @contextmanager
    def progress(self, what: str, unit: str) -> Iterator[Report]:
        """A bar on a terminal; nothing anywhere else."""
        if self._as_json or not self._err.is_terminal:
            yield lambda done, total: None
            return
        columns = (
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._err, transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def error(self, error: BaseException) -> Status:
        """Say what went wrong; returns the exit status that means it."""
        status, kind, message = _described(error)
        if self._as_json:
            self._out.print(
                json.dumps({"error": {"kind": kind, "message": message}}, indent=2), markup=False
            )
        else:
            self._err.print(f"sharedfs: {message}", markup=False)
        return status


def _described(error: BaseException) -> tuple[Status, str, str]:
    kind = type(error).__name__
    match error:
        case KeyboardInterrupt():
            return Status.INTERRUPTED, "Interrupted", "interrupted"
        case ConfigError():
            return Status.USAGE, kind, str(error)
        case NamespaceError() | SharedFSError():
            return Status.NAMESPACE, kind, str(error)
        case FileFailure():
            message = f"the file system does not do its part: {error}"
            return Status.NAMESPACE, kind, message
    raise error
