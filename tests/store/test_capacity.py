"""Credits and retention: arithmetic that keeps the cap, and the order of victims."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharedfs_backend.capacity import (
    Credits,
    Crowd,
    Refusal,
    in_flight_bytes_max,
    low_watermark_bytes,
    share,
)
from sharedfs_backend.layout import PackName
from sharedfs_backend.retention import Candidate, depths, plan

GIB = 1 << 30


@given(
    cap=st.integers(1 << 26, 1 << 50),
    usage=st.integers(0, 1 << 50),
    writers=st.integers(1, 64),
)
def test_all_writers_spending_two_credits_and_an_in_flight_each_stay_below_the_cap(
    cap: int, usage: int, writers: int
) -> None:
    flight = in_flight_bytes_max(cap)
    each = share(cap, usage, Crowd(writers, writers))
    assert each == 0 or usage + 2 * writers * each + writers * flight <= cap


@given(cap=st.integers(1 << 26, 1 << 50), writers=st.integers(1, 20))
def test_after_a_sweep_every_writers_share_is_a_whole_in_flight(cap: int, writers: int) -> None:
    flight = in_flight_bytes_max(cap)
    low = low_watermark_bytes(cap, 0.8, Crowd(writers, writers))
    assert share(cap, low, Crowd(writers, writers)) == flight


@given(cap=st.integers(1 << 26, 1 << 50), merge=st.integers(0, 1 << 24))
def test_below_the_low_watermark_there_is_room_for_one_more_snapshot(cap: int, merge: int) -> None:
    crowd = Crowd(2, 3)
    low = low_watermark_bytes(cap, 0.8, crowd, merge)
    each = share(cap, low + merge, crowd)
    assert low + 2 * crowd.live * each + crowd.unsettled * in_flight_bytes_max(cap) + merge <= cap


def test_a_credit_is_spent_once_and_refused_when_stale_or_too_small() -> None:
    credits = Credits(pass_seconds=1.0)
    credits.cap(1 << 40)
    assert credits.reserve(1, now=0.0) is Refusal.STALE
    credits.grant(100, now=0.0, pass_seconds=1.0)
    assert credits.reserve(60, now=1.0) is None
    assert credits.reserve(60, now=1.0) is Refusal.SPENT
    assert credits.reserve(101, now=1.0) is Refusal.FULL
    assert credits.reserve(1, now=3.0) is Refusal.STALE


def test_what_is_in_flight_is_taken_from_the_next_credit() -> None:
    credits = Credits(pass_seconds=1.0)
    credits.cap(1 << 40)
    credits.grant(100, now=0.0, pass_seconds=1.0)
    credits.reserve(60, now=0.0)
    credits.grant(100, now=1.0, pass_seconds=1.0)
    assert credits.reserve(41, now=1.0) is Refusal.SPENT
    credits.settle(60)
    credits.grant(100, now=2.0, pass_seconds=1.0)
    assert credits.reserve(100, now=2.0) is None


def test_without_a_cap_everything_is_granted() -> None:
    assert Credits(pass_seconds=1.0).reserve(1 << 60, now=0.0) is None


def candidate(number: int, **changes: object) -> Candidate:
    facts: dict[str, object] = {
        "name": PackName(bytes([number]) * 16, "0" * 16, number),
        "pack_id": number,
        "parent_id": -1,
        "total_bytes": 100,
        "chunks": 4,
        "last_lookup": 0.0,
        "first_seen": 0.0,
    }
    return Candidate(**(facts | changes))  # type: ignore[arg-type] # field names


def order(*candidates: Candidate) -> list[int]:
    victims = plan(candidates, 1 << 60, now=1000.0, drop_delay_seconds=30, recency_step_seconds=10)
    return [victim.pack_id for victim in victims]


def test_duplicates_go_before_anything_else() -> None:
    assert order(candidate(1), candidate(2, duplicate=True, last_lookup=999.0)) == [2, 1]


def test_the_longest_not_looked_up_goes_first() -> None:
    assert order(candidate(1, last_lookup=900.0), candidate(2, last_lookup=100.0)) == [2, 1]


def test_within_a_step_children_go_before_their_parents() -> None:
    chain = [
        candidate(1, last_lookup=2.0),
        candidate(2, parent_id=1, last_lookup=2.0),
        candidate(3, parent_id=2, last_lookup=8.0),
    ]
    assert order(*chain) == [3, 2, 1]


def test_then_the_larger_and_then_the_cheaper_to_recompute() -> None:
    assert order(candidate(1), candidate(2, total_bytes=200)) == [2, 1]
    assert order(candidate(1, chunks=9), candidate(2)) == [2, 1]


def test_the_young_and_the_locked_are_not_touched() -> None:
    assert order(candidate(1, first_seen=980.0), candidate(2, locked=True)) == []


def test_only_as_much_as_is_needed_goes() -> None:
    assert len(plan([candidate(n) for n in range(9)], 250, 1000.0, 30, 10)) == 3


def test_a_cycle_of_parents_ends() -> None:
    assert set(depths({1: 2, 2: 3, 3: 1})) == {1, 2, 3}


def test_a_long_chain_has_its_length() -> None:
    assert depths({n: n - 1 for n in range(1, 2000)})[1999] == 1998


def test_a_pack_that_can_never_fit_below_the_cap_is_told_apart_from_a_full_one() -> None:
    """Waiting or sweeping would not help: only a larger cap does, and the reason says so."""
    credits = Credits(pass_seconds=1.0)
    credits.cap(64 << 20)
    credits.grant(1 << 20, now=0.0, pass_seconds=1.0)
    assert credits.reserve((1 << 20) + 1, now=0.0) is Refusal.TOO_LARGE
    assert credits.reserve(1 << 20, now=0.0) is None
    assert "raise the cap" in Refusal.TOO_LARGE.value
