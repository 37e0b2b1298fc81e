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

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sharedfs_backend.context import Context
from sharedfs_backend.directories import names_in
from sharedfs_backend.facts import Changes
from sharedfs_backend.files import FailureKind, FileFailure, Files
from sharedfs_backend.layout import (
    SNAPSHOTS,
    BadValue,
    Coverage,
    FormatError,
    NewerVersion,
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

LOOK_AGAIN_SECONDS_MAX = 60.0
"""A file that does not verify is read again after 1, 2, 4, ... seconds: it may be on its way."""

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


@dataclass(frozen=True, slots=True)
class Invalid:
    """A file that did not verify: torn, foreign, or being written at this moment."""

    since: float
    looks: int
    look_again: float


class SnapshotReader:
    """Adopts every valid snapshot it has not seen. Thread-safe: refresh and chores both use it.

    `on_changes(changes)` hears what merging one newly brought.
    """

    def __init__(
        self,
        context: Context,
        ledger: Ledger,
        on_changes: Callable[[Changes], None] = lambda changes: None,
    ) -> None:
        self._files = context.files
        self._runtime = context.runtime
        self._seal = context.seal
        self._stats = context.stats
        self._rules = context.rules
        self._ledger = ledger
        self._on_changes = on_changes
        self._lock = threading.Lock()
        self._sizes: dict[SnapshotName, int] = {}
        self._invalid: dict[SnapshotName, Invalid] = {}
        self._covered: set[str] = set()
        self.adopted: dict[SnapshotName, Adopted] = {}
        """Valid snapshots that existed at the last look. Replaced, never changed in place."""
        self.verified_at: dict[SnapshotName, float] = {}
        self.newer: frozenset[SnapshotName] = frozenset()
        """Written by a later version: not understood, and not to be touched."""
        self.unreadable: dict[SnapshotName, FileFailure] = {}
        """Listed, and the last look at them failed. Replaced, never changed in place."""

    def covers(self, writer: str) -> bool:
        """Some snapshot adopted here covers this writer's journal."""
        return writer in self._covered

    def read_new(self, files: Files | None = None) -> bool:
        """List, read and merge what is new; False if that could not be done completely.

        `files`: the caller's own, so that operations count as part of its work."""
        files = files if files is not None else self._files
        try:
            names = recognised(SnapshotName.parse, names_in(files, SNAPSHOTS))
        except FileFailure as failure:
            self._stats.failed(failure, "listing the snapshots")
            return False
        complete = True
        names.sort(reverse=True)
        if not self._rules.readers_merge_all_snapshots:
            names = names[:1]
        for name in names:
            if name not in self.adopted and name not in self.newer:
                complete &= self._read(files, name)
        self._keep_only(set(names))
        return complete

    def invalid(self) -> dict[SnapshotName, float]:
        """Files that did not verify -> when that was first seen."""
        with self._lock:
            return {name: found.since for name, found in self._invalid.items()}

    def _read(self, files: Files, name: SnapshotName) -> bool:
        now = self._runtime.now()
        known = self._invalid.get(name)
        if known is not None and now < known.look_again:
            return True
        try:
            data = read_whole(files, name.path, SNAPSHOT_BYTES_MAX)
        except FileFailure as failure:
            self._stats.failed(failure, "reading a snapshot")
            if failure.kind is FailureKind.MISSING:
                return True
            with self._lock:
                self.unreadable = {**self.unreadable, name: failure}
            return False
        self.noted(name, len(data))
        try:
            snapshot = decode_snapshot(data, self._seal)
        except NewerVersion as error:
            self.newer |= {name}
            self._stats.once("snapshots_newer", "snapshot %s: %s; upgrade", name.path, error)
            return True
        except FormatError as error:
            looks = 1 if known is None else known.looks + 1
            wait = min(LOOK_AGAIN_SECONDS_MAX, 0.5 * 2.0**looks)
            since = now if known is None else known.since
            with self._lock:
                self._invalid[name] = Invalid(since, looks, now + wait)
            self._stats.once("snapshots_invalid", "snapshot %s is not valid: %s", name.path, error)
            return True
        self.adopt(name, snapshot)
        return True

    def adopt(self, name: SnapshotName, snapshot: Snapshot) -> None:
        """Merge a verified snapshot into the ledger."""
        now = self._runtime.now()
        changes = self._ledger.adopt(snapshot, now)
        adopted = Adopted.of(snapshot)
        with self._lock:
            self._invalid.pop(name, None)
            self.adopted = {**self.adopted, name: adopted}
            self._covered.update(snapshot.coverage)
            self.verified_at.setdefault(name, now)
        self._stats.add("snapshots_adopted")
        if changes.committed or changes.dropped:
            self._on_changes(changes)

    def noted(self, name: SnapshotName, nbytes: int) -> None:
        """The size of a file just read or written."""
        with self._lock:
            self._sizes[name] = nbytes
            if name in self.unreadable:
                self.unreadable = {n: why for n, why in self.unreadable.items() if n != name}
        self._tell_sizes()

    def removed(self, name: SnapshotName) -> None:
        known = {*self.adopted, *self._invalid, *self.newer, *self.unreadable, *self._sizes}
        self._keep_only(known - {name})

    def _keep_only(self, names: set[SnapshotName]) -> None:
        """What is known of other files is forgotten."""
        with self._lock:
            if not (set(self.adopted) | set(self._sizes) | set(self._invalid)) <= names:
                self.adopted = {n: kept for n, kept in self.adopted.items() if n in names}
                self._covered = {w for kept in self.adopted.values() for w in kept.coverage}
                self.verified_at = {n: at for n, at in self.verified_at.items() if n in names}
                self._sizes = {n: size for n, size in self._sizes.items() if n in names}
                self._invalid = {n: found for n, found in self._invalid.items() if n in names}
            if not self.unreadable.keys() <= names:
                self.unreadable = {n: why for n, why in self.unreadable.items() if n in names}
            self.newer &= names
        self._tell_sizes()

    def _tell_sizes(self) -> None:
        with self._lock:
            sizes = {name.path: size for name, size in self._sizes.items()}
        self._ledger.see_snapshots(sizes)


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
