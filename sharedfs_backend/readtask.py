"""ReadTask: one load on its way. What is wanted, what has been verified, when it is over.

Decisions only: workers report verified units and failures, the task says when a chunk counts (its
last unit is in and the whole agrees, I2) and when everything is decided. Destinations are written
inside the task's gate alone; it is shut, and the copies under way awaited, before anything is
reported (I7). From then on `outcomes` never changes and the destinations are no longer referenced.

It must not know files, handles or lanes. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sharedfs_backend.gate import Gate
from sharedfs_backend.layout.names import PackName
from sharedfs_backend.layout.seal import Seal
from sharedfs_backend.misses import Miss, MissKind
from sharedfs_backend.native import Doors
from sharedfs_backend.readplan import ChunkRead, Piece, Span, units_of
from sharedfs_backend.runtime import Waiter

if TYPE_CHECKING:
    from sharedfs_backend.reader import PackReader

Destination = NDArray[np.uint8] | None
"""The caller's memory as bytes; None for a chunk without any."""


@dataclass(slots=True)
class PieceQueue:
    """Where a task's pieces are. The reader's own, guarded by its lock."""

    pending: deque[Piece] = field(default_factory=deque)
    parked_at: set[PackName] = field(default_factory=set)  # may hold a few that are open by now
    pieces: int = 0  # admitted
    in_flight: int = 0
    is_queued: bool = False
    is_over: bool = False


class ReadTask:
    """Handle on one `PackReader.submit`. `outcomes[i]` is None when chunk i was loaded, else why
    not; valid once `is_done`."""

    def __init__(
        self,
        reader: PackReader,
        reads: Sequence[ChunkRead],
        destinations: list[Destination],
        *,
        seal: Seal,
        deadline: float,
        on_done: Callable[[ReadTask], None] | None,
        waiter: Callable[[], Waiter],
        gated: bool = True,
        doors: Doors | None = None,
    ) -> None:
        """`doors`: one for each of `reads`, for compiled code."""
        self.reads = reads
        self.deadline = deadline
        self.gate = Gate(waiter, enforced=gated, doors=doors)
        self._gated = gated
        self.queue = PieceQueue()
        self._reader = reader
        self._destinations = destinations
        self._seal = seal
        self._on_done = on_done
        self._done = waiter()
        self._lock = threading.Lock()
        self._ending = False
        self._outcomes: list[Miss | None] = [None] * len(reads)
        self._is_decided = bytearray(len(reads))
        self._undecided = len(reads)
        self._digests: list[list[bytes]] = [[b""] * units_of(read.length) for read in reads]
        self._units_left = [len(digests) for digests in self._digests]

    # -- for the caller ------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def outcomes(self) -> list[Miss | None]:
        return self._outcomes

    @property
    def loaded(self) -> list[bool]:
        """By chunk: whether every byte passed its checksum and lies in its destination."""
        return [miss is None for miss in self._outcomes]

    def wait(self) -> list[Miss | None]:
        """The outcomes, at the deadline at the latest (plus the copies then under way)."""
        if not self._done.wait(max(0.0, self.deadline - self._reader.now())):
            self._reader.end(self, MissKind.DEADLINE)
            self._done.wait()
        return self._outcomes

    def cancel(self) -> None:
        """On return nothing writes to any destination; chunks not verified yet are misses."""
        self._reader.end(self, MissKind.CANCELLED)
        self.gate.shut()

    def cancel_chunk(self, chunk: int) -> None:
        """On return nothing writes to this chunk's destination; the others go on."""
        is_last = self.decide(chunk, Miss(MissKind.CANCELLED))
        self.gate.shut_part(chunk)
        if is_last:
            self._reader.end(self)

    # -- for the reader ------------------------------------------------------------------------

    def is_wanted(self, piece: Piece) -> bool:
        """Whether any chunk in `piece` is still undecided."""
        return not self._ending and any(not self._is_decided[span.chunk] for span in piece.spans)

    def destination(self, span: Span) -> Destination:
        """Touched only inside the gate: afterwards the memory is the caller's alone. None for a
        unit that is in: where its piece is read anew, what was verified stays as it is (I2)."""
        is_in = self._digests[span.chunk][span.unit]
        return None if is_in else self._destinations[span.chunk]

    def unit_verified(self, span: Span, digest: bytes) -> bool:
        """This unit's bytes are in place. True if that decided the last chunk."""
        chunk = span.chunk
        with self._lock:
            if self._ending:
                return False
            digests = self._digests[chunk]
            digests[span.unit] = digest
            self._units_left[chunk] -= 1
            if self._units_left[chunk]:
                return False
        return self._check(chunk, digests)

    def prepare(self) -> bool:
        """Decide what needs no read. True if nothing does."""
        is_last = not self.reads
        for chunk, read in enumerate(self.reads):
            destination = self._destinations[chunk]
            found = 0 if destination is None else destination.size
            if found != read.length:
                detail = f"wanted a buffer of {read.length} bytes, found {found}"
                self.gate.shut_part(chunk)
                is_last |= self.decide(chunk, Miss(MissKind.WRONG_SIZE, detail))
            elif not found:
                is_last |= self._check(chunk, [])
        return is_last

    def _check(self, chunk: int, digests: list[bytes]) -> bool:
        """All units of this chunk are in: does the whole agree? True if that decided the last."""
        found = self._seal.chunk_checksum(digests)
        wanted = self.reads[chunk].checksum
        if found == wanted:
            return self.decide(chunk, None)
        detail = f"wanted checksum {wanted.hex()}, found {found.hex()}"
        return self.decide(chunk, Miss(MissKind.CHECKSUM, detail))

    def fail(self, piece: Piece, miss: Miss) -> bool:
        """No chunk in `piece` can be had whole. True if that decided the last chunk."""
        is_last = False
        for span in piece.spans:
            is_last |= self.decide(span.chunk, miss)
        return is_last

    def fail_pack(self, pack: PackName, miss: Miss) -> bool:
        """No chunk in `pack` can be had. True if that decided the last chunk."""
        is_last = False
        for chunk, read in enumerate(self.reads):
            if read.pack == pack:
                is_last |= self.decide(chunk, miss)
        return is_last

    def decide(self, chunk: int, miss: Miss | None) -> bool:
        """The first decision on a chunk stands. True if it was the last one to be made."""
        with self._lock:
            if self._ending or self._is_decided[chunk]:
                return False
            self._is_decided[chunk] = 1
            self._outcomes[chunk] = miss
            self._undecided -= 1
            is_last = not self._undecided
        if miss is not None:
            self._reader.note_miss(self.reads[chunk], miss)
        return is_last

    def end(self, kind: MissKind) -> bool:
        """Shut the gate, wait for the copies under way, decide the rest. False if it has ended,
        or somebody else is about to."""
        with self._lock:
            if self._ending:
                return False
            self._ending = True
        self.gate.shut()
        rest = Miss(kind)
        for chunk, is_decided in enumerate(self._is_decided):
            if not is_decided:
                self._outcomes[chunk] = rest
                self._reader.note_miss(self.reads[chunk], rest)
        if self._gated:
            self._destinations = [None] * len(self.reads)
        return True

    def report(self) -> None:
        """Tell the caller; once, after `end`."""
        on_done, self._on_done = self._on_done, None
        try:
            if on_done is not None:
                on_done(self)
        finally:
            self._done.set()
