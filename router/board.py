"""Board: a page of memory that a supervisor and its workers share.

Each worker counts up a number of its own while its event loop turns, which is how the supervisor
notices one that stands still without having died. The supervisor counts there what it replaced, and
why, so that any worker can show it. Every number has one writer, so there are no locks.

It must not know processes or what follows from a silence. Workers get at it by a descriptor they
inherit: neither side can make the other wait.
"""

from __future__ import annotations

import enum
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

WORKERS_MAX = 64
BYTES = 4096


class Cause(enum.Enum):
    """Why a worker was replaced; the value is a label of the metric."""

    DIED = "died"
    SILENT = "silent"


_WORD_OF = {cause: WORKERS_MAX + index for index, cause in enumerate(Cause)}


class Board:
    """One process's view of the page behind `descriptor`, which stays open."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._words = memoryview(mmap.mmap(descriptor, BYTES)).cast("B").cast("Q")

    def beat(self, worker: int) -> None:
        """The worker's loop turns."""
        self._words[worker] += 1

    def beats(self, worker: int) -> int:
        """0: it has not begun."""
        return self._words[worker]

    def starts(self, worker: int) -> None:
        """Before a process is started under this number: it has not begun."""
        self._words[worker] = 0

    def replaced(self, cause: Cause) -> None:
        self._words[_WORD_OF[cause]] += 1

    def replacements(self) -> dict[str, int]:
        """By cause, since the supervisor started."""
        return {cause.value: self._words[word] for cause, word in _WORD_OF.items()}


@contextmanager
def shared_board() -> Iterator[Board]:
    """A new one, all zero. Its descriptor is open until the end."""
    descriptor = os.memfd_create("sharedfs-router")
    try:
        os.truncate(descriptor, BYTES)
        yield Board(descriptor)
    finally:
        os.close(descriptor)
