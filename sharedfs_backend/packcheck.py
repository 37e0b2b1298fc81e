"""Reading a pack's own header and trailer: for adoption, `reindex` and `verify`, never for a load.

A pack exists when its header and its trailer are valid and agree with each other, with the file's
size and with the digest in its name. Raises FormatError for anything else, FileFailure for what
the file system says. Reads only.
"""

from __future__ import annotations

from sharedfs_backend.files import Files
from sharedfs_backend.layout import (
    HEADER_SIZE_HINT,
    TRAILER_BYTES,
    BadValue,
    PackCommit,
    PackHeader,
    PackName,
    Seal,
    Truncated,
    decode_header,
    decode_trailer,
    header_checksum,
    peek_header_bytes,
)


def _read_exactly(files: Files, handle: object, offset: int, length: int) -> bytes:
    buffer = bytearray(length)
    count = files.read(handle, offset, memoryview(buffer))  # type: ignore[arg-type] # from open_read
    if count < length:
        raise Truncated(f"{count} of {length} bytes at offset {offset}")
    return bytes(buffer)


def read_header(files: Files, seal: Seal, name: PackName) -> PackHeader:
    """The header of a complete pack. Two or three reads."""
    size = files.size(name.path)
    if size < TRAILER_BYTES:  # so is what is no file; opening a FIFO may hang
        raise Truncated(f"{size} bytes is shorter than any pack")
    handle = files.open_read(name.path)
    try:
        head = _read_exactly(files, handle, 0, min(size, HEADER_SIZE_HINT))
        needed = peek_header_bytes(head)
        if needed > size:
            raise Truncated(f"a header of {needed} bytes in a file of {size}")
        if needed > len(head):
            head += _read_exactly(files, handle, len(head), needed - len(head))
        header = decode_header(head[:needed], seal)
        tail = _read_exactly(files, handle, size - TRAILER_BYTES, TRAILER_BYTES)
    finally:
        files.close(handle)
    trailer = decode_trailer(tail, seal)
    if trailer.total_bytes != size or header.total_bytes != size:
        raise BadValue(f"{size} bytes long, but header and trailer say {header.total_bytes}")
    if trailer.header_checksum != header_checksum(head[:needed]):
        raise BadValue("the trailer belongs to another header")
    if not header.belongs_to(name, seal):
        raise BadValue("the name belongs to other content")
    return header


def commit_of(name: PackName, header: PackHeader) -> PackCommit:
    """The commit record that a pack should have had, from its own header."""
    return PackCommit(
        name=name,
        realm=header.realm,
        layout=header.layout,
        rank=header.rank,
        version=header.version,
        total_bytes=header.total_bytes,
        entries=header.entries,
    )
