"""The one exception of the file layer, and the border where `OSError` becomes it.

    Exception
    +-- FileFailure      kind, operation, path, detail

Callers decide by `kind` alone: the closed set below is what the protocol distinguishes, not what
errno can say. The table is total (an errno it does not know is `IO`), so no foreign exception
passes this border. It knows errno numbers and nothing of packs, journals or retries (I6).
"""

from __future__ import annotations

import enum
import errno
import os


class FailureKind(enum.Enum):
    """What went wrong, as far as a caller may act on it."""

    MISSING = "missing"  # no such name (or a parent is missing or no directory)
    EXISTS = "exists"  # the name is taken
    STALE = "stale"  # the handle no longer leads to its file: one re-open may help
    NO_SPACE = "no_space"  # the device or the quota is full
    IO = "io"  # the storage failed; nothing is known about the bytes
    UNSUPPORTED = "unsupported"  # the file system or its client cannot do this at all
    DENIED = "denied"  # permissions, a read-only mount, or a name we refuse to follow
    TIMEOUT = "timeout"  # the file system gave up waiting for a server
    SICK = "sick"  # not tried: the breaker is open (see health.py)


KIND_OF_ERRNO: dict[int, FailureKind] = {
    errno.ENOENT: FailureKind.MISSING,
    errno.ENOTDIR: FailureKind.MISSING,
    errno.EEXIST: FailureKind.EXISTS,
    errno.ESTALE: FailureKind.STALE,
    errno.ENOSPC: FailureKind.NO_SPACE,
    errno.EDQUOT: FailureKind.NO_SPACE,
    errno.EOPNOTSUPP: FailureKind.UNSUPPORTED,  # the same number as ENOTSUP on Linux
    errno.ENOSYS: FailureKind.UNSUPPORTED,
    errno.ENOTTY: FailureKind.UNSUPPORTED,
    errno.EACCES: FailureKind.DENIED,
    errno.EPERM: FailureKind.DENIED,
    errno.EROFS: FailureKind.DENIED,
    errno.ELOOP: FailureKind.DENIED,  # a symbolic link where one of our files belongs
    errno.ETIMEDOUT: FailureKind.TIMEOUT,
}
"""Everything else (EIO, EBADF, ENOTCONN, EMFILE, EISDIR, ...) is `IO`: back off, try later."""


class FileFailure(Exception):
    """A file operation that did not succeed. `errno` is 0 where no system call failed."""

    def __init__(
        self, kind: FailureKind, operation: str, path: str, detail: str, errno: int = 0
    ) -> None:
        super().__init__(kind, operation, path, detail, errno)
        self.kind = kind
        self.operation = operation
        self.path = path
        self.detail = detail
        self.errno = errno

    def __str__(self) -> str:
        return f"{self.operation} {self.path or '.'}: {self.kind.value}: {self.detail}"


def kind_of(number: int) -> FailureKind:
    """The kind an errno stands for."""
    return KIND_OF_ERRNO.get(number, FailureKind.IO)


def translate(error: OSError, operation: str, path: str) -> FileFailure:
    """The `FileFailure` that says what `error` says. The caller raises it `from` the error."""
    number = error.errno or 0
    name = errno.errorcode.get(number, "?")
    return FileFailure(kind_of(number), operation, path, f"{name} ({os.strerror(number)})", number)
