"""Makes the vectors, their index, and the hex blocks and digests quoted in FORMAT.md.

    python -m tests.layout.make_vectors           rewrite what differs, and say what did
    python -m tests.layout.make_vectors --check   say it only; exit status 1 if anything differs

Everything is derived from constants here, so the result is the same on every machine. A change of
any committed vector is a change of the format: it needs a new version, not a new vector.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from sharedfs_backend.layout import (
    Beat,
    Begin,
    ChunkEntry,
    Commit,
    Coverage,
    Drop,
    End,
    EntryTable,
    FormatError,
    Gone,
    LayoutDescriptor,
    PackCommit,
    PackHeader,
    PackName,
    PackRows,
    PackState,
    Purpose,
    RealmDescriptor,
    Record,
    ReplicaRecord,
    Seal,
    SettingsRecord,
    Snapshot,
    SnapshotName,
    SnapshotPack,
    Touch,
    chunk_key,
    encode_entry,
    encode_header,
    encode_namespace,
    encode_replica,
    encode_settings,
    encode_snapshot,
    encode_trailer,
    header_checksum,
    journal_path,
    pack_digest,
    plan_pack,
    realm_path,
    replica_path,
    settings_path,
)
from tests.layout.describe import describe
from tests.layout.vectors import FOLDER, INDEX, Vector

FORMAT_MD = FOLDER.parent / "FORMAT.md"
SECRET = bytes(range(32))
WRITER, OTHER = "0123456789abcdef", "fedcba9876543210"
REALM = RealmDescriptor("blake3:5eed", True, "tp0", "none", "blake3")
LAYOUT = LayoutDescriptor(("float32",), ((2, 8, 16, 4),), "kv_2ltd", 16)
CANARY = bytes.fromhex("00c0ffee")
LENGTHS = (4500, 4096, 0)


def payload(length: int, salt: int) -> bytes:
    """Bytes that anyone can make again: byte i is (7 i + salt) mod 251."""
    return bytes((7 * i + salt) % 251 for i in range(min(length, 251))) * (length // 251 + 1)


def chunk_bytes(index: int) -> bytes:
    return payload(LENGTHS[index], index)[: LENGTHS[index]]


def make_replica(seal: Seal) -> bytes:
    record = ReplicaRecord(
        WRITER,
        "http://node7:8000",
        counter=42,
        model="meta/llama",
        realm=REALM.digest(seal).hex(),
        chunk_tokens=256,
        hash_algorithm="blake3",
        kv_bytes_per_token=131072,
        kv_world_size=2,
        kv_events_port=5557,
    )
    return encode_replica(record, seal)


def make_header(seal: Seal) -> PackHeader:
    plan = plan_pack(LAYOUT, LENGTHS, 4096)
    entries = EntryTable.from_entries(
        ChunkEntry(
            chunk_key(seal, bytes([index]) * 32, 0, 0, ""),
            plan.entries_offsets[index],
            length,
            seal.chunk_checksum_of(chunk_bytes(index)),
        )
        for index, length in enumerate(LENGTHS)
    )
    realm, fingerprint = REALM.digest(seal), LAYOUT.fingerprint(seal)
    where = (plan.payload_offset, plan.total_bytes)
    return PackHeader(realm, LAYOUT, fingerprint, 3, entries, *where, version=2)


def make_pack(seal: Seal) -> bytes:
    header = make_header(seal)
    data = bytearray(header.total_bytes)
    encoded = encode_header(header, seal)
    data[: len(encoded)] = encoded
    for index, chunk in enumerate(header.entries):
        data[chunk.offset : chunk.offset + chunk.length] = chunk_bytes(index)
    trailer = encode_trailer(len(data), header_checksum(encoded), seal)
    data[-len(trailer) :] = trailer
    return bytes(data)


def pack_name(seal: Seal, seq: int = 26) -> PackName:
    return PackName(make_header(seal).digest(seal), WRITER, seq)


def make_commit(seal: Seal) -> PackCommit:
    header, name = make_header(seal), pack_name(seal)
    realm, total = header.realm, header.total_bytes
    return PackCommit(name, realm, LAYOUT, header.rank, header.version, total, header.entries)


def make_journal(seal: Seal) -> bytes:
    """Begin, a commit, then one entry with every other kind of record."""
    name = pack_name(seal)
    gone = pack_name(seal, 25)
    records: list[list[Record]] = [
        [Begin(1, bytes(range(16)))],
        [Commit((make_commit(seal),))],
        [Touch(((name, 12.345),)), Beat(7), Drop((name,)), Gone((gone,)), End(OTHER)],
    ]
    data = b""
    for group in records:
        data += encode_entry(WRITER, len(data), group, seal)
    return data


def make_snapshot(seal: Seal) -> Snapshot:
    commit = make_commit(seal)
    live = SnapshotPack(
        commit.name,
        commit.realm,
        commit.layout,
        commit.rank,
        commit.version,
        commit.total_bytes,
        PackState.LIVE,
        12.345,
        60.5,
        commit.entries,
    )
    dropped = replace(live, name=pack_name(seal, 25), state=PackState.DROPPED)
    gone = SnapshotPack(
        pack_name(seal, 24), None, None, 0, 0, 0, PackState.GONE, None, 0.25, EntryTable(*[b""] * 4)
    )
    return Snapshot(
        generation=5,
        writer=WRITER,
        parents=(SnapshotName(4, OTHER), SnapshotName(4, WRITER)),
        coverage={WRITER: Coverage(12288, True), OTHER: Coverage(4096, False)},
        packs=PackRows.of([live, dropped, gone]),
    )


def reseal(data: bytes, purpose: Purpose, seal: Seal, **changes: Any) -> bytes:
    """The same structure with another version in its head or another body, sealed anew."""
    body = bytearray(changes.get("body", data[:-16]))
    struct.pack_into("<HH", body, 8, changes.get("major", 1), changes.get("minor", 0))
    struct.pack_into("<Q", body, 56, xxhash.xxh3_64_intdigest(bytes(body[:56])))
    return bytes(body) + seal.checksum(bytes(body), purpose)


def make_pack_of_minor(seal: Seal) -> bytes:
    """A pack as version 1.7 might write it: one more key in the header's map."""
    data = make_pack(seal)
    meta_bytes = struct.unpack_from("<I", data, 44)[0]
    meta = data[64 : 64 + meta_bytes]
    assert meta[0] == 0x83
    longer = b"\x84" + meta[1:] + b"\xa7zz_note\xa3new"
    body = bytearray(data[:64] + longer + data[64 + meta_bytes : 4096 - 16])
    struct.pack_into("<I", body, 44, len(longer))
    header = reseal(b"", Purpose.PACK_HEADER, seal, body=bytes(body[: 4096 - 16]), minor=7)
    trailer = encode_trailer(len(data), header_checksum(header), seal)
    return header + data[4096:-4096] + trailer


