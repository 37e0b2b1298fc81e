"""Private read buffers: page-aligned, bounded in number, reused most recent first.

A read that may wait never goes straight into a caller's memory: a call that hangs would write there
when it wakes up (I7). It goes into one of these, is verified there and then copied. Most recent
first keeps the few buffers in use warm in the CPU cache and their pages mapped; a buffer held by a
hung call is simply not here. The pool never blocks: when all are out, the caller does something
else (I9).

It knows nothing of files. Thread-safe.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray


def address_of(array: NDArray[Any]) -> int:
    """Where the bytes of a contiguous array begin. Valid as long as somebody holds the array."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    except (TypeError, ValueError):  # read-only, or empty: asked in the slower way
        begin: int = array.__array_interface__["data"][0]
        return begin


class PrivateBuffer:
    """`view` for a read to fill, `array` over the same bytes to copy from, `address` of both."""

    __slots__ = ("address", "array", "view")

    def __init__(self, size_bytes: int) -> None:
        self.view = memoryview(mmap.mmap(-1, size_bytes))
        self.array: NDArray[np.uint8] = np.frombuffer(self.view, np.uint8)
        self.address = address_of(self.array)


class BufferPool:
    """At most `bytes_max` bytes of buffers of `buffer_bytes` each, and always at least one."""

    def __init__(self, buffer_bytes: int, bytes_max: int) -> None:
        self.buffer_bytes = buffer_bytes
        self.buffers_max = max(1, bytes_max // buffer_bytes)
        self._lock = threading.Lock()
        self._free: list[PrivateBuffer] = []
        self._made = 0

    @property
    def bytes_held(self) -> int:
        return self._made * self.buffer_bytes

    def acquire(self) -> PrivateBuffer | None:
        """A buffer with arbitrary content, or None when all are in use."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._made >= self.buffers_max:
                return None
            self._made += 1
        return PrivateBuffer(self.buffer_bytes)

    def release(self, buffer: PrivateBuffer) -> None:
        with self._lock:
            self._free.append(buffer)
