"""What the rows of `scaleout` show: first tokens, hits and bytes, private beside shared. Pure.

Values are medians over seeds. It must not know simulators or stores: rows are all there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from bench.core.case import Figure, Outcome, Parameter, Row, Table, Verdict
from bench.core.statistics import median
from bench.report.plots import curves

PRODUCT = "ttft"
PRIVATE, SHARED = "private", "shared"


def values(rows: Sequence[Row], metric: str, **where: Parameter) -> list[float]:
    return [
        row.value
        for row in rows
        if row.metric == metric and row.value is not None and row.has(**where)
    ]


def figures(rows: Sequence[Row]) -> list[Figure]:
    workloads = _in(rows, "workload")
    if not workloads:
        return []
    found = []
    for workload in workloads:
        inches = (11.0, 3.8)
        found.append(
            Figure(
                name=f"scaleout-{workload}",
                title=f"Replicas on {workload}: time to first token and bytes written",
                sentence=(
                    "Private directories beside one shared namespace, as the load grows with the "
                    "replicas; the product's policy. Hits and bytes are the product's store's in "
                    "virtual time; prefills, queues and the time of a reload are modelled, the "
                    "last from this directory. Differences of a few per cent are those of one "
                    "seed's traffic."
                ),
                draw=partial(_draw, rows=rows, workload=workload),
                inches=inches,
            )
        )
        found.append(
            Figure(
                name=f"scaleout-{workload}-policies",
                title=f"Every policy on {workload}, with the most replicas",
                sentence=(
                    "Hits as shares of prompt tokens: found in the replica's own memory, and in "
                    "its directory. Duplicate bytes are those some replica had written before; in "
                    "one namespace that takes two replicas computing the same within a refresh."
                ),
                table=_table(rows, workload),
            )
        )
    return found


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    found = []
    for workload in _in(rows, "workload"):
        most = max(_in(rows, "replicas"), default=1)
        where: dict[str, Parameter] = {
            "workload": workload,
            "policy": PRODUCT,
            "replicas": most,
        }
        private = values(rows, "ttft_mean", directory=PRIVATE, **where)
        shared = values(rows, "ttft_mean", directory=SHARED, **where)
        found.append(
            _ratio(
                f"scaleout: first tokens on {workload}, {most} replicas",
                "shared at most 1.0x private, mean TTFT",
                shared,
                private,
                1.0,
            )
        )
        written = values(rows, "written", directory=SHARED, **where)
        twice = values(rows, "duplicate", directory=SHARED, **where)
        found.append(
            _ratio(
                f"scaleout: duplicate bytes on {workload}, {most} replicas",
                "at most 5 % of what is written to one namespace",
                twice,
                written,
                0.05,
            )
        )
    return found


def _ratio(
    name: str, target: str, over: Sequence[float], under: Sequence[float], most: float
) -> Verdict:
    if not over or not under or median(under) <= 0:
        return Verdict(name, target, Outcome.NOT_MEASURED)
    ratio = median(over) / median(under)
    outcome = Outcome.MET if ratio <= most else Outcome.MISSED
    return Verdict(name, target, outcome, ratio, note="over seeds: medians; no interval")


def _draw(figure: Any, *, rows: Sequence[Row], workload: str) -> None:
    shown = (
        ("ttft_mean", "time to first token, mean, ms"),
        ("ttft_p99", "time to first token, p99, ms"),
        ("written", "written, GB"),
    )
    for place, (metric, label) in enumerate(shown, 1):
        axes = figure.add_subplot(1, len(shown), place)
        data = {
            directory: {
                count: found
                for count in _in(rows, "replicas")
                if (
                    found := values(
                        rows,
                        metric,
                        workload=workload,
                        policy=PRODUCT,
                        replicas=count,
                        directory=directory,
                    )
                )
            }
            for directory in (PRIVATE, SHARED)
        }
        curves(axes, data, x="replicas", y=label)


def _table(rows: Sequence[Row], workload: str) -> Table:
    most = max(_in(rows, "replicas"))
    metrics: tuple[str, ...] = ("ttft_mean", "ttft_p50", "ttft_p99")
    metrics += ("hit_memory", "hit_directory", "written", "duplicate")
    lines = []
    for policy in _in(rows, "policy"):
        for directory in (PRIVATE, SHARED):
            cells = [
                values(
                    rows,
                    metric,
                    workload=workload,
                    policy=policy,
                    replicas=most,
                    directory=directory,
                )
                for metric in metrics
            ]
            if all(cells):
                shown = (f"{median(cell):.{_digits(median(cell))}f}" for cell in cells)
                lines.append((str(policy), directory, *shown))
    head = ("policy", "directories", "TTFT mean, ms", "p50", "p99", "in memory", "in directory")
    return Table((*head, "written, GB", "duplicate, GB"), tuple(lines))


def _digits(value: float) -> int:
    return 0 if value >= 100 else 2


def _in(rows: Sequence[Row], name: str) -> list[Any]:
    """Values of a parameter, in the order of rows."""
    return list(dict.fromkeys(row.params[name] for row in rows if name in row.params))
