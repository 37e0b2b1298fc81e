"""What a decoded structure says, as JSON-able values: the common ground of codecs and plain reader.

`describe(vector)` decodes with the package's own code. The index of vectors holds the expected
description; the plain reader makes the same one without the package.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sharedfs_backend.layout import (
    TRAILER_BYTES,
    BadValue,
    Beat,
    Begin,
    ChunkEntry,
    Commit,
    Drop,
    End,
    EntryTable,
    Gone,
    LayoutDescriptor,
    RealmDescriptor,
    Record,
    Seal,
    Touch,
    decode_header,
    decode_namespace,
    decode_replica,
    decode_settings,
    decode_snapshot,
    decode_trailer,
    header_checksum,
    peek_header_bytes,
    scan,
)
from tests.layout.vectors import Vector


def describe(vector: Vector, data: bytes | None = None) -> Any:
    """The value of a vector's bytes, or of other bytes in their place. FormatError as it comes."""
    data = vector.data if data is None else data
    seal = Seal(vector.secret)
    return _READERS[vector.kind](data, seal, vector)


def _pack(data: bytes, seal: Seal, _vector: Vector) -> Any:
    header = decode_header(data, seal)
    trailer = decode_trailer(data[-TRAILER_BYTES:], seal)
    own_checksum = header_checksum(data[: peek_header_bytes(data)])
    if (trailer.total_bytes, trailer.header_checksum) != (len(data), own_checksum):
        raise BadValue("the trailer is another pack's")
    bad = [
        index
        for index, chunk in enumerate(header.entries)
        if seal.chunk_checksum_of(data[chunk.offset : chunk.offset + chunk.length])
        != chunk.checksum
    ]
    return {
        "realm": header.realm.hex(),
        "layout": _layout(header.layout),
        "fingerprint": header.fingerprint.hex(),
        "digest": header.digest(seal).hex(),
        "rank": header.rank,
        "version": header.version,
        "payload_offset": header.payload_offset,
        "total_bytes": header.total_bytes,
        "chunks": _table(header.entries),
        "damaged_chunks": bad,
    }


def _journal(data: bytes, seal: Seal, vector: Vector) -> Any:
    found = scan(data, vector.args["writer"], vector.args["offset"], seal)
    return {
        "entries": [[at, [_record(record) for record in records]] for at, records in found.entries],
        "next_offset": found.next_offset,
        "stopped": found.stopped.value,
        "skipped_bytes": found.skipped_bytes,
    }


def _record(record: Record) -> Any:
    match record:
        case Begin(format_major, random):
            return ["begin", format_major, random.hex()]
        case Commit(packs):
            return ["commit", [_commit(pack) for pack in packs]]
        case Drop(names):
            return ["drop", [name.path for name in names]]
        case Gone(names):
            return ["gone", [name.path for name in names]]
        case Touch(ages):
            return ["touch", [[name.path, round(age * 1000)] for name, age in ages]]
        case Beat(counter):
            return ["beat", counter]
        case End(successor):
            return ["end", successor]


def _commit(pack: Any) -> Any:
    return {
        "name": pack.name.path,
        "realm": pack.realm.hex(),
        "layout": _layout(pack.layout),
        "rank": pack.rank,
        "version": pack.version,
        "total_bytes": pack.total_bytes,
        "chunks": _table(pack.entries),
    }


def _snapshot(data: bytes, seal: Seal, _vector: Vector) -> Any:
    snapshot = decode_snapshot(data, seal)
    return {
        "generation": snapshot.generation,
        "writer": snapshot.writer,
        "parents": [parent.path for parent in snapshot.parents],
        "coverage": {
            writer: [cover.offset, cover.ended] for writer, cover in snapshot.coverage.items()
        },
        "packs": [
            {
                **_commit_or_tombstone(pack),
                "state": pack.state.name.lower(),
                "touch_ms": None
                if pack.touch_age_seconds is None
                else round(pack.touch_age_seconds * 1000),
                "age_ms": round(pack.age_seconds * 1000),
            }
            for pack in snapshot.packs
        ],
    }


def _commit_or_tombstone(pack: Any) -> dict[str, Any]:
    return {
        "name": pack.name.path,
        "realm": None if pack.realm is None else pack.realm.hex(),
        "layout": None if pack.layout is None else _layout(pack.layout),
        "rank": pack.rank,
        "version": pack.version,
        "total_bytes": pack.total_bytes,
        "chunks": _table(pack.entries),
    }


def _namespace(data: bytes, seal: Seal, _vector: Vector) -> Any:
    record = decode_namespace(data)
    return {
        "format": [record.major, record.minor],
        "seal": record.seal_kind,
        "unit_bytes": record.unit_bytes,
        "right_secret": record.accepts(seal),
    }


def _settings(data: bytes, seal: Seal, _vector: Vector) -> Any:
    record = decode_settings(data, seal)
    return {
        "number": record.number,
        "writer": record.writer,
        "cap_bytes": record.cap_bytes,
        "profile": None if record.profile is None else dict(record.profile),
    }


def _realm(data: bytes, seal: Seal, _vector: Vector) -> Any:
    file = RealmDescriptor.from_json(data, seal)
    realm = file.descriptor
    return {
        "model_identity": realm.model_identity,
        "identity_verified": realm.identity_verified,
        "shard": realm.shard,
        "serde": realm.serde,
        "hash_family": realm.hash_family,
        "digest": realm.digest(seal).hex(),
        "canary": file.canary.hex(),
    }


def _replica(data: bytes, seal: Seal, _vector: Vector) -> Any:
    return asdict(decode_replica(data, seal))


def _layout(layout: LayoutDescriptor) -> Any:
    shapes = [list(shape) for shape in layout.shapes]
    return [list(layout.dtypes), shapes, layout.tensor_format, layout.chunk_tokens]


def _table(table: EntryTable) -> Any:
    return [_chunk(chunk) for chunk in table]


def _chunk(chunk: ChunkEntry) -> Any:
    return [chunk.key.hex(), chunk.offset, chunk.length, chunk.checksum.hex()]


_READERS = {
    "pack": _pack,
    "journal": _journal,
    "snapshot": _snapshot,
    "namespace": _namespace,
    "settings": _settings,
    "realm": _realm,
    "replica": _replica,
}
