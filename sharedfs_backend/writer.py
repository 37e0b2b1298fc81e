"""PackWriter: brings one pack to the file system in as few operations as it takes.

create, payload (hashed and written piece by piece while in cache), header, check, trailer, close. A
pack that fits one write gets header and payload in that one, except in the compiled loops. Once the
last byte of the buffers has been read, clock and gates are checked: past half of the buffers'
time-to-live their content may be someone else's by now, under a valid checksum, so the pack is
abandoned without a trailer and nobody can adopt it (I7). A failure anywhere, the close included,
loses the pack.

Keeps I1: the name is never tried a second time. Buffers are touched inside their tasks' gates only.
It commits nothing: a crash before the trailer is whole leaves an invalid file, one after it a valid
pack that no journal names; both are orphans, removed or adopted. Runs on the thread that calls it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from sharedfs_backend.buffers import address_of
from sharedfs_backend.dirty import DirtyBudget
from sharedfs_backend.files import (
    Buffer,
    FailureKind,
    FileFailure,
    Files,
    Handle,
    HashedWrite,
)
from sharedfs_backend.gate import Gate
from sharedfs_backend.layout import (
    UNIT_BYTES,
    ChunkEntry,
    EntryTable,
    Hasher,
    PackCommit,
    PackHeader,
    Seal,
    encode_header,
    encode_trailer,
    header_checksum,
)
from sharedfs_backend.native import Loops, NativeHasher
from sharedfs_backend.packjob import CANCELLED, LATE, PackJob, WriteOutcome, WrittenPack
from sharedfs_backend.rules import Rules
from sharedfs_backend.runtime import Runtime
from sharedfs_backend.writeplan import PADDING, Part, WritePiece, plan_writes
from sharedfs_backend.writestep import addresses_of, extents_of

__all__ = ["PackJob", "PackWriter", "WriteOutcome", "WrittenPack"]

logger = logging.getLogger("sharedfs.writer")

WRITE_BYTES = 8 << 20
"""Of one write where operations cost: it is hashed first, and most of it is still in a shared
cache when it is written. A profile with pieces below a checksum unit writes those, one by one or,
in the compiled loops, as the steps of one call."""

ONE_WRITE_BYTES_MAX = 17 << 20
"""Header and payload go out together up to this size, which a pack of 16 MiB payload does not
exceed. Everything must be hashed before that, so what is larger has left the cache by then; there
the header's own operation costs less."""

_SURELY_NOT_CREATED = {
    FailureKind.MISSING,
    FailureKind.EXISTS,
    FailureKind.NO_SPACE,
    FailureKind.UNSUPPORTED,
    FailureKind.DENIED,
    FailureKind.SICK,
}