def make_entry_of_kind(seal: Seal, kind: int) -> bytes:
    """An entry whose record is a heartbeat of another kind."""
    data = encode_entry(WRITER, 4096, [Beat(7)], seal)
    assert data[64:67] == bytes([0x91, 0x92, 6])
    body = data[:66] + bytes([kind]) + data[67:-16]
    return reseal(b"", Purpose.JOURNAL, seal, body=body, minor=3)


def make_snapshot_of_minor(seal: Seal) -> bytes:
    """A snapshot as version 1.7 might write it: one more column."""
    data = encode_snapshot(make_snapshot(seal), seal)
    with pa.ipc.open_stream(data[:-64]) as stream:
        table = stream.read_all()
    table = table.append_column("zz_note", pa.array([1, 2, 3]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    arrow: bytes = sink.getvalue().to_pybytes()
    head = struct.pack("<8sHHIQ", b"SFB-SNAP", 1, 7, 0, len(arrow))
    start = head + seal.checksum(arrow + head, Purpose.SNAPSHOT) + bytes(16)
    return arrow + start + struct.pack("<Q", xxhash.xxh3_64_intdigest(start))


def newer_json(data: bytes) -> bytes:
    return data.replace(b'"format": [\n    1,', b'"format": [\n    2,')


def newer_tail(data: bytes) -> bytes:
    """A snapshot with major version 2 in its trailer's head."""
    head = bytearray(data[-64:])
    struct.pack_into("<H", head, 8, 2)
    struct.pack_into("<Q", head, 56, xxhash.xxh3_64_intdigest(bytes(head[:56])))
    return data[:-64] + bytes(head)


def files() -> list[tuple[str, str, str, Seal, dict[str, Any], bytes]]:
    """(file, kind, claim, seal, arguments, bytes) of every vector."""
    plain, keyed = Seal(), Seal(SECRET)
    place = {"writer": WRITER, "offset": 0}
    journal, pack = make_journal(plain), make_pack(plain)
    damaged = journal[:4096] + bytes(4096) + journal[8192:]
    unknown = journal[:4096] + make_entry_of_kind(plain, 99)
    newer = journal[:4096] + reseal(journal[4096:8192], Purpose.JOURNAL, plain, major=2)
    settings = SettingsRecord(3, WRITER, 1 << 40, {"name": "posix", "rename": True, "piece": 4})
    record = encode_settings(settings, plain)
    snapshot = encode_snapshot(make_snapshot(plain), plain)
    header2 = reseal(pack[:4096], Purpose.PACK_HEADER, plain, major=2)
    rows: list[tuple[str, str, str, Seal, dict[str, Any], bytes]] = [
        ("pack.bin", "pack", "a pack of three chunks", plain, {}, pack),
        ("pack-keyed.bin", "pack", "the same with a secret", keyed, {}, make_pack(keyed)),
        (
            "pack-minor.bin",
            "pack",
            "unknown keys are ignored",
            plain,
            {},
            make_pack_of_minor(plain),
        ),
        ("pack-newer.bin", "pack", "left alone", plain, {}, header2 + pack[4096:]),
        ("journal.bin", "journal", "every kind of record", plain, place, journal),
        ("journal-keyed.bin", "journal", "the same", keyed, place, make_journal(keyed)),
        ("journal-damaged.bin", "journal", "a later entry proves it", plain, place, damaged),
        ("journal-torn.bin", "journal", "not yet", plain, place, journal[: 4096 + 100]),
        ("journal-unknown.bin", "journal", "reading ends for good", plain, place, unknown),
        ("journal-newer.bin", "journal", "reading ends for good", plain, place, newer),
        ("snapshot.arrow", "snapshot", "a pack and two tombstones", plain, {}, snapshot),
        (
            "snapshot-keyed.arrow",
            "snapshot",
            "the same with a secret",
            keyed,
            {},
            encode_snapshot(make_snapshot(keyed), keyed),
        ),
        (
            "snapshot-minor.arrow",
            "snapshot",
            "unknown columns are ignored",
            plain,
            {},
            make_snapshot_of_minor(plain),
        ),
        ("snapshot-newer.arrow", "snapshot", "left alone", plain, {}, newer_tail(snapshot)),
        ("namespace.json", "namespace", "no secret", plain, {}, encode_namespace(plain)),
        ("namespace-keyed.json", "namespace", "a secret", keyed, {}, encode_namespace(keyed)),
        (
            "namespace-newer.json",
            "namespace",
            "left alone",
            plain,
            {},
            newer_json(encode_namespace(plain)),
        ),
        ("settings.json", "settings", "a cap and a profile", plain, {}, record),
        (
            "settings-keyed.json",
            "settings",
            "no cap",
            keyed,
            {},
            encode_settings(SettingsRecord(4, OTHER), keyed),
        ),
        ("realm.json", "realm", "a descriptor", plain, {}, REALM.to_json(plain, CANARY)),
        ("realm-keyed.json", "realm", "the same", keyed, {}, REALM.to_json(keyed, CANARY)),
        ("replica.json", "replica", "a replica", plain, {}, make_replica(plain)),
        ("replica-keyed.json", "replica", "the same", keyed, {}, make_replica(keyed)),
    ]
    return rows


def digests(seal: Seal) -> dict[str, str]:
    """Golden values of every digest and checksum."""
    units = payload(4 << 20, 0)[: 4 << 20], payload(1000, 5)[:1000]
    keys = [chunk_key(seal, bytes([index]) * 32, 0, 0, "") for index in range(2)]
    realm, fingerprint = REALM.digest(seal), LAYOUT.fingerprint(seal)
    return {
        "checksum of nothing": seal.checksum(b"").hex(),
        "checksum of 'abc'": seal.checksum(b"abc").hex(),
        "digest of 'abc'": seal.digest(b"abc").hex(),
        "chunk of no units": seal.chunk_checksum([]).hex(),
        "chunk of 'abc'": seal.chunk_checksum_of(b"abc").hex(),
        "chunk of two units": seal.chunk_checksum_of(b"".join(units)).hex(),
        "chunk key 00..": keys[0].hex(),
        "chunk key 01..": keys[1].hex(),
        "chunk key, rank and salt": chunk_key(seal, bytes(32), 7, 1, "lora").hex(),
        "realm": realm.hex(),
        "fingerprint": fingerprint.hex(),
        "pack digest": pack_digest(seal, realm, fingerprint, keys).hex(),
    }


def names() -> dict[str, str]:
    """Golden paths, each with what it is built from."""
    digest = bytes(range(16))
    return {
        "pack": PackName(digest, WRITER, 26).path,
        "journal": journal_path(WRITER),
        "snapshot": SnapshotName(5, WRITER).path,
        "realm": realm_path(digest, CANARY),
        "settings": settings_path(3, WRITER),
        "replica": replica_path(WRITER),
    }


def build() -> dict[Path, bytes]:
    """Every generated file, by path."""
    made: dict[Path, bytes] = {}
    entries = []
    for file, kind, claim, seal, args, data in files():
        secret = None if seal.secret is None else seal.secret.hex()
        entry: dict[str, Any] = {"file": file, "kind": kind, "claim": claim, "secret": secret}
        if args:
            entry["args"] = args
        try:
            vector = Vector(file, kind, claim, seal.secret, args, None, None, data)
            entry["value"] = describe(vector)
        except FormatError as error:
            entry["error"] = type(error).__name__
        made[FOLDER / file] = data
        entries.append(entry)
    index = {
        "about": "Made by python -m tests.layout.make_vectors; see FORMAT.md",
        "names": names(),
        "digests": digests(Seal()),
        "digests_keyed": digests(Seal(SECRET)),
        "files": entries,
    }
    made[INDEX] = (json.dumps(index, indent=1) + "\n").encode()
    made[FORMAT_MD] = render(FORMAT_MD.read_text(), made, index).encode()
    return made


def render(text: str, made: dict[Path, bytes], index: dict[str, Any]) -> str:
    """FORMAT.md with every quoted block replaced by what the vectors say.

    `<!-- bytes FILE START LENGTH -->` and `<!-- values GROUP -->` stand above the blocks.
    """

    def block(match: re.Match[str]) -> str:
        words = match[1].split()
        if words[0] == "bytes":
            data, start = made[FOLDER / words[1]], int(words[2])
            body = hexdump(data[start : start + int(words[3])], start)
        elif words[0] == "text":
            body = made[FOLDER / words[1]].decode().rstrip()
        else:
            group: dict[str, str] = index[words[1]]
            body = "\n".join(f"{name:26}{value}" for name, value in group.items())
        return f"<!-- {match[1]} -->\n```\n{body}\n```"

    pattern = r"<!-- ((?:bytes|values|text) [^>]*?) -->\n```\n.*?\n?```"
    return re.sub(pattern, block, text, flags=re.DOTALL)


def hexdump(data: bytes, start: int) -> str:
    rows = range(0, len(data), 16)
    return "\n".join(f"{start + at:5}  {data[at : at + 16].hex(' ')}" for at in rows)


def main(arguments: list[str]) -> int:
    different = [
        (path, data)
        for path, data in build().items()
        if not path.exists() or path.read_bytes() != data
    ]
    for path, data in different:
        print(f"differs: {path.name}")
        if "--check" not in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    return 1 if different and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
