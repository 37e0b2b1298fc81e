"""The 64 bytes that begin every binary structure and never change, in any version.

     0  8  magic                     16  8  length of the structure in bytes
     8  2  major, 10  2  minor       24 32  fields of the structure
    12  4  field of the structure    56  8  xxh3-64 of bytes 0..55

All integers are little-endian. The check at 56 is always unkeyed and guards against accidents
only: it tells an intact structure of a later version (left alone) from a damaged one of ours, with
or without the secret. The structure's own seal, over everything before it, follows where it says.

Must not know the structures. Serves I2, I5 and the forward rules.
"""

from __future__ import annotations

import struct

import xxhash

from sharedfs_backend.layout.errors import BadChecksum, BadMagic, BadValue, NewerVersion, Truncated

FORMAT_MAJOR = 1
FORMAT_MINOR = 0
HEAD_BYTES = 64
BLOCK_BYTES = 4096
"""Alignment of journal entries, header tables and chunks: O_DIRECT's and the page cache's unit."""

U64_MAX = (1 << 64) - 1
SIZE_MAX = (1 << 63) - 1
"""Largest offset or length of any file: offsets are signed 64-bit numbers in every kernel."""

_FIXED = struct.Struct("<8sHHIQ32s")
_CHECK = struct.Struct("<Q")


def build_head(magic: bytes, field: int, length: int, fields: bytes) -> bytes:
    """64 bytes. `fields` has exactly 32."""
    start = _FIXED.pack(magic, FORMAT_MAJOR, FORMAT_MINOR, field, length, fields)
    return start + _CHECK.pack(xxhash.xxh3_64_intdigest(start))


def parse_head(data: bytes | bytearray | memoryview, magic: bytes) -> tuple[int, int, int, bytes]:
    """(major, field, length, fields) of a head that passed its check, of any major version."""
    if len(data) < HEAD_BYTES:
        raise Truncated(f"{len(data)} bytes, a head has {HEAD_BYTES}")
    start = bytes(data[:HEAD_BYTES])
    found, major, _minor, field, length, fields = _FIXED.unpack_from(start)
    if found != magic:
        raise BadMagic(f"{found!r} where {magic!r} was expected")
    if _CHECK.unpack_from(start, 56)[0] != xxhash.xxh3_64_intdigest(start[:56]):
        raise BadChecksum("the head is damaged")
    return major, field, length, fields


def require_version(major: int, what: str) -> None:
    """NewerVersion for a later major. A later minor only adds what may be ignored."""
    if major > FORMAT_MAJOR:
        raise NewerVersion(f"{what} of format {major}")
    if major < 1:
        raise BadValue(f"{what} of format {major}")


def align_up(value: int, align: int) -> int:
    return -(-value // align) * align
