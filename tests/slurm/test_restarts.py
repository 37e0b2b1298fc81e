"""When a part that ended may start again."""

from __future__ import annotations

from launch.restarts import Restarts


def test_pauses_double() -> None:
    restarts = Restarts(most=5, pause_seconds=2.0)
    assert [restarts.after_end(100.0) for _ in range(3)] == [102.0, 104.0, 108.0]


def test_too_many_ends_in_an_hour_are_final() -> None:
    restarts = Restarts(most=2)
    assert restarts.after_end(0.0) is not None
    assert restarts.after_end(10.0) is not None
    assert restarts.after_end(20.0) is None


def test_ends_of_more_than_an_hour_ago_count_no_more() -> None:
    restarts = Restarts(most=1, pause_seconds=2.0)
    assert restarts.after_end(0.0) == 2.0
    assert restarts.after_end(4000.0) == 4002.0


def test_a_pause_has_a_limit_but_is_never_shorter_than_the_first() -> None:
    restarts = Restarts(most=20, pause_seconds=2.0)
    assert max(restarts.after_end(0.0) or 0 for _ in range(20)) == 300.0
