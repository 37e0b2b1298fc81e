"""One step of a piece: what it holds of which chunk, and the two ways to bring that to its place.

The common way reads into a private buffer, verifies there and copies inside the task's gate: a call
that hangs never holds a caller's memory (I7). Where the file system answers from memory at once or
says that it cannot, the bytes go straight to their destinations, inside the gate as well, and are
verified there: one pass over memory less, and like a copy it takes only as long as memory does.
Either way nothing counts before its checksum agreed (I2); a chunk that failed is a miss and what
its buffer holds means nothing.

It decides nothing about chunks; that is the task's (readtask.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sharedfs_backend.buffers import PrivateBuffer, address_of
from sharedfs_backend.files import CachedRead, CheckedLoad, Handle, HashedRead
from sharedfs_backend.layout.seal import UNIT_BYTES, Hasher, Seal
from sharedfs_backend.native import (
    HASHED,
    SKIPPED,
    UNIT_ENDS,
    Doors,
    Extent,
    Loaded,
    Loops,
    NativeHasher,
    Part,
)
from sharedfs_backend.readplan import Piece, Span
from sharedfs_backend.readtask import Destination, ReadTask

SLICE_BYTES = 1024 * 1024
"""Hashed and then copied while in a core's own cache: half of an L2 of 2 MiB."""


class StepPart(NamedTuple):
    """Bytes [low, high) of a step, which belong to `span` and go to `to` in its chunk."""

    span: Span
    low: int
    high: int
    to: int
    begins: bool
    ends: bool


def parts_of(spans: Sequence[Span], first: int, start: int, end: int) -> list[StepPart]:
    """What the step [start, end) of a piece holds of its spans, from number `first` on."""
    found: list[StepPart] = []
    for number in range(first, len(spans)):
        span = spans[number]
        span_end = span.piece_offset + span.length
        if span.piece_offset >= end:
            break
        low = max(start, span.piece_offset)
        high = min(end, span_end)
        to = span.unit * UNIT_BYTES + low - span.piece_offset
        found.append(
            StepPart(
                span, low - start, high - start, to, low == span.piece_offset, high == span_end
            )
        )
    return found


Move = tuple[StepPart, NDArray[np.uint8]]
"""A part, and the memory of its chunk."""


class Verifier(Protocol):
    """Brings the parts of one piece to their places and checksums them, in file order. A part may
    be missing, then so are all that follow of its unit."""

    def move(self, moves: Sequence[Move], buffer: PrivateBuffer) -> list[bytes]:
        """Copy what `buffer` holds of these parts; the digests of the units that end in them."""


class PythonVerifier:
    """For any seal, in Python. One thread."""

    __slots__ = ("_hasher", "_seal")

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._hasher: Hasher = seal.hasher()

    def begin(self, part: StepPart) -> Hasher:
        """What to feed the bytes of `part` to."""
        if part.begins:
            self._hasher = self._seal.hasher()
        return self._hasher

    def move(self, moves: Sequence[Move], buffer: PrivateBuffer) -> list[bytes]:
        digests: list[bytes] = []
        for part, destination in moves:
            hasher, to = self.begin(part), part.to
            for at in range(part.low, part.high, SLICE_BYTES):
                end = min(at + SLICE_BYTES, part.high)
                hasher.update(buffer.view[at:end])
                np.copyto(destination[to : to + end - at], buffer.array[at:end])
                to += end - at
            if part.ends:
                digests.append(hasher.digest())
        return digests


class NativeVerifier:
    """The same in the compiled loops, one call for a step; for a seal without a secret. One
    thread."""

    __slots__ = ("_hasher", "_loops")

    def __init__(self, loops: Loops) -> None:
        self._loops = loops
        self._hasher: NativeHasher | None = None
        """Of the unit that goes on in the next step."""

    def move(self, moves: Sequence[Move], buffer: PrivateBuffer) -> list[bytes]:
        if not moves:
            return []
        first, last = moves[0][0], moves[-1][0]
        if first.begins:  # the one before was given up, if it had not ended
            self._hasher = None
        if not last.ends and self._hasher is None:
            self._hasher = self._loops.hasher()
        extents: list[Extent] = []
        end = first.low
        for part, destination in moves:
            if part.low > end:
                extents.append((0, part.low - end, SKIPPED))
            mark = UNIT_ENDS if part.ends else HASHED
            extents.append((address_of(destination) + part.to, part.high - part.low, mark))
            end = part.high
        digests = self._loops.copy(buffer.address + first.low, extents, self._hasher)
        if last.ends:
            self._hasher = None
        return digests


def verifiers(seal: Seal, loops: Loops | None) -> Callable[[], Verifier]:
    """What makes a piece's verifier: the fastest there is for this seal."""
    if loops is None or seal.keyed:
        return partial(PythonVerifier, seal)
    return partial(NativeVerifier, loops)


def copy_verified(
    task: ReadTask, parts: Sequence[StepPart], buffer: PrivateBuffer, verifier: Verifier
) -> bool:
    """Hash what a private buffer holds of these parts and copy it. True if that decided the last
    chunk of the task."""
    if len(parts) == 1:  # without what many need
        part = parts[0]
        with task.gate.enter(part.span.chunk) as is_open:
            destination = task.destination(part.span) if is_open else None
            if destination is None:
                return False
            digests = verifier.move([(part, destination)], buffer)
        return bool(digests) and task.unit_verified(part.span, digests[0])
    moves: list[Move] = []
    with ExitStack() as gates:
        for part in parts:
            is_open = gates.enter_context(task.gate.enter(part.span.chunk))
            destination = task.destination(part.span) if is_open else None
            if destination is not None:
                moves.append((part, destination))
        digests = verifier.move(moves, buffer)
    is_last = False
    ended = [part.span for part, _ in moves if part.ends]
    for span, digest in zip(ended, digests, strict=True):
        is_last |= task.unit_verified(span, digest)
    return is_last


