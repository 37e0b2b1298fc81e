"""Report: the results as Markdown tables and plots. Pure: text in, text out.

Each figure is the mean over the seeds of that cell; `+-` is the standard deviation of the seeds'
means. TTFT in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, pstdev

from bench.routing.cells import Cell
from bench.routing.claims import Claim
from bench.routing.plots import bars, lines


@dataclass(frozen=True, slots=True)
class Figures:
    """One cell, one seed, without the single requests."""

    mean_s: float
    median_s: float
    p99_s: float
    local_hit: float
    shared_hit: float
    utilisation: float
    busiest: float
    regret_s: float


Results = Mapping[Cell, Sequence[Figures]]


def means(results: Results) -> dict[Cell, float]:
    return {cell: mean(each.mean_s for each in seeds) for cell, seeds in results.items()}


def tables(results: Results) -> str:
    """All groups, one table each."""
    parts = []
    groups = list(dict.fromkeys(cell.group for cell in results))
    for group in groups:
        rows = {cell: seeds for cell, seeds in results.items() if cell.group == group}
        parts.append(f"### {group}\n\n" + _table(rows))
    return "\n".join(parts)


def _table(rows: Results) -> str:
    text = (
        "| case | policy | mean | +- | median | p99 | local hit | from tier | GPU busy"
        " | busiest | regret |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    for cell, seeds in rows.items():
        share = [mean(getattr(each, name) for each in seeds) for name in Figures.__slots__]
        deviation = pstdev(each.mean_s for each in seeds)
        text += (
            f"| {case(cell)} | {cell.policy} | {share[0]:.3f} | {deviation:.3f} | {share[1]:.3f} |"
            f" {share[2]:.1f} | {share[3]:.1%} | {share[4]:.1%} | {share[5]:.0%} |"
            f" {share[6]:.1%} | {share[7] * 1e3:.1f} ms |\n"
        )
    return text


def case(cell: Cell) -> str:
    """What is special about a cell."""
    words = [cell.trace, f"N={cell.replicas}"]
    if cell.speed != 1.0:
        words.append(f"speed {cell.speed:g}")
    if cell.gigabytes_per_second == 0:
        words.append("no tier")
    elif cell.gigabytes_per_second != 5.0:
        words.append(f"{cell.gigabytes_per_second:g} GB/s")
    if cell.total_gigabytes_per_second != float("inf"):
        words.append(f"{cell.total_gigabytes_per_second:g} GB/s in all")
    if not cell.is_gated:
        words.append("always loads")
    if cell.routers > 1:
        words.append(f"{cell.routers} routers" + " that tell each other" * cell.tell)
    if cell.start != "right":
        words.append(f"started {cell.start}")
    return ", ".join(words)


def claims_table(claims: Sequence[Claim]) -> str:
    text = "| claim | at most | measured | |\n|---|---|---|---|\n"
    for claim in claims:
        verdict = "met" if claim.is_met else "**not met**"
        text += f"| {claim.text} | {claim.limit:.2f} | {claim.value:.3f} | {verdict} |\n"
    return text


def plots(results: Results) -> dict[str, str]:
    """File names and SVG text."""
    found, all_means = {}, means(results)
    for replicas in sorted({cell.replicas for cell in results if cell.group == "speeds"}):
        series: dict[str, list[tuple[float, float]]] = {}
        for cell, value in all_means.items():
            if cell.group == "speeds" and cell.replicas == replicas:
                series.setdefault(cell.policy, []).append((cell.speed, value))
        title = f"Published trace, {replicas} replicas"
        found[f"speeds-{replicas}.svg"] = lines(title, "speed", "mean TTFT, s", series)
    series = {}
    for cell, value in all_means.items():
        if cell.group == "bandwidth":
            point = (cell.gigabytes_per_second, value)
            series.setdefault(cell.policy, []).append(point)
    if series:
        title = "Bandwidth of the shared tier, 8 replicas"
        found["bandwidth.svg"] = lines(title, "GB/s for each replica", "mean TTFT, s", series)
    for group in ("policies", "overload"):
        values = {cell.policy: all_means[cell] for cell in results if cell.group == group}
        if values:
            found[f"{group}.svg"] = bars(f"Mean TTFT: {group}", "seconds", values)
    return found
