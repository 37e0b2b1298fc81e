"""One piece of a write as the compiled loops take it: where its bytes lie, and where units end.

Pure, but for addresses: they are valid while the job holds its views and its gates are entered. It
must not know files or time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharedfs_backend.buffers import address_of
from sharedfs_backend.layout.seal import UNIT_BYTES
from sharedfs_backend.native import HASHED, SKIPPED, UNIT_ENDS, Extent
from sharedfs_backend.writeplan import PADDING, Part

_ZEROS = np.zeros(64 * 1024, np.uint8)


def addresses_of(views: Sequence[memoryview]) -> list[int]:
    """Where each chunk begins in memory; 0 for an empty one."""
    return [address_of(np.frombuffer(view, np.uint8)) if view.nbytes else 0 for view in views]


def extents_of(
    parts: Sequence[Part], addresses: Sequence[int], sizes: Sequence[int]
) -> tuple[list[Extent], list[int]]:
    """The extents of a piece's parts, and the chunk of each unit that ends in them, in order."""
    extents: list[Extent] = []
    chunks: list[int] = []
    for part in parts:
        if part.chunk == PADDING:
            zeros = address_of(_ZEROS)
            for at in range(0, part.length, _ZEROS.size):
                extents.append((zeros, min(_ZEROS.size, part.length - at), SKIPPED))
            continue
        at, end, size = part.start, part.start + part.length, sizes[part.chunk]
        while at < end:
            unit_end = min((at // UNIT_BYTES + 1) * UNIT_BYTES, size)
            to = min(unit_end, end)
            mark = UNIT_ENDS if to == unit_end else HASHED
            extents.append((addresses[part.chunk] + at, to - at, mark))
            if mark == UNIT_ENDS:
                chunks.append(part.chunk)
            at = to
    return extents, chunks
