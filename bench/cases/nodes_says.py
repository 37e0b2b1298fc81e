"""What the rows of `nodes` show: what all reach together, and each node's wait, by number. Pure.

Nothing here knows how the nodes were started; the rows name what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from bench.core.case import Figure, Outcome, Row, Table, Verdict
from bench.core.statistics import median
from bench.report.plots import curves


def by_nodes(rows: Sequence[Row], metric: str) -> dict[int, list[float]]:
    """Number of nodes -> rounds."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row.metric == metric and row.value is not None and "nodes" in row.params:
            found.setdefault(int(row.params["nodes"]), []).append(row.value)
    return dict(sorted(found.items()))


def figures(rows: Sequence[Row]) -> list[Figure]:
    counts = by_nodes(rows, "load_aggregate")
    if not counts:
        return []
    kinds = sorted(
        {str(r.params["nodes_are"]) for r in rows if r.value is not None and "nodes" in r.params}
    )
    hosts = int(max(median(values) for values in by_nodes(rows, "hosts").values()))
    where = "one machine" if hosts == 1 else f"{hosts} machines"
    return [
        Figure(
            name="nodes",
            title="Many nodes on one namespace",
            sentence=(
                f"Nodes are {' and '.join(kinds)} on {where}: bytes of all together over the time "
                "from the first's start to the last's end, which includes the stragglers; beside "
                "it, what one prefix took a node. On one machine the nodes share its cores and "
                "its caches: that is then what is seen, and not a file system under many clients."
            ),
            draw=partial(_draw, rows=rows),
            table=_table(rows),
        )
    ]


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    lost = [
        value
        for metric in ("missing_chunks", "damaged_chunks")
        for values in by_nodes(rows, metric).values()
        for value in values
    ]
    name, target = "nodes: what others stored is found and whole", "no chunk missing or damaged"
    if not lost:
        return [Verdict(name, target, Outcome.NOT_MEASURED)]
    outcome = Outcome.MET if sum(lost) == 0 else Outcome.MISSED
    return [Verdict(name, target, outcome, sum(lost), unit="chunks")]


def _draw(figure: Any, *, rows: Sequence[Row]) -> None:
    left, right = figure.subplots(1, 2)
    rates = {name: by_nodes(rows, f"{name}_aggregate") for name in ("load", "store")}
    curves(left, rates, x="nodes", y="all together, MB/s")
    waits = {name: by_nodes(rows, f"load_{name}") for name in ("p50", "p99")}
    curves(right, waits, x="nodes", y="lookup and load of a prefix, ms")


def _table(rows: Sequence[Row]) -> Table:
    metrics = ("load_aggregate", "store_aggregate", "load_p50", "load_p99", "visible")
    data = [by_nodes(rows, metric) for metric in metrics]
    lines = tuple(
        (str(count), *(f"{median(column.get(count, [])):,.0f}" for column in data))
        for count in data[0]
    )
    head = ("nodes", "load, MB/s", "store, MB/s", "a load, p50 ms", "p99 ms", "all visible, ms")
    return Table(head, lines)
