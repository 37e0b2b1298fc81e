"""Names: what one function builds, its neighbour recognises; nothing else is ours (I1, I3)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedfs_backend.layout import (
    NAMESPACE_PATH,
    PACKS,
    BadValue,
    PackName,
    SnapshotName,
    is_writer_id,
    journal_path,
    pack_shard_dirs,
    parse_journal_name,
    parse_names,
    parse_realm_name,
    parse_settings_name,
    realm_path,
    settings_path,
    writer_id,
)
from tests.layout.vectors import index

WRITER = "0123456789abcdef"
DIGEST = bytes(range(16))
COUNTERS = st.integers(0, (1 << 63) - 1)
WRITERS = st.binary(min_size=8, max_size=8).map(writer_id)
DIGESTS = st.binary(min_size=16, max_size=16)
PACK_NAMES = st.builds(PackName, DIGESTS, WRITERS, COUNTERS)


def test_the_golden_names_are_built_and_recognised() -> None:
    golden = index()["names"]
    pack, snapshot = PackName(DIGEST, WRITER, 26), SnapshotName(5, WRITER)
    canary = bytes.fromhex("00c0ffee")
    assert (pack.path, PackName.parse(golden["pack"])) == (golden["pack"], pack)
    assert (snapshot.path, SnapshotName.parse(golden["snapshot"])) == (golden["snapshot"], snapshot)
    assert (journal_path(WRITER), parse_journal_name(golden["journal"])) == (
        golden["journal"],
        WRITER,
    )
    assert realm_path(DIGEST, canary) == golden["realm"]
    assert parse_realm_name(golden["realm"]) == (DIGEST, canary)
    assert settings_path(3, WRITER) == golden["settings"]
    assert parse_settings_name(golden["settings"]) == (3, WRITER)


@given(PACK_NAMES)
def test_a_pack_name_survives_its_path_its_file_name_and_its_bytes(name: PackName) -> None:
    assert PackName.parse(name.path) == name
    assert PackName.parse(name.path.rsplit("/", 1)[1]) == name
    assert PackName.from_bytes(name.to_bytes()) == name


@given(st.lists(PACK_NAMES, max_size=5))
def test_joined_names_come_apart_again(names: list[PackName]) -> None:
    assert parse_names(b"".join(name.to_bytes() for name in names)) == names


@given(COUNTERS, WRITERS)
def test_numbered_names_survive_their_paths(number: int, writer: str) -> None:
    name = SnapshotName(number, writer)
    assert SnapshotName.parse(name.path) == name
    assert SnapshotName.parse(name.path.rsplit("/", 1)[1]) == name
    assert parse_settings_name(settings_path(number, writer)) == (number, writer)


@given(DIGESTS, WRITERS, COUNTERS, st.binary(min_size=4, max_size=4))
def test_names_are_short_and_use_few_characters(
    digest: bytes, writer: str, number: int, canary: bytes
) -> None:
    paths = [PackName(digest, writer, number).path, journal_path(writer)]
    paths += [SnapshotName(number, writer).path, settings_path(number, writer)]
    paths += [realm_path(digest, canary), *pack_shard_dirs()]
    assert all(re.fullmatch(r"[0-9a-z/._-]{1,199}", path) for path in paths)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "packs/00",
        "packs/01/000102030405060708090a0b0c0d0e0f.0123456789abcdef.1a",
        "000102030405060708090A0b0c0d0e0f.0123456789abcdef.1a",
        "000102030405060708090a0b0c0d0e0f.0123456789abcdef.01",
        "000102030405060708090a0b0c0d0e0f.0123456789abcdef.",
        "000102030405060708090a0b0c0d0e0f.0123456789abcdef.8000000000000000",
        "000102030405060708090a0b0c0d0e0f.0123456789abcdef.1a\n",
        "000102030405060708090a0b0c0d0e0f.0123456789abcde.1a",
        "../packs/00/000102030405060708090a0b0c0d0e0f.0123456789abcdef.1a",
        ".nfs000000000000000100000001",
        "000102030405060708090a0b0c0d0e0f.0123456789abcdef.1" + "a" * 10_000,
        "\u0663" * 32 + ".0123456789abcdef.1a",
    ],
)
def test_a_foreign_file_is_not_taken_for_a_pack(text: str) -> None:
    with pytest.raises(BadValue):
        PackName.parse(text)


@pytest.mark.parametrize(
    "text",
    ["05.0123456789abcdef.arrow", "5.0123456789abcdef.arrow~", "\u0665.0123456789abcdef.arrow"],
)
def test_a_foreign_file_is_not_taken_for_a_snapshot(text: str) -> None:
    with pytest.raises(BadValue):
        SnapshotName.parse(text)


@pytest.mark.parametrize("text", ["0123456789abcde", "0123456789abcdeF", "journals/", "x" * 300])
def test_a_foreign_file_is_not_taken_for_a_journal(text: str) -> None:
    with pytest.raises(BadValue):
        parse_journal_name(text)


def test_names_are_ordered_by_digest_then_writer_then_number() -> None:
    names = [
        PackName(b"\0" * 16, WRITER, 16),
        PackName(b"\0" * 16, WRITER, 9),
        PackName(b"\0" * 16, "0" * 16, 99),
        PackName(b"\1" * 16, "0" * 16, 0),
    ]
    assert sorted(names) == [names[2], names[1], names[0], names[3]]


def test_packs_lie_in_directories_made_beforehand() -> None:
    assert len(set(pack_shard_dirs())) == 256
    assert PackName(DIGEST, WRITER, 1).path.rsplit("/", 1)[0] in pack_shard_dirs()
    assert f"{PACKS}/ff" in pack_shard_dirs() and NAMESPACE_PATH == "NAMESPACE.json"


def test_only_sixteen_lower_case_digits_are_a_writer_id() -> None:
    texts = (WRITER, WRITER.upper(), WRITER[1:], WRITER + "0", "g" * 16)
    assert [is_writer_id(text) for text in texts] == [True, False, False, False, False]