def load_checked(
    task: ReadTask,
    doors: Doors,
    piece: Piece,
    handle: Handle,
    load: CheckedLoad,
    buffer: PrivateBuffer,
) -> tuple[Loaded, bool] | None:
    """The same and the reads before it, a whole piece in one compiled call: what came, and whether
    that decided the last chunk. None if less came than asked: then nothing of the piece counts."""
    parts: list[Part] = []
    spans: list[Span | None] = []
    end = 0
    for span in piece.spans:
        if span.piece_offset > end:
            parts.append((0, span.piece_offset - end, 0))
            spans.append(None)
        to = _address_in(task.destination(span), span.unit * UNIT_BYTES)
        parts.append((to, span.length, doors.address(span.chunk)))
        spans.append(span)
        end = span.piece_offset + span.length
    stop, step = address_of(task.gate.stop_word), buffer.view.nbytes
    loaded = load(handle, piece.offset, buffer.address, step, parts, stop)
    if loaded is None:
        return None
    is_last = False
    for brought, digest in zip(spans, loaded.digests, strict=True):
        if brought is not None and digest is not None:
            is_last |= task.unit_verified(brought, digest)
    return loaded, is_last


def _address_in(destination: Destination, offset: int) -> int:
    """0 where there is none. Nobody here holds the memory afterwards: a read may hang for ever."""
    return 0 if destination is None else address_of(destination) + offset


Fill = Callable[[Handle, Piece, Mapping[int, NDArray[np.uint8]], PrivateBuffer], list[bytes] | None]
"""Reads a piece to the memory of its chunks; the digest of each span, None if not all was there."""


def read_in_place(
    task: ReadTask, piece: Piece, handle: Handle, fill: Fill, buffer: PrivateBuffer
) -> bool | None:
    """Read a whole piece to where its chunks belong and verify it there, step by step. Whether
    that decided the last chunk; None if not every byte came at once, or not every chunk is wanted.
    """
    with ExitStack() as gates:
        chunks: dict[int, NDArray[np.uint8]] = {}
        for span in piece.spans:
            is_open = span.chunk in chunks or gates.enter_context(task.gate.enter(span.chunk))
            destination = task.destination(span) if is_open else None
            if destination is None:
                return None
            chunks[span.chunk] = destination
        digests = fill(handle, piece, chunks, buffer)
    if digests is None:
        return None
    is_last = False
    for span, digest in zip(piece.spans, digests, strict=True):
        is_last |= task.unit_verified(span, digest)
    return is_last


def python_fill(read_cached: CachedRead, seal: Seal) -> Fill:
    """In steps of a private buffer's size, each hashed once it is in place."""

    def fill(
        handle: Handle,
        piece: Piece,
        chunks: Mapping[int, NDArray[np.uint8]],
        buffer: PrivateBuffer,
    ) -> list[bytes] | None:
        verifier = PythonVerifier(seal)
        digests: list[bytes] = []
        at = 0
        for start in range(0, piece.length, buffer.view.nbytes):
            length = min(buffer.view.nbytes, piece.length - start)
            parts = parts_of(piece.spans, at, start, start + length)
            at += sum(part.ends for part in parts)
            views = [
                chunks[part.span.chunk].data[part.to : part.to + part.high - part.low]
                for part in parts
            ]
            into = _with_gaps(parts, views, buffer.view, length)
            if read_cached(handle, piece.offset + start, into) != length:
                return None
            for part, view in zip(parts, views, strict=True):
                hasher = verifier.begin(part)
                hasher.update(view)
                if part.ends:
                    digests.append(hasher.digest())
        return digests

    return fill


def native_fill(read_hashed: HashedRead) -> Fill:
    """In one call for the whole piece. Padding lands in the private buffer."""

    def fill(
        handle: Handle,
        piece: Piece,
        chunks: Mapping[int, NDArray[np.uint8]],
        buffer: PrivateBuffer,
    ) -> list[bytes] | None:
        extents: list[Extent] = []
        end = 0
        for span in piece.spans:
            if span.piece_offset > end:
                extents.append((buffer.address, span.piece_offset - end, SKIPPED))
            at = address_of(chunks[span.chunk]) + span.unit * UNIT_BYTES
            extents.append((at, span.length, UNIT_ENDS))
            end = span.piece_offset + span.length
        return read_hashed(handle, piece.offset, extents)

    return fill


def _with_gaps(
    parts: Sequence[StepPart], views: list[memoryview], spare: memoryview, length: int
) -> list[memoryview]:
    """Where all bytes of a step go: padding between chunks goes nowhere."""
    if sum(view.nbytes for view in views) == length:
        return views
    into: list[memoryview] = []
    end = 0
    for part, view in zip(parts, views, strict=True):
        if part.low > end:
            into.append(spare[end : part.low])
        into.append(view)
        end = part.high
    if end < length:
        into.append(spare[end:length])
    return into
