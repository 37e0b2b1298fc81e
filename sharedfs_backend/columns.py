"""Columns: numpy arrays whose capacity is set once and whose memory is committed as it is used.

The catalog's limits are known when it is made (I9). Reserving address space for them costs
nothing until a page is written, so nothing ever grows by copying: no pause, no moment with two
copies. `give_back` returns the pages of a shrunken tail to the system.

Knows no row, pack or key. Arrays from here hold zeros until written. Anonymous memory only; no
file is mapped anywhere in this package.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Address space only; without NORESERVE a strict system would count it as used.
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


def reserve(count: int, dtype: npt.DTypeLike, width: int | None = None) -> Array:
    """An array of `count` zeros (by `width`), resident only where it has been written."""
    size = np.dtype(dtype).itemsize * max(count, 1) * (width or 1)
    flat = np.frombuffer(mmap.mmap(-1, size, flags=_FLAGS), dtype=dtype)
    return flat if width is None else flat.reshape(-1, width)


def give_back(column: Array, start: int) -> None:
    """Return to the system the whole pages that hold only elements from `start` on."""
    owner: Any = column
    while isinstance(owner, np.ndarray):
        owner = owner.base
    memory = owner.obj if isinstance(owner, memoryview) else owner
    assert isinstance(memory, mmap.mmap)
    first = start * column.strides[0]
    first += -first % mmap.PAGESIZE
    if first < len(memory):
        memory.madvise(mmap.MADV_DONTNEED, first, len(memory) - first)
