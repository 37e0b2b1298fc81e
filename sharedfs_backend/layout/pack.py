"""A pack file: header, payload, trailer. The plan of one, and the codecs of its two ends.

    header   head 64 | msgpack map | four columns | zeros | seal 16     a multiple of 4096
    payload  each chunk at a multiple of 4096; starts and total aligned as the profile says
    trailer  head 64, with the header's seal | zeros | seal 16          the last 4096 bytes

Everything about the file is known before any checksum is, except the table and the seals: writers
plan first, write payload and header in the order that costs fewest operations, and the trailer
last. A header or trailer that is wrong, short, long or foreign means the pack does not exist.

Must not know files or clocks. Keeps I2: header and trailer are sealed whole, padding included, and
a header just built is decoded again before it leaves.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sharedfs_backend.layout.canonical import decode, encode, take, take_bytes
from sharedfs_backend.layout.errors import BadChecksum, BadValue, Truncated
from sharedfs_backend.layout.head import (
    BLOCK_BYTES,
    HEAD_BYTES,
    SIZE_MAX,
    align_up,
    build_head,
    parse_head,
    require_version,
)
from sharedfs_backend.layout.keys import pack_digest_of
from sharedfs_backend.layout.names import PackName
from sharedfs_backend.layout.realm import LAYOUT_BYTES_MAX, LayoutDescriptor
from sharedfs_backend.layout.seal import DIGEST_BYTES, Buffer, Purpose, Seal
from sharedfs_backend.layout.table import (
    CHUNKS_PER_PACK_MAX,
    ROW_BYTES,
    EntryTable,
    require_places,
    require_shape,
)

HEADER_MAGIC = b"SFB-PACK"
TRAILER_MAGIC = b"SFB-TAIL"
TRAILER_BYTES = BLOCK_BYTES
HEADER_SIZE_HINT = 64 << 10
"""A first read of this size holds the whole header of a pack of about 1,300 chunks."""

HEADER_BYTES_MAX = CHUNKS_PER_PACK_MAX * ROW_BYTES + LAYOUT_BYTES_MAX + BLOCK_BYTES
ALIGN_BYTES_MAX = 64 << 20
"""Of `align`: no file system has larger blocks or stripes that a pack would care about."""

VERSION_MAX = SIZE_MAX
RANK_MAX = (1 << 32) - 1

_HEADER_FIELDS = struct.Struct("<QQIIQ")  # payload offset, total bytes, chunks, map bytes, version
_TRAILER_FIELDS = struct.Struct("<16s16x")


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Where everything of a pack will lie."""

    entries_offsets: tuple[int, ...]
    header_bytes: int
    payload_offset: int
    trailer_offset: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class PackHeader:
    """What a pack says of itself. `version` is 1 + the highest its writer knew of these chunks."""

    realm: bytes
    layout: LayoutDescriptor
    fingerprint: bytes
    rank: int
    entries: EntryTable
    payload_offset: int
    total_bytes: int
    version: int = 1

    def digest(self, seal: Seal) -> bytes:
        """The digest that the pack's name must have."""
        return pack_digest_of(seal, self.realm, self.fingerprint, self.entries.keys)

    def belongs_to(self, name: PackName, seal: Seal) -> bool:
        """Whether this header may stand in a file of that name."""
        return self.digest(seal) == name.digest


@dataclass(frozen=True, slots=True)
class Trailer:
    """The end of a complete pack; `header_checksum` is the seal that its header must end with."""

    total_bytes: int
    header_checksum: bytes


def plan_pack(layout: LayoutDescriptor, lengths: Sequence[int], align: int) -> PackPlan:
    """Places chunks of these lengths in order. `align` is a multiple of 4096."""
    if not 1 <= len(lengths) <= CHUNKS_PER_PACK_MAX:
        raise ValueError(f"a pack holds 1 to {CHUNKS_PER_PACK_MAX} chunks, not {len(lengths)}")
    if align % BLOCK_BYTES or not 0 < align <= ALIGN_BYTES_MAX:
        raise ValueError(f"alignment {align} is not a multiple of {BLOCK_BYTES}")
    header_bytes = _header_bytes(len(lengths), len(_meta(bytes(16), layout, bytes(16))))
    payload_offset = at = align_up(header_bytes, align)
    offsets = []
    for length in lengths:
        if length < 0:
            raise ValueError(f"a chunk of {length} bytes")
        offsets.append(at)
        at = align_up(at + length, BLOCK_BYTES)
    total = align_up(at + TRAILER_BYTES, align)
    if total > SIZE_MAX:
        raise ValueError(f"a pack of {total} bytes")
    return PackPlan(tuple(offsets), header_bytes, payload_offset, total - TRAILER_BYTES, total)


def peek_header_bytes(data: Buffer) -> int:
    """Length of the whole header, from its first 64 bytes (of this version or a later one)."""
    major, _rank, length, _fields = parse_head(data, HEADER_MAGIC)
    require_version(major, "pack")
    if length % BLOCK_BYTES or not 0 < length <= HEADER_BYTES_MAX:
        raise BadValue(f"a pack header of {length} bytes")
    return length


