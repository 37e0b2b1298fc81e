"""Damage: whatever the bytes, a typed error or the right payload; never anything else (I2, I5, I6).

Resealed damage is what an adversary could write where there is no secret: intact by its checksums,
arbitrary inside. It must end in a value or a typed error, too, and reserve no memory for a lie.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import xxhash

from sharedfs_backend.layout import (
    BadChecksum,
    BadValue,
    FormatError,
    Seal,
    Stop,
    decode_entry,
    decode_header,
    decode_namespace,
    decode_snapshot,
    decode_trailer,
    scan,
)
from sharedfs_backend.layout.canonical import decode
from tests.layout.describe import describe
from tests.layout.vectors import Vector, vector, vectors

PLAIN, KEYED = Seal(), Seal(bytes(range(32)))
WRITER = "0123456789abcdef"
MASKS = (0x01, 0xFF)


def flipped(data: bytes, mask: int | None = None) -> Iterator[tuple[int, bytes]]:
    """(place, damaged copy) for every byte; without a mask each bit in its turn."""
    copy = bytearray(data)
    for at in range(len(data)):
        change = 1 << at % 8 if mask is None else mask
        copy[at] ^= change
        yield at, bytes(copy)
        copy[at] ^= change


def is_harmless(item: Vector, found: Any) -> bool:
    """Whether what a damaged file says is true as far as it goes."""
    if item.error:  # a damaged version number may turn a newer file into an unreadable one only
        return False
    if item.kind == "journal":
        return all(entry in item.value["entries"] for entry in found["entries"])
    if item.kind == "pack":
        return bool({**found, "damaged_chunks": []} == item.value)
    return bool(found == item.value)


def outcome(item: Vector, data: bytes) -> bool:
    try:
        return is_harmless(item, describe(item, data))
    except FormatError:
        return True


@pytest.mark.parametrize("item", vectors(), ids=str)
def test_every_truncation_is_a_typed_error_or_harmless(item: Vector) -> None:
    wrong = [size for size in range(len(item.data)) if not outcome(item, item.data[:size])]
    assert wrong == []


@pytest.mark.parametrize("mask", MASKS, ids=["low", "all"])
@pytest.mark.parametrize("item", vectors(), ids=str)
def test_every_flipped_byte_is_a_typed_error_or_harmless(item: Vector, mask: int) -> None:
    wrong = [at for at, data in flipped(item.data, mask) if not outcome(item, data)]
    assert wrong == []


@pytest.mark.parametrize("item", vectors(), ids=str)
def test_an_extended_file_is_a_typed_error_or_harmless(item: Vector) -> None:
    wrong = [n for n in (1, 63, 64, 4096) if not outcome(item, item.data + bytes(n))]
    assert wrong == []


def test_a_flipped_payload_byte_damages_exactly_its_chunk() -> None:
    item = vector("pack.bin")
    for at in (4096, 8595, 12288):
        data = bytearray(item.data)
        data[at] ^= 1
        assert describe(item, bytes(data))["damaged_chunks"] == [1 if at >= 12288 else 0]


def test_padding_is_sealed() -> None:
    item = vector("pack.bin")
    for at in (4000, len(item.data) - 100):
        data = bytearray(item.data)
        data[at] = 1
        with pytest.raises(BadChecksum):
            describe(item, bytes(data))


@pytest.mark.parametrize(
    "item", [v for v in vectors() if v.secret and v.kind != "namespace"], ids=str
)
def test_without_the_secret_nothing_sealed_with_it_is_read(item: Vector) -> None:
    other = Seal(b"x" * 32)
    for seal in (PLAIN, other):
        if item.kind == "journal":
            assert scan(item.data, WRITER, 0, seal).entries == []
        else:
            stranger = Vector(**{**fields(item), "secret": seal.secret})
            with pytest.raises(BadChecksum):
                describe(stranger)


def test_a_wrong_secret_is_told_from_damage_in_the_namespace() -> None:
    record = decode_namespace(vector("namespace-keyed.json").data)
    verdicts = [record.accepts(seal) for seal in (KEYED, Seal(b"x" * 32), PLAIN)]
    assert verdicts == [True, False, False]
    assert not decode_namespace(vector("namespace.json").data).accepts(KEYED)


def fields(item: Vector) -> dict[str, Any]:
    return {name: getattr(item, name) for name in Vector.__slots__}


def resealed(data: bytes, seal: Seal = PLAIN) -> bytes:
    """A structure whose head and 16-byte seal at its end are right again (no secret)."""
    head = data[:56] + struct.pack("<Q", xxhash.xxh3_64_intdigest(data[:56]))
    body = head + data[64:-16]
    return body + seal.checksum(body)


def resealed_snapshot(data: bytes) -> bytes:
    stream, tail = data[:-64], data[-64:]
    start = tail[:24] + PLAIN.checksum(stream + tail[:24]) + tail[40:56]
    return stream + start + struct.pack("<Q", xxhash.xxh3_64_intdigest(start))


HOSTILE = [
    ("pack header", vector("pack.bin").data[:4096], decode_header, resealed),
    ("pack trailer", vector("pack.bin").data[-4096:], decode_trailer, resealed),
    ("snapshot", vector("snapshot.arrow").data, decode_snapshot, resealed_snapshot),
    (
        "commit",
        vector("journal.bin").data[4096:8192],
        lambda data, seal: decode_entry(data, WRITER, 4096, seal),
        resealed,
    ),
    (
        "records",
        vector("journal.bin").data[8192:],
        lambda data, seal: decode_entry(data, WRITER, 8192, seal),
        resealed,
    ),
]


@pytest.mark.parametrize("mask", [*MASKS, 0x80, None], ids=["low", "all", "high", "each"])
@pytest.mark.parametrize("what,data,read,seal_again", HOSTILE, ids=[row[0] for row in HOSTILE])
def test_resealed_damage_ends_in_a_value_or_a_typed_error(
    what: str, data: bytes, read: Any, seal_again: Any, mask: int | None
) -> None:
    read(seal_again(data), PLAIN)  # undamaged it is right
    refused = 0
    for _at, damaged in flipped(data, mask):
        try:
            read(seal_again(damaged), PLAIN)
        except FormatError:
            refused += 1
    assert refused >= 10, what


def test_a_hostile_length_reserves_no_memory() -> None:
    bombs = [
        b"\xdd\xff\xff\xff\xff" * 400,
        b"\xdd\x00\x00\x0f\xff" * 400,
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\x7f\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x00",
        b"\x91" * 100_000,
    ]
    for bomb in bombs:
        tracemalloc.start()
        with pytest.raises(BadValue):
            decode(bomb)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20 << 20


def test_json_that_is_nested_deeply_or_says_a_key_twice_is_a_bad_value() -> None:
    for text in ("[" * 60_000, '{"a":' * 9_000, '{"kind":"namespace","kind":"namespace"}'):
        with pytest.raises(BadValue):
            decode_namespace(text.encode())


def test_an_intact_entry_that_breaks_a_rule_ends_the_reading_for_good() -> None:
    data = vector("journal.bin").data
    broken = data[8192:].replace(b"counter", b"kounter")
    found = scan(data[:8192] + resealed(broken), WRITER, 0, PLAIN)
    assert (found.stopped, found.next_offset, len(found.entries)) == (Stop.UNKNOWN_KIND, 8192, 2)


def test_an_entry_copied_to_another_place_or_journal_is_no_entry() -> None:
    data = vector("journal.bin").data
    moved = data[:4096] + data[:4096] + data[4096:8192]
    assert [at for at, _ in scan(moved, WRITER, 0, PLAIN).entries] == [0]
    assert scan(data, "f" * 16, 0, PLAIN).entries == []
    assert scan(data, WRITER, 4096, PLAIN).entries == []
