"""A snapshot: many journals merged into one Arrow IPC stream with a sealed 64-byte trailer.

One row for each pack of all realms, dead ones included, its chunks as four binary columns; what is
not per pack (parents, coverage, the few realms and layouts) is one msgpack map in the schema's
metadata. The stream is one record batch, uncompressed, so every column of a million chunks is used
where it lies in the file. Rows are made only when a caller iterates.

Must not know files or which snapshots exist. Serves I4 and I5: states and tombstones travel with
the packs; merging is the reader's matter. The trailer seals the whole file (I2).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sharedfs_backend.layout.arrowrows import (
    SCHEMA,
    from_batch,
    require_columns,
    require_uncompressed,
    to_batch,
)
from sharedfs_backend.layout.canonical import ARRAY_ITEMS_MAX, decode, encode, take, take_uint
from sharedfs_backend.layout.errors import BadChecksum, BadValue, FormatError, Truncated
from sharedfs_backend.layout.head import (
    HEAD_BYTES,
    SIZE_MAX,
    build_head,
    parse_head,
    require_version,
)
from sharedfs_backend.layout.names import COUNTER_MAX, SnapshotName, is_writer_id, writer_bytes
from sharedfs_backend.layout.packrows import PackRows
from sharedfs_backend.layout.realm import LayoutDescriptor
from sharedfs_backend.layout.seal import DIGEST_BYTES, Buffer, Purpose, Seal

SNAPSHOT_MAGIC = b"SFB-SNAP"
METADATA_KEY = b"sharedfs"
SNAPSHOT_BYTES_MAX = 1 << 32
"""Of a whole snapshot: some 80 million chunks, more than a catalog is ever configured for. A larger
file is refused before it is mapped or parsed."""

JOURNALS_MAX = 1 << 20
"""Of a coverage, held as columns: journals of the dead pile up until someone merges them."""

PARENTS_MAX = REALMS_MAX = LAYOUTS_MAX = ARRAY_ITEMS_MAX
"""One msgpack array each; far more than one directory ever serves."""

_SEAL = struct.Struct("<16s16x")


@dataclass(frozen=True, slots=True)
class Coverage:
    """How far into a journal a snapshot reaches; `ended`: it covers its writer's end record."""

    offset: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`parents`: the snapshots that this one replaces. `coverage`: by writer."""

    generation: int
    writer: str
    parents: tuple[SnapshotName, ...]
    coverage: dict[str, Coverage]
    packs: PackRows

    @property
    def name(self) -> SnapshotName:
        return SnapshotName(self.generation, self.writer)


def encode_snapshot(snapshot: Snapshot, seal: Seal) -> bytes:
    """Bytes of the file `snapshot.name.path`. ValueError for what no reader would accept."""
    schema = SCHEMA.with_metadata({METADATA_KEY: _metadata(snapshot)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(to_batch(snapshot.packs, schema))
    arrow = sink.getvalue().to_pybytes()
    data = b"".join((arrow, _trailer(memoryview(arrow), seal)))
    try:
        decode_snapshot(data, seal)
    except FormatError as error:
        raise ValueError(f"an impossible snapshot: {error}") from None
    return data


def decode_snapshot(data: Buffer, seal: Seal) -> Snapshot:
    """The snapshot; its columns point into `data`, which must not change afterwards."""
    view = memoryview(data).cast("B").toreadonly()
    if len(view) > SNAPSHOT_BYTES_MAX:
        raise BadValue(f"a snapshot of {len(view)} bytes")
    major, _zero, size, fields = parse_head(view[-HEAD_BYTES:], SNAPSHOT_MAGIC)
    require_version(major, "snapshot")
    arrow = view[:-HEAD_BYTES]
    if size != len(arrow):
        kind = Truncated if len(arrow) < size else BadValue
        raise kind(f"a snapshot of {size} bytes, {len(arrow)} are there")
    if _SEAL.unpack(fields)[0] != _checksum(arrow, view[-HEAD_BYTES:], seal):
        raise BadChecksum("the snapshot is damaged, or sealed with another secret")
    schema, batch = _read_stream(arrow)
    meta = decode((schema.metadata or {}).get(METADATA_KEY, b""))
    generation, writer = take_uint(meta, "generation", COUNTER_MAX), _writer(meta)
    parents = tuple(_parent(item) for item in _list(meta, "parents", PARENTS_MAX))
    coverage = _coverage(take(meta, "coverage", dict))
    realms = tuple(_bytes(item, DIGEST_BYTES) for item in _list(meta, "realms", REALMS_MAX))
    encoded = (_bytes(item) for item in _list(meta, "layouts", LAYOUTS_MAX))
    layouts = tuple(LayoutDescriptor.decode(item) for item in encoded)
    packs = from_batch(batch, realms, layouts)
    return Snapshot(generation, writer, parents, coverage, packs)


def _read_stream(arrow: memoryview) -> tuple[Any, Any]:
    """(schema, the one record batch) of a stream, in place."""
    try:
        messages = list(pa.ipc.MessageReader.open_stream(pa.py_buffer(arrow)))
        if len(messages) != 2:
            raise BadValue(f"{len(messages)} Arrow messages, not schema and record batch")
        require_uncompressed(messages[1].metadata.to_pybytes())
        schema = pa.ipc.read_schema(messages[0])
        require_columns(schema)
        batch = pa.ipc.read_record_batch(messages[1], schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadValue(f"not an Arrow stream: {error}") from None
    return schema, batch


def _metadata(snapshot: Snapshot) -> bytes:
    parents = [[parent.generation, parent.writer] for parent in snapshot.parents]
    covered = sorted(snapshot.coverage.items())
    return encode(
        {
            "coverage": {
                "ended": bytes(c.ended for _w, c in covered),
                "offsets": b"".join(
                    cover.offset.to_bytes(8, "little") for _writer, cover in covered
                ),
                "writers": b"".join(writer_bytes(writer) for writer, _c in covered),
            },
            "generation": snapshot.generation,
            "layouts": [layout.encode() for layout in snapshot.packs.layouts],
            "parents": parents,
            "realms": list(snapshot.packs.realms),
            "writer": snapshot.writer,
        }
    )


def _trailer(arrow: memoryview, seal: Seal) -> bytes:
    unsealed = build_head(SNAPSHOT_MAGIC, 0, len(arrow), bytes(32))
    return build_head(SNAPSHOT_MAGIC, 0, len(arrow), _SEAL.pack(_checksum(arrow, unsealed, seal)))


def _checksum(arrow: memoryview, trailer: bytes | memoryview, seal: Seal) -> bytes:
    """Over the stream and the first 24 bytes of the trailer: magic, version, length."""
    hasher = seal.hasher(Purpose.SNAPSHOT)
    hasher.update(arrow)
    hasher.update(trailer[:24])
    return hasher.digest()


def _list(meta: Any, key: str, items_max: int) -> list[Any]:
    items: list[Any] = take(meta, key, list)
    if len(items) > items_max:
        raise BadValue(f"{len(items)} {key} exceed {items_max}")
    return items


def _bytes(item: Any, size: int | None = None) -> bytes:
    if type(item) is not bytes or len(item) != (size or len(item)):
        raise BadValue("a realm or layout is not bytes of the right length")
    return item


def _writer(meta: Any) -> str:
    writer: str = take(meta, "writer", str)
    if not is_writer_id(writer):
        raise BadValue(f"not a writer id: {writer!r}")
    return writer


def _parent(item: Any) -> SnapshotName:
    match item:
        case [int(generation), str(writer)] if (
            type(generation) is int and 0 <= generation <= COUNTER_MAX and is_writer_id(writer)
        ):
            return SnapshotName(generation, writer)
    raise BadValue("not a parent")


def _coverage(columns: Any) -> dict[str, Coverage]:
    ended, offsets = take(columns, "ended", bytes), take(columns, "offsets", bytes)
    writers = take(columns, "writers", bytes)
    if not len(writers) == len(offsets) == 8 * len(ended) <= 8 * JOURNALS_MAX:
        raise BadValue(f"columns of a coverage disagree, or more than {JOURNALS_MAX} journals")
    ids, places = writers.hex(), struct.unpack(f"<{len(ended)}Q", offsets)
    if max(ended, default=0) > 1 or max(places, default=0) > SIZE_MAX:
        raise BadValue("a number of a coverage is out of range")
    return {
        ids[16 * index : 16 * index + 16]: Coverage(place, bool(end))
        for index, (place, end) in enumerate(zip(places, ended, strict=True))
    }
