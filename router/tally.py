"""Tally: counters and histograms as plain numbers that several processes' can be added up.

A series is a tuple: the metric's name, then its label values. Buckets are shared by all times,
from 1 ms to 10 minutes, each about half as long again as the one before it. Names, help texts and
the page Prometheus reads are `metrics`. Series are bounded: past `SERIES_MAX` of one metric the
rest is counted under `other`, and a replica's go when it leaves.

Of the event loop's thread; a call costs about a microsecond, every request makes some ten.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable
from typing import Any

Series = tuple[str, ...]

BOUNDS_SECONDS = (
    0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075,
    0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5,
    10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 300.0, 600.0,
)  # fmt: skip
SERIES_MAX = 2048
WAITING_MAX = 128
"""Values of one histogram not yet in its buckets: 4 KB."""


class Tally:
    """One process's counts."""

    def __init__(self) -> None:
        self.counters: dict[Series, float] = {}
        self.histograms: dict[Series, Histogram] = {}

    def count(self, series: Series, by: float = 1.0) -> None:
        counters = self.counters
        if series in counters:
            counters[series] += by
        else:
            series = self._bounded(counters, series)
            counters[series] = counters.get(series, 0.0) + by

    def observe(self, series: Series, seconds: float) -> None:
        self.histogram(series).add(seconds)

    def histogram(self, series: Series) -> Histogram:
        """To keep, where the series is never forgotten."""
        known = self.histograms.get(series)
        if known is None:
            series = self._bounded(self.histograms, series)
            known = self.histograms.setdefault(series, Histogram())
        return known

    def forget(self, labels: Container[str]) -> None:
        """Drops every series with one of these label values: replicas that left."""
        for table in (self.counters, self.histograms):
            for series in [each for each in table if any(label in labels for label in each[1:])]:
                del table[series]

    def dump(self) -> dict[str, Any]:
        """Plain values for `merge` in another process."""
        return {
            "counters": [[list(series), value] for series, value in self.counters.items()],
            "histograms": [
                [list(series), known.counts, known.total]
                for series, known in self.histograms.items()
            ],
        }

    def merge(self, dump: dict[str, Any]) -> None:
        """Adds what another process dumped."""
        for series, value in dump["counters"]:
            self.count(tuple(series), value)
        for series, counts, total in dump["histograms"]:
            known = self.histograms.setdefault(tuple(series), Histogram())
            known.merge(counts, total)

    @staticmethod
    def _bounded(table: Iterable[Series], series: Series) -> Series:
        if len(series) > 1 and sum(known[0] == series[0] for known in table) >= SERIES_MAX:
            return (series[0], *("other" for _ in series[1:]))
        return series


class Histogram:
    """Counts by bucket; the last is everything above the highest bound.

    New values wait until there are enough, or somebody looks: sorted they are put into buckets for
    a quarter of what one at a time takes."""

    __slots__ = ("_counts", "_new", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._total = 0.0
        self._new: list[float] = []

    def add(self, seconds: float) -> None:
        new = self._new
        new.append(seconds)
        if len(new) >= WAITING_MAX:
            self._settle()

    @property
    def counts(self) -> list[int]:
        self._settle()
        return self._counts

    @property
    def total(self) -> float:
        self._settle()
        return self._total

    def _settle(self) -> None:
        new = self._new
        if not new:
            return
        new.sort()
        self._total += sum(new)
        below, counts = 0, self._counts
        for index, bound in enumerate(BOUNDS_SECONDS):
            upto = bisect_right(new, bound, below)
            counts[index] += upto - below
            below = upto
            if below == len(new):
                break
        counts[-1] += len(new) - below
        new.clear()

    def merge(self, counts: list[int], total: float) -> None:
        self._counts = [mine + other for mine, other in zip(self.counts, counts, strict=True)]
        self._total += total

    def quantile(self, share: float) -> float | None:
        """The bound below which this share of the values lies, to within a bucket's width."""
        return quantile(self.counts, share)


def quantile(counts: list[int], share: float) -> float | None:
    """Of bucket counts; interpolated within the bucket. None: nothing was counted."""
    wanted = share * sum(counts)
    if not wanted:
        return None
    for index, count in enumerate(counts):
        if count and wanted <= count:
            low = BOUNDS_SECONDS[index - 1] if index else 0.0
            high = BOUNDS_SECONDS[min(index, len(BOUNDS_SECONDS) - 1)]
            return low + (high - low) * wanted / count
        wanted -= count
    return BOUNDS_SECONDS[-1]
