"""Medians, ratios and slopes with 95 % intervals, and what they say of a target. Pure.

Intervals are percentile bootstraps over rounds: a round is resampled whole, so that what disturbed
a round meets both sides of a ratio. A fixed seed makes a report reproducible from its rows. With
few rounds an interval is coarse: below `ROUNDS_MIN` none is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.core.case import Outcome

RESAMPLES = 4000
ROUNDS_MIN = 3
"""Fewer rounds than this say nothing about their own spread."""
_SEED = 20260101
_TAILS = (2.5, 97.5)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, its 95 % interval, and how many rounds it rests on."""

    estimate: float
    low: float
    high: float
    rounds: int

    def text(self) -> str:
        """As many digits after the point as three significant ones of the estimate need, or two."""
        digits = digits_of(self.estimate)
        if self.low == self.high or not np.isfinite(self.low):
            return f"{self.estimate:.{digits}f}"
        return f"{self.estimate:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def digits_of(value: float) -> int:
    """Digits after the point that are worth showing of a number of that size."""
    return 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2


def median(values: Sequence[float]) -> float:
    """NaN for none."""
    return float(np.median(np.asarray(values, float))) if len(values) else float("nan")


def quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(np.asarray(values, float), share)) if len(values) else float("nan")


def median_interval(values: Sequence[float]) -> Interval:
    """Of a median. Below ROUNDS_MIN values the interval is all there is: (-inf, inf)."""
    data = np.asarray(values, float)
    return _interval(median(values), _resampled(data), len(data))


def ratio_interval(over: Mapping[int, float], under: Mapping[int, float]) -> Interval | None:
    """Of the median over rounds of over[round] / under[round]; None without a common round."""
    rounds = sorted(over.keys() & under.keys())
    ratios = np.array([over[number] / under[number] for number in rounds if under[number] > 0])
    if not len(ratios):
        return None
    return _interval(float(np.median(ratios)), _resampled(ratios), len(ratios))


def slope(points: Mapping[float, float]) -> float:
    """Least-squares slope of y over x; NaN for fewer than two x."""
    if len(points) < 2:
        return float("nan")
    return float(np.polyfit(list(points), list(points.values()), 1)[0])


def slope_interval(by_round: Mapping[float, Sequence[float]]) -> Interval | None:
    """Of the slope through the medians at each x; the rounds drawn are the same at every x.

    None where an x has no value or there are fewer than two x."""
    slopes = _slopes(by_round)
    if slopes is None:
        return None
    estimate = slope({x: median(values) for x, values in by_round.items()})
    return _interval(estimate, slopes, min(map(len, by_round.values())))


def slope_ratio_interval(
    over: Mapping[float, Sequence[float]], under: Mapping[float, Sequence[float]]
) -> Interval | None:
    """Of slope(over) / slope(under), each side resampled on its own."""
    first, second = _slopes(over), _slopes(under)
    if first is None or second is None:
        return None
    rounds = min(len(values) for values in (*over.values(), *under.values()))
    estimate = slope({x: median(v) for x, v in over.items()}) / slope(
        {x: median(v) for x, v in under.items()}
    )
    return _interval(estimate, first / second[::-1], rounds)


def _slopes(by_round: Mapping[float, Sequence[float]]) -> Floats | None:
    if len(by_round) < 2 or not all(len(values) for values in by_round.values()):
        return None
    places = np.array(list(by_round), float)
    centred = places - places.mean()
    drawn = np.stack([_resampled(np.asarray(v, float)) for v in by_round.values()])
    found: Floats = (centred[:, None] * drawn).sum(0) / (centred**2).sum()
    return found


def _resampled(data: Floats) -> Floats:
    """Medians of RESAMPLES samples with replacement."""
    chosen = np.random.default_rng(_SEED).integers(0, len(data), (RESAMPLES, len(data)))
    medians: Floats = np.median(data[chosen], axis=1)
    return medians


def _interval(estimate: float, drawn: Floats, rounds: int) -> Interval:
    if rounds < ROUNDS_MIN:
        return Interval(estimate, float("-inf"), float("inf"), rounds)
    low, high = np.percentile(drawn, _TAILS)
    return Interval(estimate, float(low), float(high), rounds)


def at_least(found: Interval | None, target: float, rounds_min: int = ROUNDS_MIN) -> Outcome:
    """Missed only where the whole interval lies below the target."""
    if found is None or found.rounds < rounds_min or np.isnan(found.estimate):
        return Outcome.NOT_MEASURED
    if found.estimate >= target:
        return Outcome.MET
    return Outcome.WITHIN if found.high >= target else Outcome.MISSED


def at_most(found: Interval | None, target: float, rounds_min: int = ROUNDS_MIN) -> Outcome:
    """Missed only where the whole interval lies above the target."""
    if found is None or found.rounds < rounds_min or np.isnan(found.estimate):
        return Outcome.NOT_MEASURED
    if found.estimate <= target:
        return Outcome.MET
    return Outcome.WITHIN if found.low <= target else Outcome.MISSED
