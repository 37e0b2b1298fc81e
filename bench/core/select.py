"""Picking rows: by metric and parameters, by round, grouped by a parameter. Pure.

Cases use these to judge and draw. Only measured values come out; what was not measured is asked for
by `unmeasured`, so that no plot mistakes a gap for a zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from bench.core.case import Parameter, Row
from bench.core.statistics import Interval, median_interval, ratio_interval


def where(rows: Iterable[Row], metric: str, **params: Parameter) -> list[Row]:
    """The measured rows of a metric taken under these parameters."""
    return [
        row for row in rows if row.metric == metric and row.value is not None and row.has(**params)
    ]


def values(rows: Iterable[Row], metric: str, **params: Parameter) -> list[float]:
    return [row.value for row in where(rows, metric, **params) if row.value is not None]


def by_round(rows: Iterable[Row], metric: str, **params: Parameter) -> dict[int, float]:
    """Value by round; of several in one round the last."""
    found = where(rows, metric, **params)
    return {row.repeat: row.value for row in found if row.value is not None}


def by_param(
    rows: Iterable[Row], metric: str, name: str, **params: Parameter
) -> dict[Parameter, list[float]]:
    """Values by the parameter `name`, in its order."""
    groups: dict[Parameter, list[float]] = defaultdict(list)
    for row in where(rows, metric, **params):
        if name in row.params and row.value is not None:
            groups[row.params[name]].append(row.value)
    return dict(sorted(groups.items(), key=lambda item: _order(item[0])))


def choices(rows: Iterable[Row], name: str) -> list[Parameter]:
    """Every value the parameter has in any row, in its order."""
    return sorted({row.params[name] for row in rows if name in row.params}, key=_order)


def interval(rows: Iterable[Row], metric: str, **params: Parameter) -> Interval | None:
    found = values(rows, metric, **params)
    return median_interval(found) if found else None


def ratio(
    rows: Sequence[Row], metric: str, name: str, over: Parameter, under: Parameter, **params: object
) -> Interval | None:
    """Of metric(name=over) / metric(name=under), paired by round."""
    fixed: dict[str, Parameter] = {key: value for key, value in params.items()}  # type: ignore[misc]
    return ratio_interval(
        by_round(rows, metric, **{**fixed, name: over}),
        by_round(rows, metric, **{**fixed, name: under}),
    )


def unmeasured(rows: Iterable[Row]) -> list[Row]:
    """What was to be measured and was not."""
    return [row for row in rows if row.value is None and row.unit != "text"]


def texts(rows: Iterable[Row], metric: str, **params: Parameter) -> list[str]:
    return [
        row.note
        for row in rows
        if row.unit == "text" and row.metric == metric and row.has(**params)
    ]


def _order(value: Parameter) -> tuple[int, float, str]:
    if isinstance(value, str):
        return (1, 0.0, value)
    return (0, float(value), "")
