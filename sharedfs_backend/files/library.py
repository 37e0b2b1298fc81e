"""LibraryFiles: the `Files` protocol through a client library's functions, called by ctypes.

For a file system that this process sees neither through the kernel nor through a preloaded client:
the setting `client_library` names a shared library with the plain C functions in `FUNCTIONS`
(launch/gekkofs/sharedfs_client.cpp makes one of GekkoFS' user library). Nothing is taken over in
the process, so it may fork, spawn and lock files as ever. Descriptors are the library's own.

Calls release the interpreter lock and have no deadline: callers run them on threads they can
afford to lose (I6), as with the kernel's. Thread-safe as far as the library is.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import numpy as np

from sharedfs_backend.files.api import Buffer, Handle, checked_path
from sharedfs_backend.files.failure import FailureKind, FileFailure, translate
from sharedfs_backend.files.local import LocalHandle, joined

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_TEXT, _POINTER, _SIZE, _INT = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_OFFSET, _DONE = ctypes.c_int64, ctypes.c_ssize_t

FUNCTIONS: dict[str, tuple[Any, ...]] = {
    # Name: result, arguments. -1 is a failure, with errno set.
    "sfb_init": (_INT,),
    "sfb_open": (_INT, _TEXT, _INT, ctypes.c_uint),
    "sfb_close": (_INT, _INT),
    "sfb_pread": (_DONE, _INT, _POINTER, _SIZE, _OFFSET),
    "sfb_pwrite": (_DONE, _INT, _POINTER, _SIZE, _OFFSET),
    "sfb_unlink": (_INT, _TEXT),
    "sfb_mkdir": (_INT, _TEXT, ctypes.c_uint),
    "sfb_size": (_OFFSET, _TEXT, ctypes.POINTER(_INT)),
    "sfb_list": (_DONE, _TEXT, ctypes.c_char_p, _SIZE),
}
LIST_BYTES = 1 << 20


class LibraryMissing(OSError):
    """The library cannot be loaded, or lacks a function; the message says which."""


@cache
def load(path: str) -> ctypes.CDLL:
    """The library, initialised once for this process. Raises LibraryMissing."""
    try:
        library = ctypes.CDLL(path, use_errno=True)
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LibraryMissing(f"{path}: {error}") from None
    if library.sfb_init() != 0:
        number = ctypes.get_errno()
        raise LibraryMissing(f"{path}: sfb_init failed: {os.strerror(number)}")
    return library


class LibraryFiles:
    """Files below `root`, a path as the library knows it. Holds no mutable state."""

    def __init__(self, root: str, library: str) -> None:
        self.root = root
        self._prefix = root.rstrip("/") + "/"
        self._library = load(library)

    def _call(self, function: str, operation: str, path: str, *arguments: object) -> int:
        """Not negative; retried when interrupted, as the kernel's calls are."""
        while True:
            done: int = getattr(self._library, function)(*arguments)
            if done >= 0:
                return done
            number = ctypes.get_errno()
            if number != errno.EINTR:
                raise translate(OSError(number, os.strerror(number)), operation, path)

    def _open(self, path: str, flags: int, operation: str) -> LocalHandle:
        full = self._full(path, operation)
        return LocalHandle(self._call("sfb_open", operation, path, full, flags, 0o666), path)

    def create(self, path: str) -> LocalHandle:
        return self._open(path, _CREATE, "create")

    def open_read(self, path: str) -> LocalHandle:
        return self._open(path, os.O_RDONLY, "open")

    def open_write(self, path: str) -> LocalHandle:
        return self._open(path, os.O_WRONLY, "open")

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        fd = self._fd(handle, "read")
        if not into.nbytes:
            return 0
        memory = ctypes.c_char.from_buffer(into)  # exports the buffer until the call is over
        address = ctypes.addressof(memory)
        return self._call("sfb_pread", "read", handle.path, fd, address, into.nbytes, offset)

    def write(self, handle: Handle, offset: int, parts: Sequence[Buffer]) -> None:
        fd = self._fd(handle, "write")
        for part in joined(parts):
            pending = part
            while pending.nbytes:
                memory = np.frombuffer(pending, np.uint8)  # takes read-only buffers too
                address = memory.__array_interface__["data"][0]
                done = self._call(
                    "sfb_pwrite", "write", handle.path, fd, address, pending.nbytes, offset
                )
                if not done:
                    raise FileFailure(FailureKind.IO, "write", handle.path, "nothing was written")
                offset += done
                pending = pending[done:]

    def flush(self, handle: Handle, offset: int, length: int) -> None:
        """Nothing: there is no page cache to bound."""
        self._fd(handle, "flush")

    def close(self, handle: Handle) -> None:
        fd = self._fd(handle, "close")
        cast(LocalHandle, handle).fd = -1
        self._call("sfb_close", "close", handle.path, fd)

    def unlink(self, path: str) -> None:
        self._call("sfb_unlink", "unlink", path, self._full(path, "unlink"))

    def list(self, path: str) -> list[str]:
        full = self._full(path, "list") if path else self.root.encode()
        room = LIST_BYTES
        while True:
            names = ctypes.create_string_buffer(room)
            needed = self._call("sfb_list", "list", path, full, names, room)
            if needed <= room:
                return [
                    name.decode("utf-8", "replace") for name in names.raw[:needed].split(b"\0")[:-1]
                ]
            room = 2 * needed

    def make_dir(self, path: str) -> None:
        full = self._full(path, "mkdir") if path else self.root.encode()
        try:
            self._call("sfb_mkdir", "mkdir", path, full, 0o777)
        except FileFailure as failure:
            if failure.kind is not FailureKind.EXISTS or not self._is_directory(path, full):
                raise

    def _is_directory(self, path: str, full: bytes) -> bool:
        is_directory = ctypes.c_int(0)
        self._call("sfb_size", "mkdir", path, full, ctypes.byref(is_directory))
        return bool(is_directory.value)

    def size(self, path: str) -> int:
        is_directory = ctypes.c_int(0)
        full = self._full(path, "stat")
        return self._call("sfb_size", "stat", path, full, ctypes.byref(is_directory))

    def free_bytes(self) -> int | None:
        return None  # a user library does not tell

    def _full(self, path: str, operation: str) -> bytes:
        return (self._prefix + checked_path(path, operation)).encode()

    def _fd(self, handle: Handle, operation: str) -> int:
        fd = cast(LocalHandle, handle).fd
        if fd < 0:
            raise translate(OSError(errno.EBADF, "closed"), operation, handle.path)
        return fd
