"""What is known of packs, writers and bytes: the values the ledger is made of.

A pack's three facts (committed, dropped, gone) only ever become true, so records may be read in
any order (I4). Times are this observer's own, on its monotonic clock (I3). Nothing here decides
anything or touches a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sharedfs_backend.layout import LayoutDescriptor, PackName


@dataclass(slots=True, eq=False)
class Pack:
    """One pack's facts. `pack_id` is its number in the catalog, -1 when it is not there."""

    name: PackName
    pack_id: int = -1
    realm: bytes = b""
    layout: LayoutDescriptor | None = None
    rank: int = 0
    version: int = 0
    total_bytes: int = 0
    committed: bool = False
    dropped: bool = False
    gone: bool = False
    snapshotted: bool = False
    first_seen: float = 0.0
    dropped_seen: float = 0.0
    committers: tuple[str, ...] = ()

    @property
    def live(self) -> bool:
        return self.committed and not self.dropped and not self.gone


@dataclass(slots=True)
class WriterView:
    """How far one journal was read, and when it was last seen to change."""

    writer: str
    covered: int = 0
    nbytes: int = 0
    ended: bool = False
    vanished: bool = False
    unreadable: bool = False
    first_seen: float = 0.0
    last_change: float = 0.0
    last_polled: float = 0.0
    """When the last reading of its journal without an error began: silence is only what was
    listened to, and a process frozen while it reads listens to nothing."""


MERGE_SLACK_BYTES = 16 << 10
"""Of a snapshot's own framing, and of the small files nobody counts."""


@dataclass(slots=True)
class BytesKnown:
    """Bytes below the root as far as this process knows."""

    live_bytes: int = 0
    dropped_bytes: int = 0
    orphan_bytes: int = 0
    journal_bytes: int = 0
    snapshot_bytes: int = 0

    @property
    def merge_bytes(self) -> int:
        """Room for what may be written beside them without credit: all journals and snapshots
        merged into one more snapshot, or said again in a new journal."""
        return self.journal_bytes + self.snapshot_bytes + MERGE_SLACK_BYTES

    @property
    def total_bytes(self) -> int:
        return (
            self.live_bytes
            + self.dropped_bytes
            + self.orphan_bytes
            + self.journal_bytes
            + self.snapshot_bytes
        )


@dataclass(slots=True)
class Changes:
    """What applying records newly brought: for closing descriptors and for the audit."""

    committed: list[Pack] = field(default_factory=list)
    dropped: list[Pack] = field(default_factory=list)


def sort_key(name: PackName) -> bytes:
    """Orders names the same way everywhere: the lower name wins between equal versions."""
    return name.digest + bytes.fromhex(name.writer) + name.seq.to_bytes(8, "big")
