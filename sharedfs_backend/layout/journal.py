"""Journal entries: records framed in blocks, bound to their writer and offset; and the scan.

    entry   head 64 (offset, writer, records' length) | array of records | zeros | seal 16
            begins at a multiple of 4096 and fills whole blocks, at most 4 MiB

The record is the commit. A block that is damaged or not whole means "not yet", unless a valid
later entry, bound to its own place, proves that this is final. An entry of a later version, or with
a record of unknown kind, ends the reading of that journal for good.

Must not know files, time or retries. Keeps I2 and I5; serves I1: an entry copied to another place
or journal is not an entry.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sharedfs_backend.layout.canonical import decode, encode
from sharedfs_backend.layout.errors import (
    BadChecksum,
    BadMagic,
    BadValue,
    FormatError,
    NewerVersion,
    Truncated,
)
from sharedfs_backend.layout.head import (
    BLOCK_BYTES,
    HEAD_BYTES,
    SIZE_MAX,
    align_up,
    build_head,
    parse_head,
    require_version,
)
from sharedfs_backend.layout.names import NAME_BYTES, writer_bytes
from sharedfs_backend.layout.records import (
    NAMES_PER_RECORD_MAX,
    PACKS_PER_COMMIT_MAX,
    Commit,
    Drop,
    Gone,
    Record,
    Touch,
    from_wire,
    to_wire,
)
from sharedfs_backend.layout.seal import DIGEST_BYTES, Buffer, Purpose, Seal

JOURNAL_MAGIC = b"SFB-JRNL"
ENTRY_BYTES_MAX = 4 << 20
"""One write that every file system takes in one piece; fits the largest pack's table (3 MiB)."""

RECORDS_PER_ENTRY_MAX = 1024
_FRAME_BYTES = HEAD_BYTES + DIGEST_BYTES + 64
_FIELDS = struct.Struct("<Q8sQ8x")  # offset, writer, length of the records


class Stop(enum.Enum):
    """Why a scan ended. After UNKNOWN_KIND this reader reads the journal no further, ever."""

    END = "end"
    INCOMPLETE = "incomplete"
    UNKNOWN_KIND = "unknown kind"


@dataclass(frozen=True, slots=True)
class Scan:
    """What `data` holds. Read on from `next_offset`, at least `wanted_bytes` if the scan stopped
    in an entry that is longer than the data."""

    entries: list[tuple[int, tuple[Record, ...]]]
    next_offset: int
    stopped: Stop
    skipped_bytes: int
    wanted_bytes: int = BLOCK_BYTES


def encode_entry(writer: str, offset: int, records: Sequence[Record], seal: Seal) -> bytes:
    """Whole blocks to be written at `offset` in one operation. ValueError if they are too many."""
    if offset % BLOCK_BYTES or not 0 <= offset <= SIZE_MAX:
        raise ValueError(f"an entry at offset {offset}")
    if not 1 <= len(records) <= RECORDS_PER_ENTRY_MAX:
        raise ValueError(f"an entry of {len(records)} records")
    body = encode([to_wire(record) for record in records])
    size = align_up(HEAD_BYTES + len(body) + DIGEST_BYTES, BLOCK_BYTES)
    if size > ENTRY_BYTES_MAX:
        raise ValueError(f"an entry of {size} bytes exceeds {ENTRY_BYTES_MAX}: split its records")
    fields = _FIELDS.pack(offset, writer_bytes(writer), len(body))
    data = build_head(JOURNAL_MAGIC, 0, size, fields) + body
    data += bytes(size - DIGEST_BYTES - len(data))
    data += seal.checksum(data, Purpose.JOURNAL)
    try:
        decode_entry(data, writer, offset, seal)
    except FormatError as error:
        raise ValueError(f"an impossible journal entry: {error}") from None
    return data


def decode_entry(data: Buffer, writer: str, offset: int, seal: Seal) -> tuple[Record, ...]:
    """Records of the entry at the start of `data`, if it was written for this place."""
    body, _size = _unframe(memoryview(data), writer_bytes(writer), offset, seal)
    return _records(body)


def entry_bytes(data: Buffer) -> int:
    """Length of the entry whose first 64 bytes these are, of this version or a later one."""
    _major, _zero, size, _fields = parse_head(data, JOURNAL_MAGIC)
    if size % BLOCK_BYTES or not 0 < size <= ENTRY_BYTES_MAX:
        raise BadValue(f"an entry of {size} bytes")
    return size


