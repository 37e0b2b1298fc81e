"""A snapshot's rows as one Arrow record batch, and back without a copy.

Numbers are plain columns; a pack's chunks are four large_binary values whose bodies, end to end,
are the columns of one table for the whole snapshot. Readers demand the columns they know, with
their types, and pass over others, which a later minor version may add.

Must not know trailers, metadata or files. Serves I1 and I2: a row that no writer produces is
refused for the snapshot as a whole.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa

from sharedfs_backend.layout.errors import BadValue
from sharedfs_backend.layout.head import SIZE_MAX
from sharedfs_backend.layout.packrows import NEVER, PackRows, PackState
from sharedfs_backend.layout.realm import LayoutDescriptor
from sharedfs_backend.layout.table import (
    CHUNKS_PER_PACK_MAX,
    EntryTable,
    require_columns_in_place,
)

_BYTE_COLUMNS = {"keys": 16, "offsets": 8, "lengths": 8, "checksums": 16}
_NUMBERS = {
    "seq": pa.uint64(),
    "realm": pa.int32(),
    "layout": pa.int32(),
    "rank": pa.uint32(),
    "version": pa.uint64(),
    "total_bytes": pa.uint64(),
    "state": pa.uint8(),
    "touch_ms": pa.int64(),
    "age_ms": pa.int64(),
}
SCHEMA = pa.schema(
    [pa.field("digest", pa.binary(16), False), pa.field("writer", pa.binary(8), False)]
    + [pa.field(name, kind, False) for name, kind in _NUMBERS.items()]
    + [pa.field(name, pa.large_binary(), False) for name in _BYTE_COLUMNS]
)


def to_batch(packs: PackRows, schema: Any) -> Any:
    """A record batch of `SCHEMA`, with whatever metadata `schema` has."""
    table = packs.entries
    bounds = np.concatenate(([0], np.cumsum(packs.counts)))
    table = packs.entries
    columns = [_fixed(packs.digests, 16), _fixed(packs.writers, 8)]
    numbers: tuple[Any, ...] = (packs.seqs, packs.realm_index, packs.layout_index, packs.ranks)
    numbers += (packs.versions, packs.total_bytes, packs.states, packs.touch_ms, packs.age_ms)
    columns += [pa.array(column) for column in numbers]
    bodies = (table.keys, table.offsets, table.lengths, table.checksums)
    for body, width in zip(bodies, _BYTE_COLUMNS.values(), strict=True):
        ends = pa.py_buffer(np.ascontiguousarray(bounds * width))
        buffers = [None, ends, pa.py_buffer(body)]
        columns.append(pa.Array.from_buffers(pa.large_binary(), len(packs), buffers))
    return pa.record_batch(columns, schema=schema)


def from_batch(
    batch: Any, realms: tuple[bytes, ...], layouts: tuple[LayoutDescriptor, ...]
) -> PackRows:
    """The batch's columns, in place, each checked as a whole."""
    columns = {name: batch.column(name) for name in SCHEMA.names}
    if any(column.null_count for column in columns.values()):
        raise BadValue("a column holds nulls")
    numbers = {name: columns[name].to_numpy(zero_copy_only=True) for name in _NUMBERS}
    bodies, counts = {}, None
    for name, width in _BYTE_COLUMNS.items():
        bodies[name], lengths = _body(columns[name])
        if (lengths % width).any() or (counts is not None and (lengths // width != counts).any()):
            raise BadValue("columns of a table disagree")
        counts = lengths // width
    assert counts is not None
    rows = PackRows(
        realms=realms,
        layouts=layouts,
        digests=_fixed_body(columns["digest"], 16),
        writers=_fixed_body(columns["writer"], 8),
        seqs=numbers["seq"],
        realm_index=numbers["realm"],
        layout_index=numbers["layout"],
        ranks=numbers["rank"],
        versions=numbers["version"],
        total_bytes=numbers["total_bytes"],
        states=numbers["state"],
        touch_ms=numbers["touch_ms"],
        age_ms=numbers["age_ms"],
        counts=counts,
        entries=EntryTable(**bodies),
    )
    _require_right(rows)
    return rows


def _require_right(rows: PackRows) -> None:
    """BadValue for numbers that no writer produces. Whole columns at a time."""
    if not len(rows):
        return
    realm, layout = rows.realm_index, rows.layout_index
    known = (realm >= 0) & (layout >= 0)
    right = (
        int(rows.states.max()) <= max(PackState)
        and int(max(rows.seqs.max(), rows.versions.max(), rows.total_bytes.max())) <= SIZE_MAX
        and -1 <= int(realm.min()) <= int(realm.max()) < len(rows.realms)
        and -1 <= int(layout.min()) <= int(layout.max()) < len(rows.layouts)
        and bool(known[(rows.states == PackState.LIVE) | (rows.counts > 0)].all())
        and int(rows.touch_ms.min()) >= NEVER
        and int(rows.age_ms.min()) >= 0
        and int(rows.counts.max()) <= CHUNKS_PER_PACK_MAX
    )
    if not right:
        raise BadValue("a number of a snapshot is out of range")
    offsets, lengths = rows.entries.offset_array(), rows.entries.length_array()
    require_columns_in_place(offsets, lengths, rows.counts, rows.total_bytes)


def _body(column: Any) -> tuple[memoryview, Any]:
    """(concatenated values, their lengths) of a large_binary column, without a copy."""
    _nulls, ends, body = column.buffers()
    bounds = np.frombuffer(ends, "<i8", count=len(column) + 1, offset=8 * column.offset)
    start, end = int(bounds[0]), int(bounds[-1])
    data = memoryview(b"") if body is None else memoryview(body)
    return data[start:end].toreadonly(), np.diff(bounds)


def _fixed_body(column: Any, width: int) -> memoryview:
    body = column.buffers()[1]
    data = memoryview(b"") if body is None else memoryview(body)
    return data[width * column.offset : width * (column.offset + len(column))].toreadonly()


def _fixed(data: bytes | memoryview, width: int) -> Any:
    return pa.Array.from_buffers(pa.binary(width), len(data) // width, [None, pa.py_buffer(data)])


def require_uncompressed(message: bytes) -> None:
    """BadValue for a record batch whose bodies are compressed: a length inside one could make a
    reader allocate anything. Looks for the field `compression` in the message's flatbuffer."""
    try:
        header = _flat_field(message, struct.unpack_from("<I", message)[0], 2)
        header += struct.unpack_from("<I", message, header)[0]
        if _flat_field(message, header, 3):
            raise BadValue("compressed columns")
    except struct.error:
        raise BadValue("not an Arrow message") from None


def _flat_field(data: bytes, table: int, field: int) -> int:
    """Where a flatbuffer table's field lies; 0 if it is left out."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0 or 6 + 2 * field > struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset: int = struct.unpack_from("<H", data, vtable + 4 + 2 * field)[0]
    return table + offset if offset else 0


def require_columns(schema: Any) -> None:
    """All known columns with their types; a later minor version may add others."""
    for field in SCHEMA:
        if schema.names.count(field.name) != 1 or schema.field(field.name).type != field.type:
            raise BadValue(f"no column {field.name} of type {field.type}")
