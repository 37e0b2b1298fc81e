"""Which packs are staged first: what a sweep would take last."""

from __future__ import annotations

from sharedfs_backend.layout import PackName
from sharedfs_backend.retention import Candidate, plan
from sharedfs_backend.stage.choosing import choose

NOW = 10_000.0
STEP_SECONDS = 150.0


def pack(number: int, *, age: float = 0.0, nbytes: int = 10, **others: object) -> Candidate:
    return Candidate(
        name=PackName(bytes(15) + bytes([number]), "ab" * 8, number),
        pack_id=number,
        parent_id=-1,
        total_bytes=nbytes,
        chunks=1,
        last_lookup=NOW - age,
        first_seen=0.0,
        **others,  # type: ignore[arg-type] # field names
    )


def numbers(candidates: list[Candidate], **limits: object) -> list[int]:
    chosen = choose(candidates, {}, NOW, recency_step_seconds=STEP_SECONDS, **limits)  # type: ignore[arg-type]
    return [choice.name.seq for choice in chosen]


def test_what_was_wanted_last_goes_first() -> None:
    assert numbers([pack(1, age=5000), pack(2, age=10), pack(3, age=900)]) == [2, 3, 1]


def test_the_order_is_the_reverse_of_the_sweeps() -> None:
    pool = [pack(n, age=(n * 7919) % 2000, nbytes=1 + n % 5) for n in range(1, 40)]
    swept = [victim.name.seq for victim in plan(pool, 1 << 60, NOW, 0.0, STEP_SECONDS)]
    assert numbers(pool) == swept[::-1]


def test_parents_go_before_their_children() -> None:
    child = pack(2)
    child = Candidate(
        **{field: getattr(child, field) for field in Candidate.__slots__} | {"parent_id": 1}
    )
    assert numbers([child, pack(1)]) == [1, 2]


def test_what_journals_tell_of_an_age_counts_more_than_having_just_been_seen() -> None:
    pool = [pack(1), pack(2)]
    ages = {pool[0].name: 900.0, pool[1].name: 10.0}
    chosen = choose(pool, ages, NOW, recency_step_seconds=STEP_SECONDS)
    assert [(choice.name.seq, choice.age_seconds) for choice in chosen] == [(2, 10.0), (1, 900.0)]


def test_a_pack_whose_chunks_are_all_elsewhere_stays_at_home() -> None:
    assert numbers([pack(1), pack(2, duplicate=True)]) == [1]


def test_a_limit_takes_the_most_valuable_that_fit() -> None:
    pool = [pack(1, age=0, nbytes=60), pack(2, age=200, nbytes=60), pack(3, age=400, nbytes=30)]
    assert numbers(pool, bytes_max=100) == [1, 3]
