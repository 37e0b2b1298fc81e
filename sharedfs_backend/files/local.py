"""LocalFiles: the `Files` protocol on a mounted directory. The only code that opens real files.

Calls block as long as the kernel does; deadlines belong to the callers, who run them on threads
they can afford to lose (I6). Nothing is retried except a short write's rest. Which primitive moves
the bytes follows from the profile: `preadv`/`pwritev`, or libc's plain calls (plain.py).

A symbolic link in a file's place is refused (O_NOFOLLOW). A FIFO there is an empty file on a local
disk; elsewhere opening one may hang, as any call may. Handles are `LocalHandle`s; a closed one
holds no descriptor number any more, so a late use fails instead of touching another file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, cast

from sharedfs_backend.files import writeback
from sharedfs_backend.files.api import WRITE_PARTS_MAX, Buffer, Handle, checked_path
from sharedfs_backend.files.failure import translate
from sharedfs_backend.files.plain import pread_into, pwrite_from
from sharedfs_backend.files.profile import UNPROBED, CachedReads, Profile
from sharedfs_backend.native import (
    MEMORY_STEP_BYTES,
    Extent,
    Loaded,
    Loops,
    NativeHasher,
    Part,
    loops,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMON = os.O_CLOEXEC | os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _COMMON
_READ = os.O_RDONLY | _COMMON
_WRITE = os.O_WRONLY | _COMMON

NONBLOCK_PROFILES = frozenset({"local"})
"""Where O_NONBLOCK says nothing about a regular file. On Lustre it does: a read fails (EAGAIN)
while another client holds the lock on what it last wrote."""

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)

JOIN_BYTES = 1024 * 1024
"""Plain writes: parts below this are joined (copied) into one call, larger ones go as they are."""


class LocalHandle:
    """A descriptor and the path it was opened with. `fd` is -1 once closed."""

    __slots__ = ("fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path

    def __repr__(self) -> str:
        return f"LocalHandle({self.path!r}, fd={self.fd})"


class LocalFiles:
    """Files below the directory `root`. Thread-safe: it holds no mutable state.

    Without a profile only calls are made that every file system knows."""

    __slots__ = ("_prefix", "_read_flags", "profile", "root")

    def __init__(self, root: str, profile: Profile = UNPROBED) -> None:
        self.root = os.path.abspath(root)
        self._prefix = self.root.rstrip("/") + "/"
        self.profile = profile
        self._read_flags = _READ | (os.O_NONBLOCK if profile.name in NONBLOCK_PROFILES else 0)

    def create(self, path: str) -> LocalHandle:
        return self._open(path, _CREATE, "create")

    def open_read(self, path: str) -> LocalHandle:
        return self._open(path, self._read_flags, "open")

    def open_write(self, path: str) -> LocalHandle:
        return self._open(path, _WRITE, "open")

    def _open(self, path: str, flags: int, operation: str) -> LocalHandle:
        full = self._prefix + checked_path(path, operation)
        try:
            return LocalHandle(os.open(full, flags, 0o666), path)
        except OSError as error:
            raise translate(error, operation, path) from error

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        fd = cast(LocalHandle, handle).fd
        try:
            if self.profile.vectored:
                return os.preadv(fd, (into,), offset)
            return pread_into(fd, into, offset)
        except OSError as error:
            if error.errno == errno.ESPIPE:  # a FIFO holds nothing that stays
                return 0
            raise translate(error, "read", handle.path) from error

    def read_cached(self, handle: Handle, offset: int, into: Sequence[memoryview]) -> int:
        """Bytes read into the buffers `into`, if they are in this machine's memory; fewer than
        asked, or 0, where that is not so for all. Waits for no file system, so it may go where a
        hanging call must not. Only where the profile has `cached_reads`; never a failure."""
        flags = _NOWAIT if self.profile.cached_reads is CachedReads.NOWAIT else 0
        try:
            return os.preadv(cast(LocalHandle, handle).fd, into, offset, flags)
        except OSError:  # the read that follows will say what is wrong
            return 0

    def read_hashed(
        self, handle: Handle, offset: int, extents: Sequence[Extent]
    ) -> list[bytes] | None:
        """`read_cached` and the digest of each unit in one go, in the compiled loops; None if not
        every byte is in memory. Only where the profile has `cached_reads` and there are loops."""
        flags = _NOWAIT if self.profile.cached_reads is CachedReads.NOWAIT else 0
        try:
            fd = cast(LocalHandle, handle).fd
            return _loops().read(fd, offset, extents, MEMORY_STEP_BYTES, flags)
        except OSError:
            return None

    def load(
        self,
        handle: Handle,
        offset: int,
        buffer: int,
        step_bytes: int,
        parts: Sequence[Part],
        stop: int,
    ) -> Loaded | None:
        """`read` into a private buffer, and from there to where the parts say, in the compiled
        loops (`Loops.load`); None if less came than asked. Only where there are loops."""
        try:
            fd = cast(LocalHandle, handle).fd
            return _loops().load(fd, offset, buffer, step_bytes, parts, stop)
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.ESPIPE):
                return None
            raise translate(error, "read", handle.path) from error

    def write_hashed(
        self, handle: Handle, offset: int, extents: Sequence[Extent], hasher: NativeHasher
    ) -> list[bytes] | None:
        """`write` and the digest of each unit that ends, in steps that stay in a core's cache; None
        if it was stopped. Only where the profile is `vectored` and there are loops."""
        try:
            fd = cast(LocalHandle, handle).fd
            return _loops().write(fd, offset, extents, MEMORY_STEP_BYTES, hasher)
        except OSError as error:
            raise translate(error, "write", handle.path) from error

    def write(self, handle: Handle, offset: int, parts: Sequence[Buffer]) -> None:
        fd = cast(LocalHandle, handle).fd
        try:
            if self.profile.vectored:
                _write_vectored(fd, offset, parts)
            else:
                _write_plain(fd, offset, parts)
        except OSError as error:
            raise translate(error, "write", handle.path) from error

    def flush(self, handle: Handle, offset: int, length: int) -> None:
        fd = cast(LocalHandle, handle).fd
        try:
            if fd < 0:  # os.fdatasync would raise ValueError
                raise OSError(errno.EBADF, "closed")
            writeback.flush(fd, offset, length, self.profile.flush, drop=self.profile.fadvise)
        except OSError as error:
            raise translate(error, "flush", handle.path) from error

    def close(self, handle: Handle) -> None:
        local = cast(LocalHandle, handle)
        fd, local.fd = local.fd, -1
        try:
            os.close(fd)
        except OSError as error:
            raise translate(error, "close", handle.path) from error

    def unlink(self, path: str) -> None:
        try:
            os.unlink(self._prefix + checked_path(path, "unlink"))
        except OSError as error:
            raise translate(error, "unlink", path) from error

    def list(self, path: str) -> list[str]:
        try:
            return os.listdir(self._dir(path, "list"))
        except OSError as error:
            raise translate(error, "list", path) from error

    def make_dir(self, path: str) -> None:
        full = self._dir(path, "mkdir")
        try:
            os.mkdir(full)
        except FileExistsError as error:
            if not os.path.isdir(full):
                raise translate(error, "mkdir", path) from error
        except OSError as error:
            raise translate(error, "mkdir", path) from error

    def size(self, path: str) -> int:
        try:
            return os.stat(self._prefix + checked_path(path, "stat"), follow_symlinks=False).st_size
        except OSError as error:
            raise translate(error, "stat", path) from error

    def free_bytes(self) -> int | None:
        if not self.profile.statvfs:
            return None
        try:
            found = os.statvfs(self.root)
        except OSError as error:
            raise translate(error, "stat", "") from error
        # GekkoFS leaves f_frsize at 0 and counts in its own chunks, which f_bsize holds.
        return found.f_bavail * (found.f_frsize or found.f_bsize)

    def _dir(self, path: str, operation: str) -> str:
        return self._prefix + checked_path(path, operation) if path else self.root


def _loops() -> Loops:
    found = loops()
    assert found is not None
    return found


def _write_vectored(fd: int, offset: int, parts: Sequence[Buffer]) -> None:
    if len(parts) <= WRITE_PARTS_MAX:
        done = os.pwritev(fd, parts, offset)
        if done == sum(memoryview(part).nbytes for part in parts):
            return
        pending = _after(parts, done)
        offset += done
    else:
        pending = [memoryview(part).cast("B") for part in parts]
    while pending:
        done = os.pwritev(fd, list(islice(pending, WRITE_PARTS_MAX)), offset)
        _require_progress(done)
        offset += done
        pending = _after(pending, done)


def _write_plain(fd: int, offset: int, parts: Sequence[Buffer]) -> None:
    for part in joined(parts):
        pending = part
        while pending.nbytes:
            done = pwrite_from(fd, pending, offset)
            _require_progress(done)
            offset += done
            pending = pending[done:]


def _after(parts: Sequence[Buffer], done: int) -> list[memoryview]:
    """What is left of `parts` once their first `done` bytes are written."""
    left: list[memoryview] = []
    for part in parts:
        view = memoryview(part).cast("B")
        if done >= view.nbytes:
            done -= view.nbytes
            continue
        left.append(view[done:])
        done = 0
    return left


def joined(parts: Sequence[Buffer]) -> Iterator[memoryview]:
    """The same bytes in fewer parts: runs of small ones become one, large ones are not copied."""
    small: list[memoryview] = []
    small_bytes = 0
    for part in parts:
        view = memoryview(part).cast("B")
        if small and small_bytes + view.nbytes > JOIN_BYTES:
            yield small[0] if len(small) == 1 else memoryview(b"".join(small))
            small, small_bytes = [], 0
        small.append(view)
        small_bytes += view.nbytes
    if small:
        yield small[0] if len(small) == 1 else memoryview(b"".join(small))


def _require_progress(done: int) -> None:
    if done <= 0:
        raise OSError(errno.EIO, "a write of a non-empty buffer wrote nothing")
