"""Which reads bring which bytes: chunks cut at checksum units, joined into pieces. Pure.

One piece is read by one worker, verified while it is in the CPU cache, and copied to where it
belongs. Units of neighbouring chunks share a piece as long as it stays within `piece_bytes`, so
small chunks do not cost an operation each; the padding between them is read over. A unit larger
than `piece_bytes` is a piece of its own, read in several steps: its checksum runs over all of it.

It must not know file handles, memory or time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sharedfs_backend.layout.names import PackName
from sharedfs_backend.layout.seal import UNIT_BYTES

GAP_BYTES_MAX = 64 * 1024
"""Padding worth reading over rather than paying another operation for."""


class ChunkRead(NamedTuple):
    """One wanted chunk: where it lies and what its bytes must add up to."""

    pack: PackName
    offset: int
    length: int
    checksum: bytes


class Span(NamedTuple):
    """One unit of one chunk within a piece. `chunk` is the chunk's place in the request."""

    chunk: int
    unit: int
    piece_offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` contiguous bytes of a pack at `offset`, and the spans they hold, in order."""

    pack: PackName
    offset: int
    length: int
    spans: tuple[Span, ...]


def units_of(length: int) -> int:
    """Number of checksum units of a chunk."""
    return -(-length // UNIT_BYTES)


def plan_reads(reads: Sequence[ChunkRead], piece_bytes: int) -> list[Piece]:
    """The pieces that bring every byte of `reads` exactly once, pack by pack, in file order.

    Packs come in the order in which they are first asked for.
    """
    by_pack: dict[PackName, list[int]] = {}
    before: PackName | None = None
    numbers: list[int] = []
    for number, read in enumerate(reads):
        if read.pack is not before:  # neighbours nearly always share the name
            before = read.pack
            numbers = by_pack.setdefault(before, [])
        numbers.append(number)
    pieces: list[Piece] = []
    for pack, numbers in by_pack.items():
        numbers.sort(key=lambda number: reads[number].offset)
        pieces.extend(_join(pack, _units(reads, numbers), piece_bytes))
    return pieces


def _units(reads: Sequence[ChunkRead], numbers: list[int]) -> Iterator[tuple[int, int, int, int]]:
    """(file offset, length, chunk, unit) of every unit, in file order."""
    for number in numbers:
        read = reads[number]
        offset, left, unit = read.offset, read.length, 0
        while left > 0:
            length = min(left, UNIT_BYTES)
            yield offset, length, number, unit
            offset, left, unit = offset + length, left - length, unit + 1


def _join(
    pack: PackName, units: Iterator[tuple[int, int, int, int]], piece_bytes: int
) -> Iterator[Piece]:
    start = end = 0
    spans: list[Span] = []
    for offset, length, chunk, unit in units:
        if spans and not (
            end <= offset <= end + GAP_BYTES_MAX and offset + length - start <= piece_bytes
        ):
            yield Piece(pack, start, end - start, tuple(spans))
            spans = []
        if not spans:
            start = offset
        spans.append(Span(chunk, unit, offset - start, length))
        end = offset + length
    if spans:
        yield Piece(pack, start, end - start, tuple(spans))
