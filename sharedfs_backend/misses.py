"""Why a chunk was not loaded, and what follows for its catalog entry. Values and one table.

A miss is a value, never an exception. *Condemned* entries leave this process's catalog for good:
what they promise is known not to be there. *Suspended* ones are tried again later: a stall must not
empty the catalog (I6). It must not know who reads, or how.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sharedfs_backend.files import FailureKind


class MissKind(enum.Enum):
    """The closed set of reasons; counted and logged by its value."""

    MISSING = "missing"  # no such pack, on a fresh open
    CHECKSUM = "checksum"  # all bytes came, other ones than were stored
    SHORT = "short"  # fewer bytes than asked for
    STALE = "stale"  # the handle went stale, and so did a new one
    IO = "io"  # the storage failed
    TIMEOUT = "timeout"  # the file system gave up waiting
    DENIED = "denied"
    SICK = "sick"  # not tried: the file system is known to be ill
    DEADLINE = "deadline"  # not done in time
    BUSY = "busy"  # too much queued already
    WRONG_SIZE = "wrong_size"  # the caller's buffer has another size than the chunk
    CANCELLED = "cancelled"  # the caller's wish
    CLOSED = "closed"


class Verdict(enum.Enum):
    """What a miss says about the catalog's entry."""

    NONE = "none"
    CONDEMN_CHUNK = "condemn_chunk"
    CONDEMN_PACK = "condemn_pack"
    SUSPEND = "suspend"


_VERDICTS = {
    MissKind.MISSING: Verdict.CONDEMN_PACK,
    MissKind.CHECKSUM: Verdict.CONDEMN_CHUNK,
    MissKind.SHORT: Verdict.SUSPEND,
    MissKind.STALE: Verdict.SUSPEND,
    MissKind.IO: Verdict.SUSPEND,
    MissKind.TIMEOUT: Verdict.SUSPEND,
    MissKind.DENIED: Verdict.SUSPEND,
    MissKind.SICK: Verdict.SUSPEND,
    MissKind.DEADLINE: Verdict.SUSPEND,
    MissKind.BUSY: Verdict.NONE,
    MissKind.WRONG_SIZE: Verdict.NONE,
    MissKind.CANCELLED: Verdict.NONE,
    MissKind.CLOSED: Verdict.NONE,
}

_KINDS_OF_FAILURES = {
    FailureKind.MISSING: MissKind.MISSING,
    FailureKind.STALE: MissKind.STALE,
    FailureKind.DENIED: MissKind.DENIED,
    FailureKind.TIMEOUT: MissKind.TIMEOUT,
    FailureKind.SICK: MissKind.SICK,
}
"""Everything else a file operation may say is IO."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A chunk was not loaded. `detail` is for the log: wanted, found."""

    kind: MissKind
    detail: str = ""

    @property
    def verdict(self) -> Verdict:
        return _VERDICTS[self.kind]


def kind_of_open_failure(kind: FailureKind) -> MissKind:
    """A fresh open said so: only here does MISSING mean that the pack is gone."""
    return _KINDS_OF_FAILURES.get(kind, MissKind.IO)


def kind_of_read_failure(kind: FailureKind) -> MissKind:
    """A read on an open handle said so: the name may well exist."""
    return MissKind.IO if kind is FailureKind.MISSING else kind_of_open_failure(kind)
