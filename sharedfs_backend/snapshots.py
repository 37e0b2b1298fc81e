"""Snapshots: many journals merged into one file, so that journals can be retired.

A snapshot covers every realm, opened here or not: every pack, every tombstone, and the offset up
to which each journal is contained in it; nothing local (no condemnations). Readers merge *all*
valid snapshots, and merging one never revives a dropped name.

Order of removal: a new snapshot is written, read back and verified; the snapshots that it names as
parents go one lease after that; a journal goes when a verified snapshot covers it whole and its
writer is dead or has ended it; a tombstone is forgotten when no journal and no snapshot is left
that could name the pack. So deleting any file at any moment costs hits at most (I5), and nothing
that was published is lost (I4).

A crash after each step leaves: half a file (no valid trailer: ignored, later removed as a dead
writer's), a snapshot too many (a parent of the next one), a journal too many (skipped by its
coverage). Runs on background workers only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sharedfs_backend.context import Context
from sharedfs_backend.files import FailureKind, FileFailure, Files
from sharedfs_backend.layout import (
    SNAPSHOTS,
    BadValue,
    Coverage,
    FormatError,
    PackName,
    PackState,
    Snapshot,
    SnapshotName,
    decode_snapshot,
)
from sharedfs_backend.ledger import Ledger

READ_BYTES = 4 << 20
SNAPSHOT_BYTES_MAX = 4 << 30
"""10^7 chunks are about 0.5 GB; a bigger file is not one of ours."""

_T = TypeVar("_T")


def recognised(parse: Callable[[str], _T], names: Iterable[str]) -> list[_T]:
    """What `parse` recognises among `names`; foreign files are passed over."""
    found: list[_T] = []
    for name in names:
        try:
            found.append(parse(name))
        except BadValue:
            continue
    return found


@dataclass(frozen=True, slots=True)
class Adopted:
    """What is kept of a merged snapshot: parents, coverage, and which packs it calls not gone.

    `not_gone` holds the first 8 bytes of those packs' digests, sorted: enough to say "surely not
    named here" in 8 bytes a pack; a chance collision only keeps a tombstone for longer.
    """

    parents: tuple[SnapshotName, ...]
    coverage: dict[str, Coverage]
    not_gone: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Adopted:
        rows = snapshot.packs
        heads = np.frombuffer(bytes(rows.digests), "<u8")[::2]
        return cls(
            snapshot.parents,
            snapshot.coverage,
            np.sort(heads[rows.states != PackState.GONE]),
        )

    def may_name(self, name: PackName) -> bool:
        head = np.frombuffer(name.digest[:8], "<u8")[0]
        at = int(np.searchsorted(self.not_gone, head))
        return at < len(self.not_gone) and bool(self.not_gone[at] == head)


class SnapshotReader:
    """Adopts every valid snapshot it has not seen. One thread at a time calls `read_new`."""

    def __init__(self, context: Context, ledger: Ledger) -> None:
        self._files = context.files
        self._runtime = context.runtime
        self._seal = context.seal
        self._stats = context.stats
        self._rules = context.rules
        self._ledger = ledger
        self._sizes: dict[str, int] = {}
        self._invalid: dict[SnapshotName, float] = {}
        self._covered: set[str] = set()
        self.adopted: dict[SnapshotName, Adopted] = {}
        """Valid snapshots that existed at the last look."""
        self.verified_at: dict[SnapshotName, float] = {}

    def covers(self, writer: str) -> bool:
        """Some snapshot adopted here covers this writer's journal."""
        return writer in self._covered

    def read_new(self) -> bool:
        """List, read and merge what is new; False if that could not be done completely."""
        try:
            names = recognised(SnapshotName.parse, self._files.list(SNAPSHOTS))
        except FileFailure as failure:
            self._stats.failed(failure, "listing the snapshots")
            return False
        complete = True
        names.sort(reverse=True)
        if not self._rules.readers_merge_all_snapshots:
            names = names[:1]
        for name in names:
            if name not in self.adopted:
                complete &= self._read(name)
        for name in set(self.adopted) - set(names):
            del self.adopted[name]
        self._sizes = {
            path: n for path, n in self._sizes.items() if path in {s.path for s in names}
        }
        self._ledger.see_snapshots(self._sizes)
        return complete

    def invalid(self) -> dict[SnapshotName, float]:
        """Files that did not verify -> when that was first seen."""
        return dict(self._invalid)

    def _read(self, name: SnapshotName) -> bool:
        now = self._runtime.now()
        try:
            data = read_whole(self._files, name.path, SNAPSHOT_BYTES_MAX)
        except FileFailure as failure:
            self._stats.failed(failure, "reading a snapshot")
            return failure.kind is FailureKind.MISSING
        self._sizes[name.path] = len(data)
        try:
            snapshot = decode_snapshot(data, self._seal)
        except FormatError as error:
            self._invalid.setdefault(name, now)
            self._stats.once("snapshots_invalid", "snapshot %s is not valid: %s", name.path, error)
            return True
        self.adopt(name, snapshot)
        return True

    def adopt(self, name: SnapshotName, snapshot: Snapshot) -> None:
        """Merge a verified snapshot into the ledger."""
        now = self._runtime.now()
        self._ledger.adopt(snapshot, now)
        self._covered.update(snapshot.coverage)
        self._invalid.pop(name, None)
        self.adopted[name] = Adopted.of(snapshot)
        self.verified_at.setdefault(name, now)
        self._stats.add("snapshots_adopted")

    def noted(self, name: SnapshotName, nbytes: int) -> None:
        """The size of a file just written."""
        self._sizes[name.path] = nbytes
        self._ledger.see_snapshots(self._sizes)

    def removed(self, name: SnapshotName) -> None:
        self.adopted.pop(name, None)
        self._invalid.pop(name, None)
        self._sizes.pop(name.path, None)
        self._ledger.see_snapshots(self._sizes)


def read_whole(files: Files, path: str, bytes_max: int) -> bytearray:
    """A file's bytes, in reads of 4 MiB. Raises FileFailure, also past `bytes_max`."""
    handle = files.open_read(path)
    try:
        data = bytearray()
        buffer = memoryview(bytearray(READ_BYTES))
        while True:
            count = files.read(handle, len(data), buffer)
            data += buffer[:count]
            if count < len(buffer):
                return data
            if len(data) > bytes_max:
                raise FileFailure(FailureKind.IO, "read", path, f"longer than {bytes_max} bytes")
    finally:
        files.close(handle)
