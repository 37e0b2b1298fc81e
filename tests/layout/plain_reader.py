"""A reader of every vector, written from FORMAT.md alone: no code of the package is used."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgpack  # type: ignore[import-untyped]  # it ships no types
import pyarrow as pa
import xxhash
from blake3 import blake3

CONTEXT = "sharedfs-backend 2026-01 "
STATES = ["live", "dropped", "gone"]
KINDS = ["", "begin", "commit", "drop", "gone", "touch", "beat", "end"]


def checksum(secret: bytes | None, purpose: str, data: bytes) -> bytes:
    if secret is None:
        return xxhash.xxh3_128(data).digest()
    key = blake3(secret, derive_key_context=CONTEXT + purpose).digest()
    return blake3(data, key=key).digest(16)


def digest(secret: bytes | None, items: list[Any]) -> str:
    data = msgpack.packb(items)
    return (blake3(data).digest(16) if secret is None else checksum(secret, "identity", data)).hex()


def chunk_checksum(secret: bytes | None, data: bytes) -> bytes:
    units = [data[at : at + 4194304] for at in range(0, len(data), 4194304)]
    joined = b"".join(checksum(secret, "payload", unit) for unit in units)
    return checksum(secret, "payload", joined)


def head(data: bytes, magic: bytes) -> tuple[int, int]:
    name, major, _minor, field, length, check = struct.unpack("<8sHHIQ32xQ", data[:64])
    assert name == magic and check == xxhash.xxh3_64(data[:56]).intdigest(), "damaged"
    if major > 1:
        raise NotImplementedError("NewerVersion")
    return field, length


def name(raw: bytes) -> str:
    text, seq = raw[:16].hex(), int.from_bytes(raw[24:], "little")
    return f"packs/{text[:2]}/{text}.{raw[16:24].hex()}.{seq:x}"


def table(keys: bytes, offsets: bytes, lengths: bytes, checksums: bytes) -> list[Any]:
    count = len(keys) // 16
    whole = struct.unpack(f"<{count}Q", offsets), struct.unpack(f"<{count}Q", lengths)
    cut = [
        [column[16 * i : 16 * i + 16].hex() for i in range(count)] for column in (keys, checksums)
    ]
    return [list(row) for row in zip(cut[0], *whole, cut[1], strict=True)]


def columns(of: Any) -> list[Any]:
    return table(of["keys"], of["offsets"], of["lengths"], of["checksums"])


def read_pack(data: bytes, secret: bytes | None, _args: Any) -> Any:
    rank, length = head(data, b"SFB-PACK")
    seal = data[length - 16 : length]
    assert seal == checksum(secret, "pack header", data[: length - 16])
    start, total, n, m, version = struct.unpack("<QQIIQ", data[24:56])
    fields, at = msgpack.unpackb(data[64 : 64 + m]), 64 + m
    cuts = [data[at + a * n : at + b * n] for a, b in ((0, 16), (16, 24), (24, 32), (32, 48))]
    tail = data[-4096:]
    assert head(tail, b"SFB-TAIL") == (0, total) and total == len(data) and tail[24:40] == seal
    assert tail[4080:] == checksum(secret, "pack trailer", tail[:4080])
    layout = msgpack.unpackb(fields["layout"])
    assert fields["fingerprint"].hex() == digest(secret, layout)
    chunks = table(*cuts)
    bad = [
        i
        for i, (_key, place, size, wanted) in enumerate(chunks)
        if chunk_checksum(secret, data[place : place + size]).hex() != wanted
    ]
    return {
        "realm": fields["realm"].hex(),
        "layout": layout[1:],
        "fingerprint": fields["fingerprint"].hex(),
        "digest": digest(secret, ["pack", fields["realm"], fields["fingerprint"], cuts[0]]),
        "rank": rank,
        "version": version,
        "payload_offset": start,
        "total_bytes": total,
        "chunks": chunks,
        "damaged_chunks": bad,
    }


def read_journal(data: bytes, secret: bytes | None, args: Any) -> Any:
    entries, at, skipped, stopped = [], 0, 0, "end"
    while at < len(data):
        found = stop = None
        for start in range(at, len(data), 4096):
            try:
                found, stop = entry(data[start:], secret, args["writer"], args["offset"] + start)
            except NotImplementedError:
                stop = "unknown kind"
            except (AssertionError, struct.error):
                continue
            skipped += start - at
            break
        else:
            stop = "incomplete"
        if stop or not found:
            stopped = stop or stopped
            break
        entries.append([args["offset"] + start, found[1]])
        at = start + found[0]
    stops = {"next_offset": args["offset"] + at, "stopped": stopped, "skipped_bytes": skipped}
    return {"entries": entries, **stops}


def entry(data: bytes, secret: bytes | None, writer: str, offset: int) -> Any:
    own, own_writer, size = struct.unpack("<Q8sQ", data[24:48])
    assert (own, own_writer.hex()) == (offset, writer)
    length = head(data, b"SFB-JRNL")[1]
    seal = checksum(secret, "journal entry", data[: length - 16])
    assert length <= len(data) and data[length - 16 : length] == seal
    records = msgpack.unpackb(data[64 : 64 + size])
    if any(kind >= len(KINDS) for kind, _fields in records):
        return None, "unknown kind"
    return (length, [[KINDS[kind], *record(kind, fields)] for kind, fields in records]), None


def record(kind: int, of: Any) -> list[Any]:
    raw = of.get("names", b"")
    names = [name(raw[at : at + 32]) for at in range(0, len(raw), 32)]
    if kind == 1:
        return [of["format"], of["random"].hex()]
    if kind == 2:
        return [[commit(pack) for pack in of["packs"]]]
    if kind == 5:
        ages = struct.unpack(f"<{len(names)}Q", of["ages"])
        return [[list(pair) for pair in zip(names, ages, strict=True)]]
    return [{6: of.get("counter"), 7: of.get("successor")}.get(kind, names)]


def commit(pack: Any) -> Any:
    return {
        "name": name(pack["name"]),
        "realm": pack["realm"].hex(),
        "layout": msgpack.unpackb(pack["layout"])[1:],
        "rank": pack["rank"],
        "version": pack["version"],
        "total_bytes": pack["total"],
        "chunks": columns(pack),
    }


def read_snapshot(data: bytes, secret: bytes | None, _args: Any) -> Any:
    stream, tail = data[:-64], data[-64:]
    assert head(tail, b"SFB-SNAP") == (0, len(stream))
    assert tail[24:40] == checksum(secret, "snapshot", stream + tail[:24])
    rows = pa.ipc.open_stream(stream).read_all()
    of = msgpack.unpackb(rows.schema.metadata[b"sharedfs"])
    cover = of["coverage"]
    places = struct.unpack(f"<{len(cover['ended'])}Q", cover["offsets"])
    writers = [cover["writers"][at : at + 8].hex() for at in range(0, len(cover["writers"]), 8)]
    ended = map(bool, cover["ended"])
    covered = {who: [place, end] for who, place, end in zip(writers, places, ended, strict=True)}
    return {
        "generation": of["generation"],
        "writer": of["writer"],
        "parents": [f"snapshots/{number}.{writer}.arrow" for number, writer in of["parents"]],
        "coverage": covered,
        "packs": [row(pack, of) for pack in rows.to_pylist()],
    }


def row(pack: Any, of: Any) -> Any:
    realm, layout = pack["realm"], pack["layout"]
    return {
        "name": name(pack["digest"] + pack["writer"] + pack["seq"].to_bytes(8, "little")),
        "realm": None if realm < 0 else of["realms"][realm].hex(),
        "layout": None if layout < 0 else msgpack.unpackb(of["layouts"][layout])[1:],
        "rank": pack["rank"],
        "version": pack["version"],
        "total_bytes": pack["total_bytes"],
        "chunks": columns(pack),
        "state": STATES[pack["state"]],
        "touch_ms": None if pack["touch_ms"] < 0 else pack["touch_ms"],
        "age_ms": pack["age_ms"],
    }


def read_json(data: bytes, secret: bytes | None, _args: Any) -> Any:
    of = json.loads(data)
    if of["format"][0] > 1:
        raise NotImplementedError("NewerVersion")
    seal, kind = of.pop("checksum"), of.pop("kind")
    whole = json.dumps({**of, "kind": kind}, sort_keys=True, separators=(",", ":")).encode()
    key = None if kind == "namespace" else secret
    assert seal == checksum(key, "json file", whole).hex()
    if kind == "namespace":
        check = None if secret is None else digest(secret, ["key check"])
        of["right_secret"] = of.pop("key_check") == check
    else:
        del of["format"]
    return of


READERS = {"pack": read_pack, "journal": read_journal, "snapshot": read_snapshot}


def read(kind: str, data: bytes, secret: bytes | None, args: Any) -> Any:
    """The value of a vector, NotImplementedError for a later version, AssertionError for damage."""
    return READERS.get(kind, read_json)(data, secret, args)
