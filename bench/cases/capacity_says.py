"""What the rows of `capacity` show: curves over the cap, and how far ours is from LRU. Pure.

Hit rates are medians over seeds. Nothing here runs a store: it must not know how rows were made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bench.core.case import Figure, Outcome, Row, Table, Verdict
from bench.core.statistics import median
from bench.report.plots import curves

OURS, LRU, LRU_SAME_ROOM = "ours", "LRU", "LRU, same room"
BELADY, UNLIMITED = "Belady", "no cap"
TOLERANCE = 0.02
"""Hit rates closer than this are alike: what a lookup in another second could find."""

ByCap = Mapping[str, Mapping[float, Sequence[float]]]


def by_cap(rows: Sequence[Row], metric: str, workload: str) -> ByCap:
    """Policy -> cap as a share of the working set -> repeats."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        if row.metric == metric and row.value is not None and row.has(workload=workload):
            by_share = found.setdefault(str(row.params["policy"]), {})
            by_share.setdefault(float(row.params["cap_share"]), []).append(row.value)
    return found


def workloads_in(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(r.params["workload"]) for r in rows if "workload" in r.params))


def figures(rows: Sequence[Row]) -> list[Figure]:
    names = workloads_in(rows)
    if not names:
        return []
    inches = (4.2 * len(names), 3.8)
    return [
        Figure(
            name="capacity-hits",
            title="Hit rate against the cap",
            sentence=(
                "Share of prompt blocks found, by cap as a share of all distinct blocks. Ours is "
                "the product's store in virtual time; the others are computed over the same "
                "requests. LRU falls off a cliff where documents are read in a circle, and so does "
                "anything that goes by recency. Precision ends at the scale: caps are small and "
                "traffic is of one replica."
            ),
            draw=partial(_draw, rows=rows, names=names, metric="hit_rate", y="hit rate"),
            inches=inches,
        ),
        Figure(
            name="capacity-ttft",
            title="Mean time to first token against the cap",
            sentence=(
                "Modelled from the same hits: reloads as this directory was measured, prefills by "
                "a stated GPU model, no queueing. A difference between policies is one of hits "
                "only."
            ),
            draw=partial(_draw, rows=rows, names=names, metric="ttft_mean", y="TTFT, ms"),
            inches=inches,
        ),
        Figure(
            name="capacity-stores",
            title="What the cap costs in writes",
            sentence=(
                "Chunks written and chunks refused for want of room, both over the number of "
                "distinct ones, and the most the namespace ever held over its cap, which may be "
                "approached and is never passed."
            ),
            table=_table(rows, names),
        ),
    ]


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    worst, where = _worst_against(rows, LRU_SAME_ROOM)
    peak = max((row.value or 0.0 for row in rows if row.metric == "peak_over_cap"), default=None)
    found = [
        Verdict(
            name="capacity: ours against LRU with the same room",
            target=f"hit rate at most {TOLERANCE} below, for every workload and cap",
            outcome=_outcome(worst is not None, worst is not None and worst >= -TOLERANCE),
            measured=worst,
            note=f"the worst: {where}" if where else "",
        ),
        Verdict(
            name="capacity: the cap is never overrun",
            target="bytes at most the cap, at every moment",
            outcome=_outcome(peak is not None, peak is not None and peak <= 1.0),
            measured=peak,
            unit="of the cap",
        ),
    ]
    return found


def _outcome(is_measured: bool, is_met: bool) -> Outcome:
    if not is_measured:
        return Outcome.NOT_MEASURED
    return Outcome.MET if is_met else Outcome.MISSED


def _worst_against(rows: Sequence[Row], policy: str) -> tuple[float | None, str]:
    """The least of (ours - policy) in medians over seeds, and where it was."""
    worst: float | None = None
    where = ""
    for name in workloads_in(rows):
        data = by_cap(rows, "hit_rate", name)
        for share, repeats in data.get(OURS, {}).items():
            others = data.get(policy, {}).get(share)
            if not others:
                continue
            difference = median(repeats) - median(others)
            if worst is None or difference < worst:
                worst, where = difference, f"{name}, cap {share:g} of the working set"
    return worst, where


def _draw(figure: Any, *, rows: Sequence[Row], names: list[str], metric: str, y: str) -> None:
    for place, name in enumerate(names, 1):
        axes = figure.add_subplot(1, len(names), place)
        curves(axes, by_cap(rows, metric, name), x="cap / working set", y=y, title=name)


def _table(rows: Sequence[Row], names: list[str]) -> Table:
    metrics = ("written_over_distinct", "refused_over_distinct", "peak_over_cap")
    lines = []
    for name in names:
        shares = dict.fromkeys(row.params["cap_share"] for row in rows if row.has(workload=name))
        for share in shares:
            cells = [
                [
                    row.value
                    for row in rows
                    if row.metric == metric
                    and row.value is not None
                    and row.has(workload=name, cap_share=share)
                ]
                for metric in metrics
            ]
            lines.append((name, f"{float(share):g}", *(f"{median(each):.2f}" for each in cells)))
    return Table(("workload", "cap", "written", "refused", "peak / cap"), tuple(lines))
