"""Positioned reads and writes by libc's own pread64/pwrite64, for clients that hook only those.

`os.preadv` and `os.pwritev` fail with EBADF under GekkoFS' preload client, and `os.pread` allocates
a new object for every read. These two read into and write from the caller's memory, release the
interpreter lock (ctypes.CDLL does), retry EINTR, and raise `OSError` like their `os` namesakes.
Symbols are looked up in the running process, so that a preloaded client's take precedence.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Buffer

_libc = ctypes.CDLL(None, use_errno=True)


def _bind(name: str, *arguments: type, result: type) -> Callable[..., int]:
    function = getattr(_libc, name)
    function.argtypes = list(arguments)
    function.restype = result
    bound: Callable[..., int] = function
    return bound


_pread = _bind(
    "pread64",
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int64,
    result=ctypes.c_ssize_t,
)
_pwrite = _bind(
    "pwrite64",
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int64,
    result=ctypes.c_ssize_t,
)


def _transfer(call: Callable[..., int], fd: int, address: int, length: int, offset: int) -> int:
    while True:
        done: int = call(fd, address, length, offset)
        if done >= 0:
            return done
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def pread_into(fd: int, into: memoryview, offset: int) -> int:
    """Number of bytes read at `offset` into `into`: one call, maybe short, 0 at the end."""
    if not into.nbytes:
        return 0
    memory = ctypes.c_char.from_buffer(into)  # exports the buffer until the call is over
    return _transfer(_pread, fd, ctypes.addressof(memory), into.nbytes, offset)


def pwrite_from(fd: int, data: Buffer, offset: int) -> int:
    """Number of bytes of `data` written at `offset`: one call, maybe short."""
    view = memoryview(data)
    if not view.nbytes:
        return 0
    memory = np.frombuffer(view, np.uint8)  # unlike ctypes it takes read-only buffers too
    address = memory.__array_interface__["data"][0]
    return _transfer(_pwrite, fd, address, view.nbytes, offset)
