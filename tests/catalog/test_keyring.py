"""The key memo: the same keys as the format's own function, derived once, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sharedfs_backend.keyring import AT_ONCE_MAX, KeyRing
from sharedfs_backend.layout import Seal, chunk_key


@dataclass(frozen=True)
class TheirId:
    chunk_hash: bytes
    kv_rank: int = 0
    object_group_id: int = 0
    cache_salt: str = ""


@dataclass(frozen=True)
class OurId:
    chunk_hash: bytes
    kv_rank: int
    object_group: int
    cache_salt: str


def some_ids(count: int, start: int = 0) -> list[TheirId]:
    return [TheirId(n.to_bytes(32, "big")) for n in range(start, start + count)]


@pytest.mark.parametrize("seal", [Seal(None), Seal(b"s" * 32)])
def test_keys_are_those_of_the_format(seal: Seal) -> None:
    ids = [
        TheirId(bytes([n]) * 32, rank, group, salt)
        for n in range(3)
        for rank in (0, 7)
        for group in (0, 1)
        for salt in ("", "tenant")
    ]
    want = [chunk_key(seal, i.chunk_hash, i.kv_rank, i.object_group_id, i.cache_salt) for i in ids]
    ring = KeyRing(seal, 100)
    assert ring.derive(ids) == want
    assert ring.derive(ids[::-1]) == want[::-1]
    assert ring.joined(ids) == b"".join(want)
    assert ring.derived == len(set(want)) == len(ids)  # I8: all of it tells keys apart


def test_both_ways_of_naming_the_object_group_are_understood() -> None:
    ring = KeyRing(Seal(None), 100)
    theirs, ours = TheirId(b"h" * 32, 1, 2, "salt"), OurId(b"h" * 32, 1, 2, "salt")
    assert ring.derive([theirs]) == ring.derive([ours])


def test_no_identifiers_no_keys() -> None:
    assert KeyRing(Seal(None), 100).derive([]) == []
    assert KeyRing(Seal(None), 100).joined([]) == b""


def test_keys_asked_before_are_not_derived_again() -> None:
    ring = KeyRing(Seal(None), 1000)
    for _ in range(5):
        ring.derive(some_ids(100))
    assert ring.derived == 100


def test_a_key_named_twice_in_one_request_is_derived_once() -> None:
    ring = KeyRing(Seal(None), 1000)
    first, second = ring.derive([*some_ids(1), *some_ids(1)])
    assert first == second and ring.derived == 1 and len(ring) == 1


def test_the_memo_never_exceeds_its_limit() -> None:  # I9
    ring = KeyRing(Seal(None), 100)
    largest = 0
    for start in range(0, 2000, 7):
        ring.derive([TheirId(i.chunk_hash, cache_salt=str(start)) for i in some_ids(7, start)])
        largest = max(largest, len(ring))
    assert 50 <= largest <= 100


def test_what_is_asked_for_regularly_survives_a_flood_of_others() -> None:
    ring = KeyRing(Seal(None), 200)
    regular = some_ids(20)
    for start in range(1000, 3000, 40):
        ring.derive(regular)
        ring.derive(some_ids(40, start))
    assert ring.derived == 20 + 2000


def test_a_request_larger_than_the_memo_is_answered() -> None:
    ring = KeyRing(Seal(None), 10)
    ids = some_ids(AT_ONCE_MAX * 2 + 1)  # and than what is derived at a time
    assert ring.derive(ids) == [chunk_key(Seal(None), i.chunk_hash, 0, 0, "") for i in ids]
    assert len(ring) <= 10