def scan(data: Buffer, writer: str, offset: int, seal: Seal) -> Scan:
    """Everything valid in `data`, which was read from `offset` (a multiple of 4096) on."""
    view, me = memoryview(data), writer_bytes(writer)
    entries: list[tuple[int, tuple[Record, ...]]] = []
    at = skipped = 0
    while at < len(view):
        found = _next_entry(view, at, me, offset, seal)
        if isinstance(found, _Nothing):
            return Scan(entries, offset + at, Stop.INCOMPLETE, skipped, found.wanted_bytes)
        start, size, records = found
        skipped += start - at
        if records is None:
            return Scan(entries, offset + start, Stop.UNKNOWN_KIND, skipped)
        entries.append((offset + start, records))
        at = start + size
    return Scan(entries, offset + at, Stop.END, skipped)


def split_records(records: Iterable[Record], limit: int = 1 << 20) -> list[tuple[Record, ...]]:
    """Groups that each fit an entry of about `limit` bytes, in order; large records are divided.

    A commit whose single pack exceeds the limit still makes one group: it fits ENTRY_BYTES_MAX.
    """
    groups: list[tuple[Record, ...]] = []
    group: list[Record] = []
    size = _FRAME_BYTES
    for record in records:
        for part in _divide(record, limit - _FRAME_BYTES):
            part_bytes = len(encode(to_wire(part)))
            if group and (size + part_bytes > limit or len(group) == RECORDS_PER_ENTRY_MAX):
                groups.append(tuple(group))
                group, size = [], _FRAME_BYTES
            group.append(part)
            size += part_bytes
    return [*groups, tuple(group)] if group else groups


@dataclass(frozen=True, slots=True)
class _Nothing:
    wanted_bytes: int


def _next_entry(
    view: memoryview, at: int, writer: bytes, offset: int, seal: Seal
) -> tuple[int, int, tuple[Record, ...] | None] | _Nothing:
    """(start, size, records or None if not understood) of the first intact entry from `at` on."""
    wanted = BLOCK_BYTES
    for start in range(at, len(view), BLOCK_BYTES):
        try:
            body, size = _unframe(view[start:], writer, offset + start, seal)
        except NewerVersion:
            return start, 0, None
        except Truncated:
            if start == at and len(view) - at >= HEAD_BYTES:
                wanted = entry_bytes(view[at:])
        except FormatError:
            continue  # not an entry, or a damaged one: a later one may prove that final
        else:
            try:
                return start, size, _records(body)
            except FormatError:  # intact, so a later version wrote what we do not understand
                return start, 0, None
    return _Nothing(wanted)


def _unframe(view: memoryview, writer: bytes, offset: int, seal: Seal) -> tuple[memoryview, int]:
    """(encoded records, size of the entry) of an intact entry that belongs here."""
    if len(view) >= HEAD_BYTES and view[:8] != JOURNAL_MAGIC:
        raise BadMagic("no journal entry here")
    major, _zero, _size, fields = parse_head(view, JOURNAL_MAGIC)
    own_offset, own_writer, body_bytes = _FIELDS.unpack(fields)
    if own_offset != offset or own_writer != writer:
        raise BadValue(f"an entry of {own_writer.hex()} at {own_offset}, found at {offset}")
    require_version(major, "journal entry")
    size = entry_bytes(view)
    if len(view) < size:
        raise Truncated(f"an entry of {size} bytes, {len(view)} are there")
    end = size - DIGEST_BYTES
    if bytes(view[end:size]) != seal.checksum(view[:end], Purpose.JOURNAL):
        raise BadChecksum("the journal entry is damaged, or sealed with another secret")
    if HEAD_BYTES + body_bytes > end:
        raise BadValue(f"{body_bytes} bytes of records in an entry of {size}")
    return view[HEAD_BYTES : HEAD_BYTES + body_bytes], size


def _records(body: memoryview) -> tuple[Record, ...]:
    items = decode(body)
    if type(items) is not list or not 1 <= len(items) <= RECORDS_PER_ENTRY_MAX:
        raise BadValue("an entry holds an array of records")
    return tuple([from_wire(item) for item in items])


def _divide(record: Record, limit: int) -> Iterator[Record]:
    match record:
        case Commit():
            yield from _divide_commit(record, limit)
        case Drop() | Gone():
            count = min(max(1, limit // NAME_BYTES), NAMES_PER_RECORD_MAX)
            for at in range(0, len(record.names), count):
                yield type(record)(record.names[at : at + count])
        case Touch():
            count = min(max(1, limit // (NAME_BYTES + 8)), NAMES_PER_RECORD_MAX)
            for at in range(0, len(record.ages), count):
                yield Touch(record.ages[at : at + count])
        case _:
            yield record


def _divide_commit(record: Commit, limit: int) -> Iterator[Commit]:
    first = size = 0
    for index, pack in enumerate(record.packs):
        pack_bytes = len(encode(to_wire(Commit((pack,)))))
        if index > first and (size + pack_bytes > limit or index - first == PACKS_PER_COMMIT_MAX):
            yield Commit(record.packs[first:index])
            first, size = index, 0
        size += pack_bytes
    if first < len(record.packs):
        yield Commit(record.packs[first:])