class _Abandoned(Exception):
    """Inside this module: the pack is given up; `reason` is LATE or CANCELLED."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PackWriter:
    """Writes packs. Thread-safe: each `write` has its own state; the budget is shared."""

    def __init__(
        self,
        files: Files,
        runtime: Runtime,
        seal: Seal,
        *,
        piece_bytes: int,
        dirty: DirtyBudget,
        write_hashed: HashedWrite | None = None,
        loops: Loops | None = None,
        rules: Rules | None = None,
    ) -> None:
        """`write_hashed`, with `loops`: writes and hashes in small steps, where an operation is
        only a system call and the seal has no secret."""
        self._loops = None if seal.keyed else loops
        self._write_hashed = None if self._loops is None else write_hashed
        self._files = files
        self._runtime = runtime
        self._seal = seal
        if self._write_hashed is not None or piece_bytes >= UNIT_BYTES:
            piece_bytes = max(piece_bytes, WRITE_BYTES)
        self._piece_bytes = piece_bytes
        self._dirty = dirty
        self._rules = rules or Rules()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._logged: set[str] = set()

    def write(self, job: PackJob) -> WriteOutcome:
        """Write the pack; never raises for what a file system does. When it returns, no thread
        touches the job's buffers any more."""
        try:
            handle = self._create(job)
        except FileFailure as failure:
            return self._lost(job, failure, created=failure.kind not in _SURELY_NOT_CREATED)
        pack = _OpenPack(self, job, handle)
        try:
            table = pack.write_all()
        except (FileFailure, _Abandoned) as failure:
            try:
                pack.close()
            except FileFailure:
                self.count("close_failures")  # the pack is lost already
            return self._lost(job, failure, created=True)
        except BaseException:  # our own mistake: it costs the pack, not a descriptor
            with suppress(FileFailure):  # what it says about the pack is of no interest
                pack.close()
            raise
        try:
            pack.close()
        except FileFailure as failure:
            return self._lost(job, failure, created=True)
        self.count("packs_written")
        self.count("pack_bytes_written", job.total_bytes)
        commit = PackCommit(
            name=job.name,
            realm=job.realm,
            layout=job.layout,
            rank=job.rank,
            version=job.version,
            total_bytes=job.total_bytes,
            entries=table,
        )
        return WriteOutcome(WrittenPack(commit, job.payload_bytes), created=True)

    def _create(self, job: PackJob) -> Handle:
        path = job.name.path
        try:
            return self._files.create(path)
        except FileFailure as failure:
            if failure.kind is not FailureKind.MISSING:
                raise
        # Made when the namespace was; someone removed it. The name was not used: nothing was there.
        self._files.make_dir(path.rpartition("/")[0])
        return self._files.create(path)

    def _lost(self, job: PackJob, why: FileFailure | _Abandoned, *, created: bool) -> WriteOutcome:
        failure = why if isinstance(why, FileFailure) else None
        reason = why.reason if isinstance(why, _Abandoned) else why.kind.value
        with self._lock:
            self._counts[f"packs_lost_{reason}"] += 1
            is_first = reason not in self._logged
            self._logged.add(reason)
        if is_first and reason != CANCELLED:
            logger.warning(
                "pack %s of %d bytes was not stored (%s): %s; "
                "further ones for this reason are only counted",
                job.name.path,
                job.total_bytes,
                reason,
                failure or f"not written within half of {job.ttl_seconds:g} s",
            )
        return WriteOutcome(None, created, reason, failure)

    # -- for an open pack ----------------------------------------------------------------------

    def require_time(self, job: PackJob, lenders: Iterable[Gate]) -> None:
        """The buffers are still lent, and will be for a while; else _Abandoned."""
        if not self._rules.check_clock_before_trailer:
            return
        if any(gate.is_shut for gate in lenders):
            raise _Abandoned(CANCELLED)
        if self._runtime.now() - job.submitted > job.ttl_seconds / 2:
            raise _Abandoned(LATE)

    def count(self, name: str, times: int = 1) -> None:
        with self._lock:
            self._counts[name] += times

    def stats(self) -> dict[str, int]:
        """Counters since the start, and the bytes not flushed yet."""
        with self._lock:
            return dict(self._counts) | {"bytes_dirty": self._dirty.bytes_dirty}


