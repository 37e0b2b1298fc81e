"""Write-back of a range of an open file: start it, await it, let its clean pages go.

Un-flushed pages on a network mount count against a job's memory limit and get it killed; this is
how the writer bounds them. It promises no durability and nothing needs it to (I3).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from sharedfs_backend.files.profile import FlushMethod

_WAIT_BEFORE_WRITE_WAIT_AFTER = 1 | 2 | 4


def _find_sync_file_range() -> Callable[..., int] | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).sync_file_range
    except AttributeError:
        return None  # not in this libc: fdatasync does
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    function.restype = ctypes.c_int
    bound: Callable[..., int] = function
    return bound


_sync_file_range = _find_sync_file_range()


def flush(fd: int, offset: int, length: int, method: FlushMethod, *, drop: bool) -> None:
    """Write back [offset, offset + length) and, with `drop`, forget its pages. Raises OSError."""
    if method is FlushMethod.NONE:
        return
    if method is FlushMethod.RANGE and _sync_file_range is not None:
        if _sync_file_range(fd, offset, length, _WAIT_BEFORE_WRITE_WAIT_AFTER) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    else:
        os.fdatasync(fd)
    if drop:
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
