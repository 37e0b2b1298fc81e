"""Which writes bring a pack's payload to its place: chunks and padding joined into pieces. Pure.

One piece is hashed and then written while it is in the CPU cache, as one vectored operation
straight from the callers' buffers. A piece covers the file without holes: padding between chunks
is written too, because a hole may read as nothing at all (GekkoFS).

It must not know memory, handles or time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sharedfs_backend.files import WRITE_PARTS_MAX

PARTS_MAX = WRITE_PARTS_MAX - 2
"""One operation takes this many parts, and a header with its padding in front of them."""

PADDING = -1
"""In place of a chunk's number: zeros."""


@dataclass(frozen=True, slots=True)
class Part:
    """`length` bytes from `start` of a chunk, or of zeros."""

    chunk: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class WritePiece:
    """One write: `parts` one after the other at `offset` of the file."""

    offset: int
    length: int
    parts: tuple[Part, ...]


def plan_writes(
    offsets: Sequence[int], lengths: Sequence[int], piece_bytes: int
) -> Iterator[WritePiece]:
    """Pieces of exactly `piece_bytes` (the last may be shorter) that cover the payload in order.

    `offsets` rise; chunk i lies at `offsets[i]`. A piece of more parts than one operation takes is
    cut earlier."""
    offset = end = offsets[0]
    parts: list[Part] = []
    for part in _parts(offsets, lengths):
        start, left = part.start, part.length
        while left:
            length = min(left, offset + piece_bytes - end)
            parts.append(Part(part.chunk, start, length))
            start, left, end = start + length, left - length, end + length
            if end - offset == piece_bytes or len(parts) == PARTS_MAX:
                yield WritePiece(offset, end - offset, tuple(parts))
                offset, parts = end, []
    if parts:
        yield WritePiece(offset, end - offset, tuple(parts))


def _parts(offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[Part]:
    end = offsets[0]
    for chunk, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        if offset > end:
            yield Part(PADDING, 0, offset - end)
        yield Part(chunk, 0, length)
        end = offset + length
