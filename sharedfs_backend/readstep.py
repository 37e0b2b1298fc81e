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

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from sharedfs_backend.buffers import PrivateBuffer
from sharedfs_backend.layout.seal import UNIT_BYTES, Hasher, Seal
from sharedfs_backend.readplan import Piece, Span
from sharedfs_backend.readtask import ReadTask

SLICE_BYTES = 1024 * 1024
"""Hashed and then copied while in a core's own cache: half of an L2 of 2 MiB."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes [low, high) of a step, which belong to `span` and go to `to` in its chunk."""

    span: Span
    low: int
    high: int
    to: int
    begins: bool
    ends: bool


def parts_of(spans: Sequence[Span], first: int, start: int, end: int) -> list[Part]:
    """What the step [start, end) of a piece holds of its spans, from number `first` on."""
    found: list[Part] = []
    for number in range(first, len(spans)):
        span = spans[number]
        span_end = span.piece_offset + span.length
        if span.piece_offset >= end:
            break
        low = max(start, span.piece_offset)
        high = min(end, span_end)
        to = span.unit * UNIT_BYTES + low - span.piece_offset
        found.append(
            Part(span, low - start, high - start, to, low == span.piece_offset, high == span_end)
        )
    return found


class Verifier:
    """Digests of the units of one piece, fed part by part in file order. One thread."""

    __slots__ = ("_hasher", "_seal")

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._hasher: Hasher = seal.hasher()

    def begin(self, part: Part) -> Hasher:
        """What to feed the bytes of `part` to."""
        if part.begins:
            self._hasher = self._seal.hasher()
        return self._hasher


def copy_verified(
    task: ReadTask, parts: Sequence[Part], buffer: PrivateBuffer, verifier: Verifier
) -> bool:
    """Hash what a private buffer holds of each part and copy it. True if that decided the last
    chunk of the task."""
    is_last = False
    for part in parts:
        hasher, to = verifier.begin(part), part.to
        with task.gate.enter(part.span.chunk) as is_open:
            destination = task.destination(part.span.chunk) if is_open else None
            if destination is None:
                continue
            for at in range(part.low, part.high, SLICE_BYTES):
                end = min(at + SLICE_BYTES, part.high)
                hasher.update(buffer.view[at:end])
                np.copyto(destination[to : to + end - at], buffer.array[at:end])
                to += end - at
        if part.ends:
            is_last |= task.unit_verified(part.span, hasher.digest())
    return is_last


def read_in_place(
    task: ReadTask,
    piece: Piece,
    read: Callable[[int, Sequence[memoryview]], int],
    buffer: PrivateBuffer,
    seal: Seal,
) -> bool | None:
    """Read a whole piece to where its chunks belong and verify it there, step by step. Whether
    that decided the last chunk; None if not every byte came at once, or not every chunk is wanted.
    """
    with ExitStack() as gates:
        chunks: dict[int, memoryview] = {}
        for span in piece.spans:
            if span.chunk in chunks:
                continue
            is_open = gates.enter_context(task.gate.enter(span.chunk))
            destination = task.destination(span.chunk) if is_open else None
            if destination is None:
                return None
            chunks[span.chunk] = destination.data
        digests = _fill(piece, chunks, read, buffer.view, Verifier(seal))
    if digests is None:
        return None
    is_last = False
    for span, digest in digests:
        is_last |= task.unit_verified(span, digest)
    return is_last


def _fill(
    piece: Piece,
    chunks: dict[int, memoryview],
    read: Callable[[int, Sequence[memoryview]], int],
    spare: memoryview,
    verifier: Verifier,
) -> list[tuple[Span, bytes]] | None:
    """The digests of a piece's units once they are in place. Inside the gates."""
    digests: list[tuple[Span, bytes]] = []
    at = 0
    for start in range(0, piece.length, spare.nbytes):
        length = min(spare.nbytes, piece.length - start)
        parts = parts_of(piece.spans, at, start, start + length)
        at += sum(part.ends for part in parts)
        views = [
            chunks[part.span.chunk][part.to : part.to + part.high - part.low] for part in parts
        ]
        if read(piece.offset + start, _with_gaps(parts, views, spare, length)) != length:
            return None
        for part, view in zip(parts, views, strict=True):
            hasher = verifier.begin(part)
            hasher.update(view)
            if part.ends:
                digests.append((part.span, hasher.digest()))
    return digests


def _with_gaps(
    parts: Sequence[Part], views: list[memoryview], spare: memoryview, length: int
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
