"""PutTask: one store under way, and what became of each of its chunks. Decisions only.

Every item is decided once; a later decision changes nothing, so a task that was given up (late,
closed) stays as it was told, whatever a hung write does when it wakes up. The buffers belong to the
caller again once the task is done: nobody enters its gate after that (I7). One exception, counted
by the putter: a write stuck in the kernel past the buffers' whole time to live may still read
them, for a pack that gets no trailer.

It must not know files, packs or lanes. Thread-safe.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from sharedfs_backend.gate import Gate
from sharedfs_backend.layout import LayoutDescriptor
from sharedfs_backend.realms import Realm

log = logging.getLogger("sharedfs_backend")

CANCEL_SECONDS = 10.0


class PutItem(NamedTuple):
    """One chunk to store. `buffer` is C-contiguous and stays valid until the task is done."""

    key: bytes
    buffer: memoryview
    layout: LayoutDescriptor
    rank: int = 0


class PutTask:
    """A store under way. Lists are by item and valid once done.

    `stored`: this task wrote and published it. `present`: it is in the namespace, by whomever.
    `failed`: why some are not, or None.
    """

    def __init__(
        self,
        realm: Realm,
        items: Sequence[PutItem],
        submitted: float,
        on_done: Callable[[PutTask], None] | None,
        gate: Gate,
    ) -> None:
        self.realm = realm
        self.items = items
        self.submitted = submitted
        self.gate = gate
        self.stored = [False] * len(items)
        self.present = [False] * len(items)
        self.bytes_written = 0
        self.failed: str | None = None
        self._on_done = on_done
        self._is_decided = bytearray(len(items))
        self._is_written = bytearray(len(items))
        self._left = len(items)
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return sum(item.buffer.nbytes for item in self.items)

    @property
    def is_done(self) -> bool:
        return self._left == 0

    def note_written(self, index: int) -> None:
        """The item lies in a complete pack: its buffer is not needed any more, only its commit."""
        self._is_written[index] = 1

    def unsettled(self, *, written: bool) -> list[int]:
        """Items not decided yet; those that only wait for their commit if `written`."""
        with self._lock:
            return [
                index
                for index, is_decided in enumerate(self._is_decided)
                if not is_decided and (written or not self._is_written[index])
            ]

    def settle(
        self, indexes: Iterable[int], *, stored: bool, present: bool, failed: str | None = None
    ) -> None:
        """These items are decided, as far as they are not; the last one completes the task."""
        with self._lock:
            left = self._left
            for index in indexes:
                if self._is_decided[index]:
                    continue
                self._is_decided[index] = 1
                self.stored[index] = stored
                self.present[index] = present
                if stored:
                    self.bytes_written += self.items[index].buffer.nbytes
                self._left -= 1
            if failed is not None and self.failed is None and self._left < left:
                self.failed = failed
            last = self._left == 0 < left
        if last:
            self.finish()

    def finish(self) -> None:
        """Everything is decided; nobody may read the buffers any more."""
        self.gate.try_shut()
        on_done, self._on_done = self._on_done, None
        if on_done is None:
            return
        try:
            on_done(self)
        except Exception:  # the caller's mistake must not leave other tasks undone
            log.exception("a store's on_done failed")

    def cancel(self, timeout_seconds: float = CANCEL_SECONDS) -> bool:
        """Whether nobody reads the buffers any more; what is not stored yet will not be.

        False only when a write that reads them has been stuck in the kernel all that time.
        """
        return self.gate.shut(timeout_seconds)


Part = tuple[PutTask, int]
"""An item of a task: (task, index)."""


def item_of(part: Part) -> PutItem:
    return part[0].items[part[1]]


def by_task(parts: Iterable[Part]) -> Iterator[tuple[PutTask, list[int]]]:
    """Neighbours of one task together: (task, indexes)."""
    for task, group in groupby(parts, itemgetter(0)):
        yield task, [index for _, index in group]
