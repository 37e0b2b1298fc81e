"""Profile: what a file system can do, and the sizes and habits chosen for it. A value, no I/O.

Named profiles are starting points; `probe.py` replaces their abilities by what really worked, the
namespace keeps the result, and each mount is checked against it. An ability that is not sure is
"cannot": everything here only makes the store faster or kinder, never correct (I3).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

KIB = 1024
MIB = 1024 * KIB
PIECE_BYTES = 4 * MIB
"""A checksum unit: pieces are cut at unit boundaries, a bigger one is a whole number of units."""
PIECE_BYTES_MAX = 64 * MIB
PACKS_AT_ONCE = 8
"""A thread that writes mostly waits, so several write at once; a page cache keeps a core busy, and
there more packs than cores only take longer together."""


class FlushMethod(enum.Enum):
    """How dirty pages of an open file are written back and let go."""

    NONE = "none"  # no page cache to bound, or no call that works
    RANGE = "range"  # sync_file_range + fadvise(DONTNEED)
    DATASYNC = "datasync"  # fdatasync + fadvise: NFS pages stay pinned until a COMMIT


class CachedReads(enum.Enum):
    """How a read can be had that answers from memory at once, or says that it cannot."""

    NONE = "none"  # no such call here: any read may wait for the file system
    NOWAIT = "nowait"  # preadv2 with RWF_NOWAIT
    MEMORY = "memory"  # every read is one: the files lie in this machine's memory


@dataclass(frozen=True, slots=True)
class Profile:
    """Abilities (probed), sizes in bytes, habits."""

    name: str = "posix"
    # abilities
    rename: bool = True
    vectored: bool = True
    fadvise: bool = True
    direct_io: bool = True
    mtime: bool = True
    statvfs: bool = True
    flush: FlushMethod = FlushMethod.RANGE
    cached_reads: CachedReads = CachedReads.NONE
    request_bytes_max: int = PIECE_BYTES_MAX  # a longer read becomes requests one after the other
    # sizes
    align_bytes: int = 4 * KIB
    piece_bytes: int = PIECE_BYTES
    pack_bytes_max: int = 128 * MIB
    read_depth_max: int = 128
    packs_at_once: int = PACKS_AT_ONCE  # of a batch, each written by one thread; 0: one a core
    # habits
    unlink_needs_end: bool = False  # a journal is unlinked only after its owner's end record
    orphans_offline_only: bool = False  # never unlink what a frozen writer may still write to

    def __post_init__(self) -> None:
        if self.align_bytes % (4 * KIB) or not 0 < self.align_bytes <= 64 * MIB:
            raise ValueError(f"align_bytes {self.align_bytes} is not a multiple of 4096")
        for name in ("piece_bytes", "request_bytes_max"):
            size = getattr(self, name)
            if size % (64 * KIB) or not 0 < size <= PIECE_BYTES_MAX:
                raise ValueError(f"{name} {size} is not a multiple of 65536")
        if not 64 * MIB <= self.pack_bytes_max <= 256 * MIB:
            raise ValueError(f"pack_bytes_max {self.pack_bytes_max} is not within 64-256 MiB")
        if not 0 <= self.packs_at_once <= 64:
            raise ValueError(f"packs_at_once {self.packs_at_once} is not within 0-64")
        if not 1 <= self.read_depth_max <= 1024:
            raise ValueError(f"read_depth_max {self.read_depth_max} is not within 1-1024")

    @property
    def read_bytes(self) -> int:
        """What one read asks for."""
        return min(self.piece_bytes, self.request_bytes_max)

    def packs_for(self, cores: int) -> int:
        """Into how many packs a batch is split that is large enough."""
        return self.packs_at_once or min(PACKS_AT_ONCE, max(1, cores))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; `from_dict` is its inverse."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"flush": self.flush.value, "cached_reads": self.cached_reads.value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Profile:
        """The profile a mapping describes. Unknown keys (a newer version's) are ignored; a value
        of the wrong type or out of bounds raises ValueError."""
        defaults = NAMED.get(str(values.get("name")), cls())
        known: dict[str, Any] = {}
        for field in fields(cls):
            if field.name not in values:
                continue
            value = values[field.name]
            if field.name == "flush":
                value = FlushMethod(value)
            elif field.name == "cached_reads":
                value = CachedReads(value)
            elif type(value) is not type(getattr(defaults, field.name)):
                raise ValueError(f"profile: {field.name} is {value!r}")
            known[field.name] = value
        return replace(defaults, **known)


POSIX = Profile()
# What every file system can do, GekkoFS' preload client included: for whoever has not probed yet.
UNPROBED = Profile(
    rename=False,
    vectored=False,
    fadvise=False,
    direct_io=False,
    mtime=False,
    flush=FlushMethod.NONE,
)
# A page cache, where an operation is a memory copy: a piece stays in one core's own cache.
# The kernel bounds dirty pages of a local disk itself, and what was written is read next.
LOCAL = replace(
    POSIX,
    name="local",
    piece_bytes=MIB,
    read_depth_max=8,
    packs_at_once=0,
    flush=FlushMethod.NONE,
)
# A rename there shows other clients a mixture, and times are cached: neither is an ability.
# 1 MiB is the largest NFS request; the client splits a 4 MiB read into four in flight together.
NFS = replace(
    POSIX, name="nfs", rename=False, direct_io=False, mtime=False, flush=FlushMethod.DATASYNC
)
# Larger pieces meet more stripes at once; the metadata server, not the data path, is the limit.
LUSTRE = replace(POSIX, name="lustre", align_bytes=MIB, pack_bytes_max=256 * MIB)
GLUSTERFS = replace(POSIX, name="glusterfs", direct_io=False, flush=FlushMethod.DATASYNC)
# Chunks of 512 KiB are spread over the daemons; preload client: no vectored call, no page cache.
GEKKOFS = Profile(
    name="gekkofs",
    rename=False,
    vectored=False,
    fadvise=False,
    direct_io=False,
    mtime=False,
    statvfs=True,
    flush=FlushMethod.NONE,
    align_bytes=512 * KIB,
    unlink_needs_end=True,
    orphans_offline_only=True,
)

NAMED: dict[str, Profile] = {
    profile.name: profile for profile in (POSIX, LOCAL, NFS, LUSTRE, GLUSTERFS, GEKKOFS)
}
