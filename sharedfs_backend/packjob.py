"""PackJob: one pack to be written, planned; and what became of it. Values.

The buffers stay the callers': each chunk comes with the gate of the task that lent it. It must not
know how or when anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sharedfs_backend.files import Buffer, FileFailure
from sharedfs_backend.gate import Gate
from sharedfs_backend.layout import LayoutDescriptor, PackCommit, PackName, PackPlan, plan_pack

LATE = "late"
CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, eq=False)
class PackJob:
    """What is to become the pack `name`, its chunks in prefix order.

    `views` are flat read-only views of the buffers. `submitted` is the instant of `Runtime.now`
    from which on they are lent, for `ttl_seconds`."""

    name: PackName
    realm: bytes
    layout: LayoutDescriptor
    fingerprint: bytes
    rank: int
    version: int
    keys: tuple[bytes, ...]
    views: tuple[memoryview, ...]
    gates: tuple[Gate, ...]
    submitted: float
    ttl_seconds: float
    place: PackPlan

    @classmethod
    def plan(
        cls,
        *,
        name: PackName,
        realm: bytes,
        layout: LayoutDescriptor,
        fingerprint: bytes,
        rank: int,
        version: int,
        keys: Sequence[bytes],
        buffers: Sequence[Buffer],
        gates: Sequence[Gate],
        submitted: float,
        ttl_seconds: float,
        align_bytes: int,
    ) -> PackJob:
        """The job with everything placed. Raises ValueError for a buffer that is not contiguous."""
        if not len(keys) == len(buffers) == len(gates):
            raise ValueError("a key, a buffer and a gate for each chunk")
        views = tuple(_flat(buffer) for buffer in buffers)
        place = plan_pack(layout, [view.nbytes for view in views], align_bytes)
        return cls(
            name=name,
            realm=realm,
            layout=layout,
            fingerprint=fingerprint,
            rank=rank,
            version=version,
            keys=tuple(keys),
            views=views,
            gates=tuple(gates),
            submitted=submitted,
            ttl_seconds=ttl_seconds,
            place=place,
        )

    @property
    def total_bytes(self) -> int:
        """Size of the file once complete."""
        return self.place.total_bytes

    @property
    def payload_bytes(self) -> int:
        return sum(view.nbytes for view in self.views)


@dataclass(frozen=True, slots=True)
class WrittenPack:
    """A complete, closed pack, ready to be committed."""

    commit: PackCommit
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """`written`, or why not: `reason` is LATE, CANCELLED or the failure's kind.

    `created` says whether a file of that name may exist and is this writer's to remove."""

    written: WrittenPack | None
    created: bool
    reason: str = ""
    failure: FileFailure | None = None


def _flat(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("a buffer is not contiguous")
    return view.cast("B").toreadonly() if view.nbytes else memoryview(b"")
