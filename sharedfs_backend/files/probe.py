"""Probing: what a mounted directory really can do, found by doing it in a scratch directory.

Each ability has one probe; a probe that fails in any way means "cannot". The scratch directory has
a name that is never used again and is removed, also after a failure. Any call here may hang on a
sick mount: whoever calls `probe` runs it on a thread with a deadline. Nothing here is on a request
path. What cannot be seen from one machine (rename or times on NFS) is taken from the named profile.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from sharedfs_backend.files import writeback
from sharedfs_backend.files.failure import FailureKind, FileFailure
from sharedfs_backend.files.local import LocalFiles
from sharedfs_backend.files.mounts import Mount, mount_of, parse_mountinfo, recognise, warnings_of
from sharedfs_backend.files.profile import NAMED, CachedReads, FlushMethod, Profile

SCRATCH_PREFIX = "probe."
"""Names of scratch directories below the root: this and 16 hex digits. `gc` may remove old ones."""

_DATA = bytes(range(256)) * 32
_BLOCK_BYTES = 4096
_TMPFS_MAGIC = 0x01021994
_FUSE_MAGIC = 0x65735546
_FUSE_REQUEST_BYTES = 1 << 20
"""256 pages, the most that the kernel puts into one request by default."""
_DAY_SECONDS = 86400.0
_ABILITIES = (
    "rename",
    "vectored",
    "fadvise",
    "direct_io",
    "mtime",
    "statvfs",
    "flush",
    "cached_reads",
    "request_bytes_max",
)
_OWN_AFFAIR = ("cached_reads", "request_bytes_max")
"""Of each machine: nobody need agree, or be told."""
_HABITS = ("unlink_needs_end", "orphans_offline_only")


def probe(
    root: str,
    *,
    name: str | None = None,
    environ: Mapping[str, str] = os.environ,
    random_bytes: Callable[[int], bytes] = os.urandom,
    wall_seconds: Callable[[], float] = time.time,
) -> Profile:
    """The profile of the file system that holds the existing directory `root`.

    `name` overrides what recognition would say (ValueError if there is no such profile). Raises
    FileFailure where not even create, write, read and unlink work.
    """
    name = name or recognise(_mount(root), statfs_type(root), environ)
    if name not in NAMED:
        raise ValueError(f"no profile is named {name!r}: choose one of {', '.join(NAMED)}")
    base = NAMED[name]
    scratch = _Scratch(root, SCRATCH_PREFIX + random_bytes(8).hex())
    try:
        scratch.prepare()
        return replace(
            base,
            rename=base.rename and _works(lambda: _rename(scratch)),
            vectored=_works(lambda: _vectored(scratch)),
            fadvise=_works(lambda: _fadvise(scratch)),
            direct_io=_works(lambda: _direct_io(scratch)),
            mtime=base.mtime and _works(lambda: _mtime(scratch, wall_seconds())),
            statvfs=_works(lambda: os.statvfs(scratch.path).f_blocks > 0),
            flush=_flush_method(scratch, base.flush),
            cached_reads=_cached_reads(scratch, statfs_type(root)),
            request_bytes_max=_request_bytes_max(base, statfs_type(root)),
        )
    finally:
        scratch.remove()


def differences(namespace: Profile, mount: Profile) -> list[str]:
    """What this mount does otherwise than the profile written in the namespace says, to be told."""
    return [
        f"{field.name} is {_text(getattr(mount, field.name))} on this mount, "
        f"{_text(getattr(namespace, field.name))} in the namespace"
        for field in fields(Profile)
        if field.name not in _OWN_AFFAIR
        and getattr(mount, field.name) != getattr(namespace, field.name)
    ]


def effective(namespace: Profile, mount: Profile) -> Profile:
    """The profile to work with here: this mount's abilities, the namespace's sizes, and the more
    careful of both in each habit (one careless client harms all on GekkoFS)."""
    abilities = {ability: getattr(mount, ability) for ability in _ABILITIES}
    habits = {habit: getattr(namespace, habit) or getattr(mount, habit) for habit in _HABITS}
    return replace(namespace, **abilities, **habits)


def mount_warnings(root: str) -> list[str]:
    """What the options of the mount that holds `root` cost; empty where nobody can tell."""
    mount = _mount(root)
    return warnings_of(mount) if mount is not None else []


def statfs_type(root: str) -> int | None:
    """The f_type of statfs(2), 0 under GekkoFS' preload client; None where the call fails."""
    buffer = (ctypes.c_long * 64)()  # struct statfs is 120 bytes; its first word is f_type
    try:
        failed = ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(root), buffer)
    except AttributeError:
        return None
    return None if failed else int(buffer[0])


