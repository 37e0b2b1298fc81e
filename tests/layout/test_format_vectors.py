"""Vectors: codecs, plain reader and FORMAT.md agree on every committed byte (I1, I2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedfs_backend.layout import FormatError, errors
from tests.layout import make_vectors, plain_reader
from tests.layout.describe import describe
from tests.layout.vectors import FOLDER, INDEX, Vector, index, vectors

MADE = make_vectors.build()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_the_generator_makes_the_committed_bytes_again(path: Path) -> None:
    assert path.read_bytes() == MADE[path]


def test_no_vector_lies_there_that_the_index_does_not_name() -> None:
    named = {item["file"] for item in index()["files"]} | {INDEX.name}
    assert {path.name for path in FOLDER.iterdir()} == named


@pytest.mark.parametrize("vector", [v for v in vectors() if not v.error], ids=str)
def test_a_vector_decodes_to_its_value(vector: Vector) -> None:
    assert describe(vector) == vector.value


@pytest.mark.parametrize("vector", [v for v in vectors() if v.error], ids=str)
def test_a_vector_of_a_newer_version_is_left_alone(vector: Vector) -> None:
    assert vector.error is not None
    wanted: type[FormatError] = getattr(errors, vector.error)
    with pytest.raises(wanted):
        describe(vector)


@pytest.mark.parametrize("vector", [v for v in vectors() if not v.error], ids=str)
def test_the_plain_reader_reads_the_same_value(vector: Vector) -> None:
    found = plain_reader.read(vector.kind, vector.data, vector.secret, vector.args)
    assert found == vector.value


@pytest.mark.parametrize("vector", [v for v in vectors() if v.error], ids=str)
def test_the_plain_reader_recognises_a_newer_version(vector: Vector) -> None:
    with pytest.raises(NotImplementedError, match=vector.error):
        plain_reader.read(vector.kind, vector.data, vector.secret, vector.args)


@pytest.mark.parametrize("group,secret", [("digests", None), ("digests_keyed", bytes(range(32)))])
def test_the_golden_digests_follow_from_the_specification(group: str, secret: bytes | None) -> None:
    golden = index()[group]
    layout = ["layout", ["float32"], [[2, 8, 16, 4]], "kv_2ltd", 16]
    realm = ["realm", 1, "blake3:5eed", True, "tp0", "none", "blake3"]
    keys = [golden["chunk key 00.."], golden["chunk key 01.."]]
    parts = [golden["realm"], golden["fingerprint"], "".join(keys)]
    two = bytes(7 * i % 251 for i in range(4194304)) + bytes((7 * i + 5) % 251 for i in range(1000))
    digest, units = plain_reader.digest, plain_reader.chunk_checksum
    assert golden["realm"] == digest(secret, realm)
    assert golden["fingerprint"] == digest(secret, layout)
    assert keys == [digest(secret, ["chunk", bytes([i]) * 32, 0, 0, ""]) for i in range(2)]
    assert golden["chunk key, rank and salt"] == digest(secret, ["chunk", bytes(32), 7, 1, "lora"])
    assert golden["pack digest"] == digest(secret, ["pack", *map(bytes.fromhex, parts)])
    assert golden["chunk of two units"] == units(secret, two).hex()
    assert golden["chunk of no units"] == units(secret, b"").hex()
