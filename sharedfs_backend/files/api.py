"""The protocol through which everything above reaches a file system: one small set of operations.

Each call is one operation on the shared file system (the unit of cost), named in `OPERATIONS`.
Paths are relative to the namespace root, `/`-separated, checked by `checked_path`: no
implementation lets a name leave the root. There is no rename, link, lock, fsync, xattr, mmap or
time here, so the protocol above cannot come to need them (I3).

Exceptions: `FileFailure` only. All implementations may be used from any thread; one handle may be
read by many threads at once, and is closed once, after the last call on it has returned.
It knows nothing of packs, journals, retries or deadlines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from sharedfs_backend.files.failure import FailureKind, FileFailure

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from sharedfs_backend.native import Extent, Loaded, NativeHasher, Part
else:
    Buffer = object

__all__ = [
    "Buffer",
    "Files",
    "Handle",
    "OPERATIONS",
    "PATH_BYTES_MAX",
    "WRITE_PARTS_MAX",
    "checked_path",
    "write_operations",
]

OPERATIONS = (
    "create",
    "open",
    "read",
    "write",
    "flush",
    "close",
    "unlink",
    "list",
    "mkdir",
    "stat",
)
"""Names under which operations are counted, in failures and in logs."""

PATH_BYTES_MAX = 200
WRITE_PARTS_MAX = 1024
"""IOV_MAX on Linux: a write of more parts is more than one operation, and is counted so."""

_PATH = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]*(?:/[0-9A-Za-z_-][0-9A-Za-z._-]*)*")


class Handle(Protocol):
    """An open file. Opaque: only the `Files` that made it may look inside."""

    @property
    def path(self) -> str:
        """The path it was opened with."""


CachedRead = Callable[[Handle, int, Sequence[memoryview]], int]
"""`LocalFiles.read_cached`: bytes read at an offset from this machine's memory, 0 for none."""

HashedRead = Callable[[Handle, int, "Sequence[Extent]"], "list[bytes] | None"]
"""`LocalFiles.read_hashed`: the same to the extents, in steps; the digest of each unit, or None."""

HashedWrite = Callable[[Handle, int, "Sequence[Extent]", "NativeHasher"], "list[bytes] | None"]
"""`LocalFiles.write_hashed`: the extents written at an offset, in steps; the digest of each unit
that ends in them, None if the hasher's stops ended it."""


CheckedLoad = Callable[[Handle, int, int, int, "Sequence[Part]", int], "Loaded | None"]
"""`LocalFiles.load`: (handle, offset, a private buffer's address, bytes of a step, parts, address
of a stop word)."""


class Files(Protocol):
    """A namespace root on some file system."""

    def create(self, path: str) -> Handle:
        """A new empty file, open for writing. EXISTS if the name is taken, MISSING if its
        directory is. Exclusive only as far as the file system goes: two callers may both
        succeed on GekkoFS (I3)."""

    def open_read(self, path: str) -> Handle:
        """An existing file, open for reading."""

    def open_write(self, path: str) -> Handle:
        """An existing file, open for writing at any offset. Never creates: MISSING instead."""

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        """Number of bytes read at `offset` into the writable byte buffer `into`, 0 at the end.

        One system call; it may return less than asked. A short read inside a file is a failed
        read, not a prefix (GekkoFS leaves holes): only the end of a file may end one."""

    def write(self, handle: Handle, offset: int, parts: Sequence[Buffer]) -> None:
        """Write the concatenation of `parts` (C-contiguous buffers) at `offset`, all of it.

        One operation for each `WRITE_PARTS_MAX` parts, unless the file system writes short."""

    def flush(self, handle: Handle, offset: int, length: int) -> None:
        """Start and await write-back of a range and drop its clean pages; nothing where the
        profile knows no way. Only bounds this machine's dirty pages: promises no durability."""

    def close(self, handle: Handle) -> None:
        """Close. A failure means that earlier writes may be lost; the handle is gone either way."""

    def unlink(self, path: str) -> None:
        """Remove a file's name. MISSING if there is none."""

    def list(self, path: str) -> list[str]:
        """Base names in a directory ("" is the root), in no order, perhaps incomplete. MISSING
        if there is no such directory. Never on a request path."""

    def make_dir(self, path: str) -> None:
        """The directory exists afterwards ("" is the root itself); its parent must exist."""

    def size(self, path: str) -> int:
        """Size in bytes as the file system claims it. Tools and background work only."""

    def free_bytes(self) -> int | None:
        """Bytes that may still be written, or None where the file system cannot tell."""


def checked_path(path: str, operation: str) -> str:
    """`path`, if it stays below the root and is spelt in the namespace's characters."""
    if len(path) > PATH_BYTES_MAX or _PATH.fullmatch(path) is None:
        raise FileFailure(
            FailureKind.DENIED, operation, repr(path), "not a path below the namespace root"
        )
    return path


def write_operations(parts: int) -> int:
    """Number of operations a write of `parts` buffers costs."""
    return max(1, -(-parts // WRITE_PARTS_MAX))
