"""Claims: what the results have to show, each as one number against a limit. Pure.

All are ratios of mean TTFT within one run, but for the share of the busiest replica. It must not
know how results were made or are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.routing.cells import Cell

Means = Mapping[Cell, float]


@dataclass(frozen=True, slots=True)
class Claim:
    text: str
    limit: float
    value: float

    @property
    def is_met(self) -> bool:
        return self.value <= self.limit


def claims(means: Means, busiest: Means) -> list[Claim]:
    """Those whose cells were run."""
    found = []
    for text, limit, value in _all(means, busiest):
        try:
            found.append(Claim(text, limit, value()))
        except KeyError:
            continue
    return found


def _all(means: Means, busiest: Means) -> list[tuple[str, float, Callable[[], float]]]:
    def mean(group: str, trace: str, policy: str, **options: object) -> float:
        return means[Cell(group, trace, policy, **options)]  # type: ignore[arg-type]  # named above

    def file(policy: str) -> float:
        return mean("policies", "file", policy)

    def slow(policy: str) -> float:
        return mean("bandwidth", "file", policy, gigabytes_per_second=1.0)

    def no_tier() -> float:
        return mean("no tier", "file", "least-pending-seconds", gigabytes_per_second=0.0)

    def learned(start: str) -> float:
        return mean("learning", "file", "ttft", start=start)

    def over(policy: str) -> float:
        return mean("overload", "overload", policy, replicas=4)

    def others(trace: str) -> float:
        rest = ("least-pending-seconds", "radix", "radix-smallest", "weighted-3-2-2")
        return min(mean("generated", trace, each) for each in rest)

    return [
        ("ttft / radix (low match: fewest in flight)", 0.52, lambda: file("ttft") / file("radix")),
        (
            "ttft / radix-smallest (low match: smallest tree)",
            0.52,
            lambda: file("ttft") / file("radix-smallest"),
        ),
        (
            "ttft / least-pending-seconds",
            0.92,
            lambda: file("ttft") / file("least-pending-seconds"),
        ),
        ("ttft / bound", 1.30, lambda: file("ttft") / file("bound")),
        (
            "at 1 GB/s, gated: ttft / better of least-pending-seconds gated and without a tier",
            0.85,
            lambda: slow("ttft") / min(slow("least-pending-seconds"), no_tier()),
        ),
        *(
            (
                f"started {start}: mean / mean started right",
                1.02,
                lambda start=start: learned(start) / learned("right"),
            )
            for start in ("3x slow", "3x fast", "3x mixed")
        ),
        (
            "overload: ttft / least-pending-seconds",
            0.65,
            lambda: over("ttft") / over("least-pending-seconds"),
        ),
        *(
            (
                f"generated, {trace}: ttft / best of the others",
                1.0,
                lambda trace=trace: mean("generated", trace, "ttft") / others(trace),
            )
            for trace in ("sessions", "documents", "one prompt")
        ),
        (
            "one prompt common to all: share of the busiest of 8",
            0.2,
            lambda: busiest[Cell("generated", "one prompt", "ttft")],
        ),
        (
            "published trace: share of the busiest of 8",
            0.2,
            lambda: busiest[Cell("policies", "file", "ttft")],
        ),
    ]