@dataclass(frozen=True, slots=True)
class _Scratch:
    root: str
    name: str

    @property
    def path(self) -> str:
        return os.path.join(self.root, self.name)

    @property
    def file(self) -> str:
        return os.path.join(self.path, "a")

    def prepare(self) -> None:
        """A file of known content, made with the least that any file system must be able to do."""
        files = LocalFiles(self.root, NAMED["gekkofs"])
        files.make_dir(self.name)
        handle = files.create(f"{self.name}/a")
        try:
            files.write(handle, 0, [_DATA])
        finally:
            files.close(handle)
        into = bytearray(len(_DATA))
        handle = files.open_read(f"{self.name}/a")
        try:
            found = files.read(handle, 0, memoryview(into))
        finally:
            files.close(handle)
        if found != len(_DATA) or into != _DATA:
            raise FileFailure(
                FailureKind.UNSUPPORTED, "read", self.name, "what was written is not read back"
            )

    def remove(self) -> None:
        """Everything a probe may have made. What a killed process leaves is a few KiB that nobody
        reads; a person may remove it."""
        for name in ("a", "b", "c"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.path, name))
        with contextlib.suppress(OSError):
            os.rmdir(self.path)


def _works(ability: Callable[[], bool]) -> bool:
    try:
        return ability()
    except (OSError, ValueError, AttributeError, NotImplementedError):
        return False


def _rename(scratch: _Scratch) -> bool:
    old, new = os.path.join(scratch.path, "b"), os.path.join(scratch.path, "c")
    _write_file(old, b"renamed")
    os.rename(old, new)
    return not os.path.exists(old) and os.path.getsize(new) == 7


def _vectored(scratch: _Scratch) -> bool:
    fd = os.open(scratch.file, os.O_RDWR | os.O_CLOEXEC)
    try:
        written = os.pwritev(fd, [_DATA[:_BLOCK_BYTES], _DATA[_BLOCK_BYTES:]], 0)
        into = bytearray(len(_DATA))
        return written == os.preadv(fd, [memoryview(into)], 0) == len(_DATA) and into == _DATA
    finally:
        os.close(fd)


def _fadvise(scratch: _Scratch) -> bool:
    fd = os.open(scratch.file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, len(_DATA), os.POSIX_FADV_DONTNEED)
        return True
    finally:
        os.close(fd)


def _direct_io(scratch: _Scratch) -> bool:
    fd = os.open(scratch.file, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        with mmap.mmap(-1, len(_DATA)) as aligned:  # anonymous memory: O_DIRECT wants it aligned
            return os.preadv(fd, [aligned], 0) == len(_DATA) and aligned[:] == _DATA
    finally:
        os.close(fd)


def _mtime(scratch: _Scratch, now: float) -> bool:
    return abs(os.stat(scratch.file).st_mtime - now) < _DAY_SECONDS


def _flush_method(scratch: _Scratch, wanted: FlushMethod) -> FlushMethod:
    """The wanted way to flush, or the next best that works."""
    order = [FlushMethod.RANGE, FlushMethod.DATASYNC, FlushMethod.NONE]
    for method in order[order.index(wanted) :]:
        if _works(lambda method=method: _flush(scratch, method)):  # type: ignore[misc]
            return method
    return FlushMethod.NONE


def _flush(scratch: _Scratch, method: FlushMethod) -> bool:
    fd = os.open(scratch.file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, _DATA, 0)
        writeback.flush(fd, 0, len(_DATA), method, drop=False)
        return True
    finally:
        os.close(fd)


def _cached_reads(scratch: _Scratch, statfs_type: int | None) -> CachedReads:
    """Whether a read can be told not to wait. A file system without an answer says so at once."""
    if statfs_type == _TMPFS_MAGIC:
        return CachedReads.MEMORY
    return CachedReads.NOWAIT if _works(lambda: _read_nowait(scratch)) else CachedReads.NONE


def _request_bytes_max(base: Profile, statfs_type: int | None) -> int:
    return _FUSE_REQUEST_BYTES if statfs_type == _FUSE_MAGIC else base.request_bytes_max


def _read_nowait(scratch: _Scratch) -> bool:
    fd = os.open(scratch.file, os.O_RDONLY | os.O_CLOEXEC)
    into = bytearray(len(_DATA))
    try:
        return os.preadv(fd, [into], 0, os.RWF_NOWAIT) == len(_DATA) and into == _DATA
    except BlockingIOError:
        return True  # understood; it is just not in memory at present
    finally:
        os.close(fd)


def _write_file(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _mount(root: str) -> Mount | None:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return mount_of(os.path.realpath(root), parse_mountinfo(file.read()))
    except OSError:
        return None  # no /proc: nothing to recognise by, nothing to warn about


def _text(value: object) -> str:
    return str(value.value) if isinstance(value, FlushMethod) else str(value)