class _OpenPack:
    """A pack being written: where it stands, and the digests so far. One thread."""

    def __init__(self, writer: PackWriter, job: PackJob, handle: Handle) -> None:
        self._writer = writer
        self._job = job
        self._handle = handle
        self._files = writer._files
        self._seal = writer._seal
        self._now = writer._runtime.now
        self._dirty = writer._dirty
        self._lenders = frozenset(job.gates)
        self._digests: list[list[bytes]] = [[] for _ in job.views]
        self._hasher: Hasher | None = None
        self._sizes = [view.nbytes for view in job.views]
        self._write_hashed = writer._write_hashed
        self._native: NativeHasher | None = None
        self._addresses: list[int] = []
        self._clean = 0  # everything before is flushed
        self._dirty_bytes = 0

    def write_all(self) -> EntryTable:
        """Header, payload and trailer are in place; the table of what was written."""
        job, place = self._job, self._job.place
        lengths = self._sizes
        if self._write_hashed is not None and self._writer._loops is not None:
            stops = [address_of(gate.stop_word) for gate in self._lenders]
            self._native = self._writer._loops.hasher(stops)
            self._addresses = addresses_of(job.views)
        whole: list[WritePiece] = []
        if self._write_hashed is None:
            whole = list(plan_writes(place.entries_offsets, lengths, ONE_WRITE_BYTES_MAX))
        if len(whole) == 1 and place.total_bytes <= ONE_WRITE_BYTES_MAX:
            table, header = self._write_together(whole[0])
        else:
            size = self._writer._piece_bytes
            for piece in plan_writes(place.entries_offsets, lengths, size):
                self._write_piece(piece)
            table, header = self._header()
            self._write(0, [header, bytes(place.payload_offset - len(header))])
        self._writer.require_time(job, self._lenders)
        end = place.entries_offsets[-1] + lengths[-1]
        trailer = encode_trailer(place.total_bytes, header_checksum(header), self._seal)
        self._write(end, [bytes(place.trailer_offset - end), trailer])
        return table

    def close(self) -> None:
        """Close, checked. What is still dirty becomes the kernel's business."""
        self._dirty.closed(self._dirty_bytes, self._now())
        self._files.close(self._handle)

    def _write_together(self, piece: WritePiece) -> tuple[EntryTable, bytes]:
        with self._touching(piece.parts):
            self._hash(piece.parts)
            table, header = self._header()
            padding = bytes(piece.offset - len(header))
            self._write(0, [header, padding, *self._bytes_of(piece.parts)])
        return table, header

    def _write_piece(self, piece: WritePiece) -> None:
        self._writer.require_time(self._job, self._lenders)
        with self._touching(piece.parts):
            if self._write_hashed is not None:
                self._write_and_hash(piece, self._write_hashed)
                return
            self._hash(piece.parts)
            self._write(piece.offset, self._bytes_of(piece.parts))

    def _write_and_hash(self, piece: WritePiece, write_hashed: HashedWrite) -> None:
        """In one call. A buffer that changes while it is lent is found out by either order."""
        assert self._native is not None
        extents, chunks = extents_of(piece.parts, self._addresses, self._sizes)
        digests = write_hashed(self._handle, piece.offset, extents, self._native)
        if digests is None:
            raise _Abandoned(CANCELLED)
        for chunk, digest in zip(chunks, digests, strict=True):
            self._digests[chunk].append(digest)
        self._wrote(piece.offset, piece.length)

    def _touching(self, parts: Iterable[Part]) -> ExitStack:
        """Inside every gate that these parts' buffers belong to, or _Abandoned."""
        lenders: Iterable[Gate] = self._lenders
        if len(self._lenders) > 1:
            lenders = {self._job.gates[part.chunk] for part in parts if part.chunk != PADDING}
        with ExitStack() as stack:
            for gate in lenders:
                if not stack.enter_context(gate.enter()):
                    raise _Abandoned(CANCELLED)
            return stack.pop_all()

    def _hash(self, parts: Iterable[Part]) -> None:
        """Every unit's digest, over pieces that may end anywhere."""
        for part in parts:
            if part.chunk == PADDING:
                continue
            view = self._job.views[part.chunk]
            at, end = part.start, part.start + part.length
            while at < end:
                if self._hasher is None:
                    self._hasher = self._seal.hasher()
                unit_end = min((at // UNIT_BYTES + 1) * UNIT_BYTES, view.nbytes)
                to = min(unit_end, end)
                self._hasher.update(view[at:to])
                if to == unit_end:
                    self._digests[part.chunk].append(self._hasher.digest())
                    self._hasher = None
                at = to

    def _bytes_of(self, parts: Iterable[Part]) -> list[Buffer]:
        views = self._job.views
        return [
            bytes(part.length)
            if part.chunk == PADDING
            else views[part.chunk][part.start : part.start + part.length]
            for part in parts
        ]

    def _header(self) -> tuple[EntryTable, bytes]:
        job, place = self._job, self._job.place
        table = EntryTable.from_entries(
            ChunkEntry(key, offset, view.nbytes, self._seal.chunk_checksum(digests))
            for key, offset, view, digests in zip(
                job.keys, place.entries_offsets, job.views, self._digests, strict=True
            )
        )
        header = PackHeader(
            realm=job.realm,
            layout=job.layout,
            fingerprint=job.fingerprint,
            rank=job.rank,
            entries=table,
            payload_offset=place.payload_offset,
            total_bytes=place.total_bytes,
            version=job.version,
        )
        data = encode_header(header, self._seal)
        assert len(data) == place.header_bytes
        return table, data

    def _write(self, offset: int, parts: list[Buffer]) -> None:
        """One write, of everything that is not empty."""
        parts = [part for part in parts if memoryview(part).nbytes]
        length = sum(memoryview(part).nbytes for part in parts)
        self._files.write(self._handle, offset, parts)
        self._wrote(offset, length)

    def _wrote(self, offset: int, length: int) -> None:
        """Flush if the process wrote too much."""
        self._dirty_bytes += length
        if self._dirty.wrote(length, self._now()):
            start = min(self._clean, offset)
            end = max(self._clean, offset + length)
            self._files.flush(self._handle, start, end - start)
            self._dirty.flushed(self._dirty_bytes)
            self._clean, self._dirty_bytes = end, 0
