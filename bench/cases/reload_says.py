"""What the rows of `reload` say of its targets: the acceptance ratios and the slopes. Pure.

Ratios are medians over rounds of contender over ours, above 1 where we are faster; a target counts
as missed only if the whole 95 % interval lies below it. A slope's bound comes from the product's
own counters and the depth that it chose, and once more from the requests that the mount counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.adapters import FS, FS_NATIVE, OURS, TUNED
from bench.core.case import Outcome, Row, Verdict
from bench.core.select import by_param, ratio, values
from bench.core.statistics import (
    Interval,
    at_least,
    at_most,
    median,
    slope_interval,
    slope_ratio_interval,
)
from bench.core.turns import Batch

BESIDE = (OURS, FS_NATIVE, TUNED, FS)
"""The contenders of the batches and the slopes. Targets are against what LMCache ships; with more
workers than its default, fs_native is shown as what its user could make of it."""
SMALL, LARGE = Batch(256, 512 << 10), Batch(64, 4 << 20)
ACCEPTED = (SMALL, LARGE)
ROUNDS_MIN = 7
DISTINCT = 16
"""Different chunks of a long prefix, so that it fits a small machine."""
SLOPE_LATENCIES = (0.0, 1.0, 3.0, 10.0)
OPERATION_NAMES = {
    "lookup_load": "lookup + load",
    "store": "store",
    "load": "load",
    "lookup": "lookup",
}


@dataclass(frozen=True, slots=True)
class Target:
    """Ours at least `times` as fast as `rival` in this operation."""

    batch: Batch
    latency_ms: float
    operation: str
    rival: str
    times: float


TARGETS = (
    Target(SMALL, 1.0, "lookup_load", FS_NATIVE, 8.5),
    Target(SMALL, 1.0, "lookup_load", FS, 40.0),
    Target(SMALL, 1.0, "store", FS_NATIVE, 15.0),
    Target(SMALL, 1.0, "store", FS, 35.0),
    Target(LARGE, 1.0, "lookup_load", FS_NATIVE, 2.3),
    Target(LARGE, 1.0, "lookup_load", FS, 9.0),
    Target(LARGE, 1.0, "store", FS_NATIVE, 2.8),
    Target(LARGE, 1.0, "store", FS, 9.0),
    *(Target(batch, 0.0, "load", FS_NATIVE, 0.95) for batch in ACCEPTED),
    *(Target(batch, 0.0, "store", FS_NATIVE, 1.5) for batch in ACCEPTED),
    *(Target(batch, 0.0, "lookup", FS_NATIVE, 10.0) for batch in ACCEPTED),
)
SLOPE_SHARE = 0.1
"""Of fs_native's slope, at most."""


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    return [*(accepted(rows, target) for target in TARGETS), *_slope_verdicts(rows)]


def accepted(rows: Sequence[Row], target: Target) -> Verdict:
    found = ratio(
        rows,
        target.operation,
        "adapter",
        target.rival,
        OURS,
        part="batch",
        batch=str(target.batch),
        latency_ms=target.latency_ms,
    )
    outcome = at_least(found, target.times, ROUNDS_MIN)
    note = ""
    if outcome is Outcome.NOT_MEASURED:
        rounds = found.rounds if found else 0
        note = f"{rounds} rounds of both, {ROUNDS_MIN} are needed"
    return _verdict(
        f"{target.batch}, {target.latency_ms:g} ms, {OPERATION_NAMES[target.operation]}",
        f"at least {target.times:g}x {target.rival}",
        outcome,
        found,
        "x",
        note,
    )


def _slope_verdicts(rows: Sequence[Row]) -> list[Verdict]:
    made = []
    for tokens in (4096, 16384, 65536):
        ours, rival = (by_latency(rows, name, tokens) for name in (OURS, FS_NATIVE))
        found = slope_interval(ours) if len(ours) == len(SLOPE_LATENCIES) else None
        bound = slope_bound(rows, tokens)
        name = f"slope, {tokens} tokens of 8B"
        target = "at most opens + ceil(reads / depth) + 1"
        note = bound.text() if bound else "not in this run"
        for whose in ("own calls", "the mount's requests"):
            limit = bound.limit(whose) if bound else None
            outcome = at_most(found, limit) if limit is not None else Outcome.NOT_MEASURED
            text = f"{target}{f' = {limit:.0f}' if limit is not None else ''}, {whose}"
            made.append(_verdict(name, text, outcome, found, "ms per ms", note))
        share = None
        if len(ours) == len(rival) == len(SLOPE_LATENCIES):
            share = slope_ratio_interval(ours, rival)
        outcome = at_most(share, SLOPE_SHARE)
        made.append(
            _verdict(name, "at most a tenth of fs_native's", outcome, share, "of fs_native's", "")
        )
    return made


@dataclass(frozen=True, slots=True)
class Bound:
    """What one load took by the product's own counters, and the depth it chose; beside it what the
    mount counted, where a call longer than its largest request counts more than once."""

    opens: float
    calls: float
    requests: float | None
    depth: float

    def limit(self, whose: str) -> float | None:
        """By the product's own calls or by the mount's requests; None where none were counted."""
        reads = self.calls if whose == "own calls" else self.requests
        if reads is None:
            return None
        return self.opens + math.ceil(reads / max(1.0, self.depth)) + 1

    def text(self) -> str:
        seen = f" ({self.requests:.0f} requests at the mount)" if self.requests else ""
        return f"{self.opens:.0f} opens, {self.calls:.0f} reads{seen}, depth {self.depth:.0f}"


def slope_bound(rows: Sequence[Row], tokens: int) -> Bound | None:
    """Medians over the latencies above 0."""
    picked = [row for row in rows if row.params.get("latency_ms", 0) != 0]
    fixed: dict[str, Any] = {"part": "slope", "adapter": OURS, "prefix_tokens": tokens}
    opens, calls, depth = (
        values(picked, f"own_{kind}", **fixed) for kind in ("opens", "reads", "depth")
    )
    if not (opens and calls and depth):
        return None
    requests = values(picked, "operations", kind="read", **fixed)
    return Bound(
        median(opens), median(calls), median(requests) if requests else None, median(depth)
    )


def by_latency(rows: Sequence[Row], name: str, tokens: int) -> dict[float, list[float]]:
    found = by_param(rows, "reload", "latency_ms", part="slope", adapter=name, prefix_tokens=tokens)
    return {float(latency): repeats for latency, repeats in found.items()}


def _verdict(
    name: str, target: str, outcome: Outcome, found: Interval | None, unit: str, note: str
) -> Verdict:
    if found is None or outcome is Outcome.NOT_MEASURED:
        return Verdict(name, target, Outcome.NOT_MEASURED, unit=unit, note=note)
    return Verdict(name, target, outcome, found.estimate, found.low, found.high, unit, note)
