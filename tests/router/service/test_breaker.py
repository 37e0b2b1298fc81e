"""The breaker: when a replica is trusted, as a pure state machine."""

from __future__ import annotations

import pytest

from router.breaker import FAILURES_MAX, PAUSE_SECONDS, PAUSE_SECONDS_MAX, Breaker, Position


def at(breaker: Breaker) -> Position:
    """Where it is now: a type checker would believe it never moves."""
    return breaker.position


def closed() -> Breaker:
    breaker = Breaker()
    breaker.probed(True, 0.0)
    assert at(breaker) is Position.CLOSED
    return breaker


def opened_by_requests(now: float = 0.0) -> Breaker:
    breaker = closed()
    for _ in range(FAILURES_MAX):
        breaker.failed(now)
    return breaker


def test_a_new_replica_gets_nothing_before_its_first_good_probe() -> None:
    breaker = Breaker()
    assert at(breaker) is Position.OPEN
    breaker.probed(False, 0.0)
    assert at(breaker) is Position.OPEN
    breaker.probed(True, 0.1)
    assert at(breaker) is Position.CLOSED


def test_failures_in_a_row_open_it() -> None:
    breaker = closed()
    for _ in range(FAILURES_MAX - 1):
        breaker.failed(0.0)
    assert at(breaker) is Position.CLOSED
    breaker.failed(0.0)
    assert at(breaker) is Position.OPEN


def test_an_answer_between_failures_starts_the_count_anew() -> None:
    breaker = closed()
    for _ in range(4 * FAILURES_MAX):
        breaker.failed(0.0)
        breaker.answered()
    assert at(breaker) is Position.CLOSED


def test_after_failed_requests_it_half_opens_once_a_probe_is_good_and_the_pause_is_over() -> None:
    breaker = opened_by_requests(now=10.0)
    breaker.probed(True, 10.0 + 0.9 * PAUSE_SECONDS)
    assert at(breaker) is Position.OPEN
    breaker.probed(True, 10.0 + PAUSE_SECONDS)
    assert at(breaker) is Position.HALF_OPEN


def test_a_good_trial_closes_it() -> None:
    breaker = opened_by_requests()
    breaker.probed(True, PAUSE_SECONDS)
    breaker.answered()
    assert at(breaker) is Position.CLOSED


def test_a_failed_trial_opens_it_for_twice_as_long() -> None:
    breaker, now = opened_by_requests(), PAUSE_SECONDS
    breaker.probed(True, now)
    breaker.failed(now)
    assert at(breaker) is Position.OPEN
    breaker.probed(True, now + 1.9 * PAUSE_SECONDS)
    assert at(breaker) is Position.OPEN
    breaker.probed(True, now + 2 * PAUSE_SECONDS)
    assert at(breaker) is Position.HALF_OPEN


def test_the_pause_has_a_limit() -> None:
    breaker, now = opened_by_requests(), 0.0
    for _ in range(20):
        now += PAUSE_SECONDS_MAX
        breaker.probed(True, now)
        assert at(breaker) is Position.HALF_OPEN
        breaker.failed(now)


def test_failed_probes_open_it_and_one_good_probe_closes_it() -> None:
    """A replica that starts up again has failed nobody: it needs no trial."""
    breaker = closed()
    for _ in range(FAILURES_MAX):
        breaker.probed(False, 1.0)
    assert at(breaker) is Position.OPEN
    breaker.probed(True, 1.0 + PAUSE_SECONDS)
    assert at(breaker) is Position.CLOSED


@pytest.mark.parametrize("count", range(FAILURES_MAX))
def test_a_few_failed_probes_change_nothing(count: int) -> None:
    breaker = closed()
    for _ in range(count):
        breaker.probed(False, 1.0)
    assert at(breaker) is Position.CLOSED


def test_an_answer_to_an_old_request_does_not_close_an_open_breaker() -> None:
    breaker = opened_by_requests()
    breaker.answered()
    assert at(breaker) is Position.OPEN