def encode_header(header: PackHeader, seal: Seal) -> bytes:
    """Exactly the planned `header_bytes`. ValueError if no decoder would accept the result."""
    table, meta = header.entries, _meta(header.realm, header.layout, header.fingerprint)
    size = _header_bytes(len(table), len(meta))
    fields = _HEADER_FIELDS.pack(
        header.payload_offset, header.total_bytes, len(table), len(meta), header.version
    )
    start = build_head(HEADER_MAGIC, header.rank, size, fields) + meta
    body = b"".join((start, table.keys, table.offsets, table.lengths, table.checksums))
    body += bytes(size - DIGEST_BYTES - len(body))
    data = body + seal.checksum(body, Purpose.PACK_HEADER)
    try:
        same = decode_header(data, seal) == header
    except (BadValue, Truncated) as error:
        raise ValueError(f"an impossible pack header: {error}") from None
    if not same:
        raise ValueError("a pack header that does not survive its own encoding")
    return data


def decode_header(data: Buffer, seal: Seal) -> PackHeader:
    """The header at the start of `data`, which may be longer (a first read)."""
    size = peek_header_bytes(data)
    if len(data) < size:
        raise Truncated(f"a pack header of {size} bytes, {len(data)} are there")
    whole = memoryview(data)[:size]
    if bytes(whole[-DIGEST_BYTES:]) != seal.checksum(whole[:-DIGEST_BYTES], Purpose.PACK_HEADER):
        raise BadChecksum("the pack header is damaged, or sealed with another secret")
    _major, rank, _size, fields = parse_head(whole, HEADER_MAGIC)
    payload_offset, total, chunks, meta_bytes, version = _HEADER_FIELDS.unpack(fields)
    if not 1 <= chunks <= CHUNKS_PER_PACK_MAX or size != _header_bytes(chunks, meta_bytes):
        raise BadValue(f"a pack header of {size} bytes for {chunks} chunks")
    meta_end = HEAD_BYTES + meta_bytes
    meta = decode(whole[HEAD_BYTES:meta_end])
    layout = LayoutDescriptor.decode(take(meta, "layout", bytes))
    fingerprint = take_bytes(meta, "fingerprint", DIGEST_BYTES)
    if layout.fingerprint(seal) != fingerprint:
        raise BadValue("the fingerprint is not that of the layout")
    header = PackHeader(
        realm=take_bytes(meta, "realm", DIGEST_BYTES),
        layout=layout,
        fingerprint=fingerprint,
        rank=rank,
        entries=_columns(whole, meta_end, chunks),
        payload_offset=payload_offset,
        total_bytes=total,
        version=version,
    )
    _require_places(header, size)
    return header


def encode_trailer(total_bytes: int, header_checksum: bytes, seal: Seal) -> bytes:
    """The last 4096 bytes of a pack. `header_checksum` is the last 16 bytes of its header."""
    if (
        len(header_checksum) != DIGEST_BYTES
        or not 0 < total_bytes <= SIZE_MAX
        or total_bytes % 4096
    ):
        raise ValueError("an impossible trailer")
    body = build_head(TRAILER_MAGIC, 0, total_bytes, _TRAILER_FIELDS.pack(header_checksum))
    body += bytes(TRAILER_BYTES - DIGEST_BYTES - len(body))
    return body + seal.checksum(body, Purpose.PACK_TRAILER)


def decode_trailer(data: Buffer, seal: Seal) -> Trailer:
    """From exactly the last 4096 bytes of a file."""
    major, _zero, total, fields = parse_head(data, TRAILER_MAGIC)
    require_version(major, "pack")
    if len(data) != TRAILER_BYTES:
        kind = Truncated if len(data) < TRAILER_BYTES else BadValue
        raise kind(f"a trailer has {TRAILER_BYTES} bytes, not {len(data)}")
    view = memoryview(data)
    if bytes(view[-DIGEST_BYTES:]) != seal.checksum(view[:-DIGEST_BYTES], Purpose.PACK_TRAILER):
        raise BadChecksum("the pack trailer is damaged, or sealed with another secret")
    if total % BLOCK_BYTES or not 0 < total <= SIZE_MAX:
        raise BadValue(f"a pack of {total} bytes")
    return Trailer(total, _TRAILER_FIELDS.unpack(fields)[0])


def header_checksum(header: Buffer) -> bytes:
    """The seal that an encoded header ends with."""
    return bytes(header[-DIGEST_BYTES:])


def _meta(realm: bytes, layout: LayoutDescriptor, fingerprint: bytes) -> bytes:
    """The variable part; its length depends on the layout alone."""
    return encode({"fingerprint": fingerprint, "layout": layout.encode(), "realm": realm})


def _header_bytes(chunks: int, meta_bytes: int) -> int:
    return align_up(HEAD_BYTES + meta_bytes + ROW_BYTES * chunks + DIGEST_BYTES, BLOCK_BYTES)


def _columns(data: memoryview, start: int, rows: int) -> EntryTable:
    ends = [start + width * rows for width in (0, 16, 24, 32, 48)]
    columns = (bytes(data[at:to]) for at, to in pairwise(ends))
    return EntryTable(*columns)


def _require_places(header: PackHeader, header_bytes: int) -> None:
    start, total = header.payload_offset, header.total_bytes
    right = (
        header.version <= VERSION_MAX
        and header_bytes <= start <= total - TRAILER_BYTES
        and total <= SIZE_MAX
        and start % BLOCK_BYTES == 0
        and total % BLOCK_BYTES == 0
    )
    if not right:
        raise BadValue(f"payload at {start} of a pack of {total} bytes")
    require_shape(header.entries, CHUNKS_PER_PACK_MAX)
    if int(header.entries.offset_array()[0]) < start:
        raise BadValue("a chunk lies before the payload")
    require_places([header.entries], [total - TRAILER_BYTES])
