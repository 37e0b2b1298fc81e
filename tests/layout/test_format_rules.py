"""One rule of FORMAT.md, one breach of it, one typed refusal (I2, I6)."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sharedfs_backend.layout import (
    BadChecksum,
    BadMagic,
    BadValue,
    Commit,
    EntryTable,
    NewerVersion,
    PackHeader,
    Purpose,
    Seal,
    SettingsRecord,
    Stop,
    Truncated,
    decode_header,
    decode_namespace,
    decode_snapshot,
    encode_entry,
    encode_header,
    encode_settings,
    encode_snapshot,
    peek_header_bytes,
    scan,
)
from sharedfs_backend.layout.canonical import decode
from tests.layout import make_vectors
from tests.layout.test_format_damage import resealed, resealed_snapshot
from tests.layout.vectors import vector

PLAIN, WRITER = Seal(), make_vectors.WRITER
HEADER = make_vectors.make_header(PLAIN)
SNAPSHOT = make_vectors.make_snapshot(PLAIN)


def damaged(data: bytes, at: int, change: int = 2) -> bytes:
    return data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]


def test_a_damaged_version_is_damage_and_no_newer_version() -> None:
    with pytest.raises(BadChecksum):
        decode_header(damaged(vector("pack.bin").data, 8), PLAIN)
    with pytest.raises(BadChecksum):
        decode_snapshot(damaged(vector("snapshot.arrow").data, -64 + 8), PLAIN)


def test_a_journal_with_a_damaged_version_is_read_on_behind_it() -> None:
    found = scan(damaged(vector("journal.bin").data, 4096 + 8), WRITER, 0, PLAIN)
    assert [at for at, _records in found.entries] == [0, 8192]
    assert (found.stopped, found.skipped_bytes) == (Stop.END, 4096)


def test_too_few_bytes_are_truncated_and_other_bytes_are_foreign() -> None:
    data = vector("pack.bin").data
    with pytest.raises(Truncated):
        peek_header_bytes(data[:63])
    with pytest.raises(Truncated):
        decode_header(data[:4095], PLAIN)
    with pytest.raises(BadMagic):
        decode_header(bytes(4096), PLAIN)
    with pytest.raises(BadValue):
        peek_header_bytes(make_vectors.reseal(data[:4096], Purpose.PACK_HEADER, PLAIN, major=0))
    with pytest.raises(NewerVersion):
        peek_header_bytes(vector("pack-newer.bin").data[:64])


def breaches() -> list[tuple[str, PackHeader]]:
    table, total = HEADER.entries, HEADER.total_bytes
    offsets = table.offset_array()
    return [
        ("a chunk before the payload", replace(HEADER, payload_offset=8192)),
        ("a payload inside the header", replace(HEADER, payload_offset=0)),
        ("a chunk in the trailer", replace(HEADER, total_bytes=total - 4096)),
        ("a total that is no multiple", replace(HEADER, total_bytes=total + 1)),
        ("another layout's fingerprint", replace(HEADER, fingerprint=bytes(16))),
        ("a realm of 15 bytes", replace(HEADER, realm=bytes(15))),
        ("no chunks", replace(HEADER, entries=EntryTable(b"", b"", b"", b""))),
        ("a missing length", replace(HEADER, entries=replace(table, lengths=table.lengths[8:]))),
        ("chunks out of order", with_offsets(offsets[::-1])),
        ("an unaligned chunk", with_offsets(offsets + np.uint64(8))),
        ("an offset of 2^63", with_offsets(offsets + np.uint64(1 << 63))),
    ]


def with_offsets(offsets: Any) -> PackHeader:
    return replace(HEADER, entries=replace(HEADER.entries, offsets=offsets.tobytes()))


@pytest.mark.parametrize("breach,header", breaches(), ids=[name for name, _header in breaches()])
def test_a_header_that_breaks_a_rule_is_never_written(breach: str, header: PackHeader) -> None:
    with pytest.raises(ValueError, match=r"pack|header|chunk"):
        encode_header(header, PLAIN)


@pytest.mark.parametrize("column", ["keys", "offsets", "lengths", "checksums"])
def test_a_commit_whose_columns_disagree_is_never_written(column: str) -> None:
    commit = make_vectors.make_commit(PLAIN)
    change: Any = {column: getattr(commit.entries, column)[:-8]}
    shorter = replace(commit.entries, **change)
    with pytest.raises(ValueError, match="journal entry"):
        encode_entry(WRITER, 0, [Commit((replace(commit, entries=shorter),))], PLAIN)


@pytest.mark.parametrize(
    "column,value",
    [
        ("states", 3),
        ("realm_index", 9),
        ("realm_index", -1),
        ("layout_index", -2),
        ("versions", 1 << 63),
        ("touch_ms", -2),
        ("age_ms", -1),
        ("total_bytes", 4096),
    ],
)
def test_a_snapshot_with_a_number_out_of_range_is_never_written(column: str, value: int) -> None:
    changed = np.array(getattr(SNAPSHOT.packs, column))
    changed[0] = value
    change: Any = {column: changed}
    packs = replace(SNAPSHOT.packs, **change)
    with pytest.raises(ValueError, match="snapshot"):
        encode_snapshot(replace(SNAPSHOT, packs=packs), PLAIN)


def test_a_snapshot_whose_columns_point_outside_the_file_is_refused() -> None:
    data = vector("snapshot.arrow").data
    wide, narrow = struct.pack("<4Q", 0, 48, 96, 96), struct.pack("<4Q", 0, 24, 48, 48)
    assert (data.count(wide), data.count(narrow)) == (2, 2)  # where each row's values end
    for rows in (7 + 4096, 1):
        hostile = data.replace(wide, struct.pack("<4Q", 0, 48, 96, 16 * rows))
        hostile = hostile.replace(narrow, struct.pack("<4Q", 0, 24, 48, 8 * rows))
        with pytest.raises(BadValue):
            decode_snapshot(resealed_snapshot(hostile), PLAIN)


def test_a_length_far_beyond_the_limit_reserves_no_memory() -> None:
    bomb = b"\xdd\x00\x0f\x00\x00" * 400 + bytes(1 << 20)
    tracemalloc.start()
    with pytest.raises(BadValue):
        decode(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


def test_a_boolean_is_no_number() -> None:
    with pytest.raises(ValueError, match="settings"):
        encode_settings(SettingsRecord(True, WRITER), PLAIN)


def test_a_json_key_that_appears_twice_is_refused() -> None:
    text = vector("namespace.json").data
    with pytest.raises(BadValue, match="twice"):
        decode_namespace(text.replace(b'  "seal"', b'  "seal": "xxh3",\n  "seal"'))


def test_a_json_file_may_be_reformatted_and_not_changed() -> None:
    text = vector("namespace.json").data
    assert decode_namespace(b" ".join(text.split())) == decode_namespace(text)
    with pytest.raises(BadChecksum):
        decode_namespace(text.replace(b"4194304", b"4194305"))


def test_bytes_between_the_chunks_are_in_no_checksum() -> None:
    data = bytearray(vector("pack.bin").data)
    data[4096 + 4500] ^= 0xFF
    assert decode_header(bytes(data), PLAIN) == HEADER


def test_a_table_of_too_many_chunks_is_refused_before_it_is_read() -> None:
    head = vector("pack.bin").data[:4096]
    hostile = head[:16] + struct.pack("<Q", 1 << 40) + head[24:]
    with pytest.raises(BadValue, match="header"):
        peek_header_bytes(resealed(hostile))
