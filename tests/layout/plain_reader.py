"""A reader of every vector, written from FORMAT.md alone: no code of the package is used."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgpack  # type: ignore[import-untyped]  # it ships no types
import pyarrow as pa
import xxhash
from blake3 import blake3

STATES = ["live", "dropped", "gone"]
KINDS = ["", "begin", "commit", "drop", "gone", "touch", "beat", "end"]
PACK = [
    "realm",
    "layout",
    "fingerprint",
    "digest",
    "rank",
    "version",
    "payload_offset",
    "total_bytes",
    "chunks",
]
ROW = ["name", "realm", "layout", "rank", "version", "total_bytes", "chunks"]


def checksum(secret: bytes | None, purpose: str, data: bytes) -> bytes:
    if secret is None:
        return xxhash.xxh3_128(data).digest()
    key = blake3(secret, derive_key_context="sharedfs-backend 2026-01 " + purpose).digest()
    return blake3(data, key=key).digest(16)


def digest(secret: bytes | None, items: list[Any]) -> str:
    data = msgpack.packb(items)
    return (checksum(secret, "identity", data) if secret else blake3(data).digest(16)).hex()


def chunk_checksum(secret: bytes | None, data: bytes) -> bytes:
    units = [data[at : at + 4194304] for at in range(0, len(data), 4194304)]
    return checksum(secret, "payload", b"".join(checksum(secret, "payload", u) for u in units))


def head(data: bytes, magic: bytes) -> tuple[int, int]:
    name, major, _minor, field, length, check = struct.unpack("<8sHHIQ32xQ", data[:64])
    assert name == magic and check == xxhash.xxh3_64(data[:56]).intdigest(), "damaged"
    if major > 1:
        raise NotImplementedError("NewerVersion")
    return field, length


def cut(data: bytes, width: int) -> list[bytes]:
    return [data[at : at + width] for at in range(0, len(data), width)]


def numbers(data: bytes) -> list[int]:
    return [int.from_bytes(item, "little") for item in cut(data, 8)]


def names(data: bytes) -> list[str]:
    parts = [(raw[:16].hex(), raw[16:24].hex(), numbers(raw[24:])[0]) for raw in cut(data, 32)]
    return [f"packs/{text[:2]}/{text}.{writer}.{seq:x}" for text, writer, seq in parts]


def table(of: Any) -> list[list[Any]]:
    keys, sums = ([item.hex() for item in cut(of[name], 16)] for name in ("keys", "checksums"))
    columns = (keys, numbers(of["offsets"]), numbers(of["lengths"]), sums)
    return [list(row) for row in zip(*columns, strict=True)]


def read_pack(data: bytes, secret: bytes | None, _args: Any) -> Any:
    rank, length = head(data, b"SFB-PACK")
    seal, tail = data[length - 16 : length], data[-4096:]
    assert seal == checksum(secret, "pack header", data[: length - 16])
    start, total, n, m, version = struct.unpack("<QQIIQ", data[24:56])
    assert head(tail, b"SFB-TAIL") == (0, total) and total == len(data) and tail[24:40] == seal
    assert tail[4080:] == checksum(secret, "pack trailer", tail[:4080])
    of, at = msgpack.unpackb(data[64 : 64 + m]), 64 + m
    for name, first, end in zip(
        ("keys", "offsets", "lengths", "checksums"), (0, 16, 24, 32), (16, 24, 32, 48), strict=True
    ):
        of[name] = data[at + first * n : at + end * n]
    layout, fingerprint, chunks = msgpack.unpackb(of["layout"]), of["fingerprint"], table(of)
    assert fingerprint.hex() == digest(secret, layout)
    own = digest(secret, ["pack", of["realm"], fingerprint, of["keys"]])
    whole = [chunk_checksum(secret, data[place : place + size]) for _k, place, size, _c in chunks]
    bad = [
        i
        for i, (chunk, found) in enumerate(zip(chunks, whole, strict=True))
        if found.hex() != chunk[3]
    ]
    values = [of["realm"].hex(), layout[1:], fingerprint.hex(), own, rank, version, start, total]
    return {**dict(zip(PACK, [*values, chunks], strict=True)), "damaged_chunks": bad}


def read_journal(data: bytes, secret: bytes | None, args: Any) -> Any:
    entries, at, skipped, stopped = [], 0, 0, "end"
    while at < len(data) and stopped == "end":
        stopped = "incomplete"
        for start in range(at, len(data), 4096):
            try:
                length, records = entry(
                    data[start:], secret, args["writer"], args["offset"] + start
                )
            except NotImplementedError:
                stopped, skipped, at = "unknown kind", skipped + start - at, start
            except (AssertionError, struct.error):
                continue
            else:
                entries.append([args["offset"] + start, records])
                stopped, skipped, at = "end", skipped + start - at, start + length
            break
    stops = {"next_offset": args["offset"] + at, "stopped": stopped, "skipped_bytes": skipped}
    return {"entries": entries, **stops}


def entry(data: bytes, secret: bytes | None, writer: str, offset: int) -> tuple[int, list[Any]]:
    own, own_writer, size = struct.unpack("<Q8sQ", data[24:48])
    assert (own, own_writer.hex()) == (offset, writer)
    length = head(data, b"SFB-JRNL")[1]
    seal = checksum(secret, "journal entry", data[: length - 16])
    assert length <= len(data) and data[length - 16 : length] == seal
    return length, [record(kind, of) for kind, of in msgpack.unpackb(data[64 : 64 + size])]


def record(kind: int, of: Any) -> list[Any]:
    if kind >= len(KINDS):
        raise NotImplementedError("an unknown kind")
    listed = names(of.get("names", b""))
    if kind == 1:
        return [KINDS[kind], of["format"], of["random"].hex()]
    if kind == 2:
        return [KINDS[kind], [commit(pack) for pack in of["packs"]]]
    if kind == 5:
        return [KINDS[kind], [list(pair) for pair in zip(listed, numbers(of["ages"]), strict=True)]]
    return [KINDS[kind], {6: of.get("counter"), 7: of.get("successor")}.get(kind, listed)]


def commit(of: Any) -> Any:
    first = [names(of["name"])[0], of["realm"].hex(), msgpack.unpackb(of["layout"])[1:]]
    return dict(zip(ROW, [*first, of["rank"], of["version"], of["total"], table(of)], strict=True))


def read_snapshot(data: bytes, secret: bytes | None, _args: Any) -> Any:
    stream, tail = data[:-64], data[-64:]
    assert head(tail, b"SFB-SNAP") == (0, len(stream))
    assert tail[24:40] == checksum(secret, "snapshot", stream + tail[:24])
    rows = pa.ipc.open_stream(stream).read_all()
    of = msgpack.unpackb(rows.schema.metadata[b"sharedfs"])
    cover = of["coverage"]
    places = zip(cut(cover["writers"], 8), numbers(cover["offsets"]), cover["ended"], strict=True)
    return {
        "generation": of["generation"],
        "writer": of["writer"],
        "parents": [f"snapshots/{number}.{writer}.arrow" for number, writer in of["parents"]],
        "coverage": {writer.hex(): [place, end == 1] for writer, place, end in places},
        "packs": [row(pack, of) for pack in rows.to_pylist()],
    }


def row(pack: Any, of: Any) -> Any:
    name = names(pack["digest"] + pack["writer"] + struct.pack("<Q", pack["seq"]))[0]
    realm = None if pack["realm"] < 0 else of["realms"][pack["realm"]].hex()
    layout = None if pack["layout"] < 0 else msgpack.unpackb(of["layouts"][pack["layout"]])[1:]
    numbers = (pack["rank"], pack["version"], pack["total_bytes"])
    touch, state = None if pack["touch_ms"] < 0 else pack["touch_ms"], STATES[pack["state"]]
    first = dict(zip(ROW, [name, realm, layout, *numbers, table(pack)], strict=True))
    return {**first, "state": state, "touch_ms": touch, "age_ms": pack["age_ms"]}


def read_json(data: bytes, secret: bytes | None, _args: Any) -> Any:
    of = json.loads(data)
    if of["format"][0] > 1:
        raise NotImplementedError("NewerVersion")
    seal = of.pop("checksum")
    compact = json.dumps(of, sort_keys=True, separators=(",", ":")).encode()
    namespace = of.pop("kind") == "namespace"
    assert seal == checksum(None if namespace else secret, "json file", compact).hex()
    if namespace:
        check = digest(secret, ["key check"]) if secret else None
        of["right_secret"] = of.pop("key_check") == check
        return of
    return {key: value for key, value in of.items() if key != "format"}


def read(kind: str, data: bytes, secret: bytes | None, args: Any) -> Any:
    """The value of a vector, NotImplementedError for a later version, AssertionError for damage."""
    readers = {"pack": read_pack, "journal": read_journal, "snapshot": read_snapshot}
    return readers.get(kind, read_json)(data, secret, args)
