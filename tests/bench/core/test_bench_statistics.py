"""Medians, ratios, slopes, and what an interval says of a target."""

from __future__ import annotations

import math

import pytest

from bench.core.case import Outcome
from bench.core.statistics import (
    Interval,
    at_least,
    at_most,
    median_interval,
    ratio_interval,
    slope,
    slope_interval,
    slope_ratio_interval,
)


def test_a_ratio_is_paired_by_round_so_noise_that_meets_both_cancels() -> None:
    noise = [1.0, 5.0, 2.0, 9.0, 1.5, 3.0, 7.0]
    slow = {number: 80.0 * factor for number, factor in enumerate(noise)}
    fast = {number: 10.0 * factor for number, factor in enumerate(noise)}
    found = ratio_interval(slow, fast)
    assert found is not None
    assert (found.estimate, found.low, found.high, found.rounds) == (8.0, 8.0, 8.0, 7)


def test_a_round_that_only_one_side_finished_is_left_out() -> None:
    found = ratio_interval({0: 2.0, 1: 4.0, 2: 6.0, 3: 8.0}, {1: 2.0, 2: 3.0, 3: 4.0, 4: 1.0})
    assert found is not None
    assert (found.estimate, found.rounds) == (2.0, 3)


def test_no_common_round_gives_no_ratio() -> None:
    assert ratio_interval({0: 1.0}, {1: 1.0}) is None


def test_an_interval_holds_its_estimate_and_lies_within_the_values() -> None:
    values = [3.0, 1.0, 4.0, 1.5, 5.0, 9.0, 2.0]
    found = median_interval(values)
    assert min(values) <= found.low <= found.estimate == 3.0 <= found.high <= max(values)


def test_equal_rows_give_equal_intervals() -> None:
    assert median_interval([1.0, 2.0, 4.0, 8.0]) == median_interval([1.0, 2.0, 4.0, 8.0])


def test_two_rounds_say_nothing_about_their_spread() -> None:
    found = median_interval([1.0, 2.0])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert found.text() == "1.50"


def test_the_slope_of_a_line_is_found() -> None:
    points = {0.0: 40.0, 1.0: 52.0, 3.0: 76.0, 10.0: 160.0}
    assert slope(points) == pytest.approx(12.0)
    found = slope_interval({x: [y] * 5 for x, y in points.items()})
    assert found is not None
    assert (found.estimate, found.low, found.high) == pytest.approx((12.0, 12.0, 12.0))


def test_slopes_are_compared_with_an_interval_around_the_ratio() -> None:
    ours = {0.0: [10.0, 11, 9, 10, 10], 10.0: [30.0, 32, 29, 30, 31]}
    theirs = {0.0: [10.0, 10, 10, 11, 9], 10.0: [210.0, 215, 205, 210, 211]}
    found = slope_ratio_interval(ours, theirs)
    assert found is not None
    assert found.estimate == pytest.approx(0.1)
    assert found.low <= found.estimate <= found.high


def test_a_missing_place_gives_no_slope() -> None:
    assert slope_interval({0.0: [1.0, 1.0, 1.0], 1.0: []}) is None
    assert slope_interval({0.0: [1.0, 1.0, 1.0]}) is None


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (Interval(9.0, 7.0, 10.0, 7), Outcome.MET),
        (Interval(8.0, 7.0, 9.0, 7), Outcome.WITHIN),
        (Interval(7.0, 6.0, 8.0, 7), Outcome.MISSED),
        (Interval(9.0, 9.0, 9.0, 6), Outcome.NOT_MEASURED),
        (None, Outcome.NOT_MEASURED),
    ],
)
def test_a_target_is_missed_only_if_the_whole_interval_lies_below(
    found: Interval | None, outcome: Outcome
) -> None:
    assert at_least(found, 8.5, rounds_min=7) is outcome


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (Interval(8.0, 7.0, 10.0, 7), Outcome.MET),
        (Interval(9.0, 8.0, 10.0, 7), Outcome.WITHIN),
        (Interval(10.0, 9.0, 11.0, 7), Outcome.MISSED),
        (Interval(math.nan, 9.0, 11.0, 7), Outcome.NOT_MEASURED),
    ],
)
def test_an_upper_limit_is_missed_only_if_the_whole_interval_lies_above(
    found: Interval, outcome: Outcome
) -> None:
    assert at_most(found, 8.5, rounds_min=7) is outcome
