"""Cutting: which chunks of a batch go into which pack, and the batch on its way to its commit.

`cut` is pure. A `Batch` is one record of commits in the making: it is published when its last pack
is decided, or without waiting for that once it is overdue, so that one hung write does not keep
what is written beside it from being found (or counted: a pack nobody names is an orphan).

It must not know files, lanes or time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sharedfs_backend.layout import CHUNKS_PER_PACK_MAX, LayoutDescriptor
from sharedfs_backend.packjob import WrittenPack
from sharedfs_backend.puttask import Part, item_of

PARALLEL_PACK_BYTES = 16 << 20
"""A batch is split for parallel writing once each part would still be this large: file systems
admit one writer of a file at a time, but every further pack costs an open on loading. Measured,
128 MiB at 1 ms an operation on a mount that takes 1 MiB at a time: four packs 160 ms, eight 105."""

Written = list[tuple[WrittenPack, list[Part]]]


def cut(parts: Sequence[Part], pack_bytes_max: int, packs_at_once: int) -> list[list[Part]]:
    """Parts grouped by layout and rank, in order, split into packs of at most `pack_bytes_max`,
    and into up to `packs_at_once` where that leaves each large enough.

    A chunk larger than `pack_bytes_max` gets a pack of its own.
    """
    groups: dict[tuple[LayoutDescriptor, int], list[Part]] = {}
    for part in parts:
        item = item_of(part)
        groups.setdefault((item.layout, item.rank), []).append(part)
    packs: list[list[Part]] = []
    for group in groups.values():
        total = sum(item_of(part).buffer.nbytes for part in group)
        count = max(-(-total // pack_bytes_max), min(packs_at_once, total // PARALLEL_PACK_BYTES))
        target = -(-total // max(1, count))
        pack: list[Part] = []
        size = 0
        for part in group:
            nbytes = item_of(part).buffer.nbytes
            over = size + nbytes > min(pack_bytes_max, target + nbytes // 2)
            if pack and (over or len(pack) >= CHUNKS_PER_PACK_MAX):
                packs.append(pack)
                pack, size = [], 0
            pack.append(part)
            size += nbytes
        if pack:
            packs.append(pack)
    return packs


class Batch:
    """Packs of one cut, published together. Thread-safe."""

    def __init__(self, packs: int, submitted: float) -> None:
        self.submitted = submitted
        self._left = packs
        self._overdue = False
        self._written: Written = []
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """Every pack is decided."""
        return self._left <= 0

    def decided(self, written: WrittenPack | None, pack: list[Part]) -> Written:
        """One pack was written or given up; what is to be published now."""
        with self._lock:
            self._left -= 1
            if written is not None:
                self._written.append((written, pack))
            return self._take() if self._left <= 0 or self._overdue else []

    def hurry(self) -> Written:
        """Wait no longer: what is written by now; the rest is published as it comes."""
        with self._lock:
            self._overdue = True
            return self._take()

    def _take(self) -> Written:
        taken, self._written = self._written, []
        return taken
