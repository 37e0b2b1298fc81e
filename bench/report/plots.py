"""What most figures need: curves with their 95 % intervals, and bars. Draws into a given figure.

Contenders keep one colour and one marker in every plot. Gaps stay gaps: what was not measured is
not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench.core.case import Parameter
from bench.core.statistics import Interval, median_interval

COLOURS = {
    "ours": "#1b6ca8",
    "fs_native": "#d1495b",
    "fs": "#8d99ae",
    "private": "#8d99ae",
    "fio": "#2b9348",
}
VARIANTS = {"ours": "#8cc0e8", "fs_native": "#eba7b0"}
MARKERS = {"ours": "o", "fs_native": "s", "fs": "^", "fio": "D"}
_OTHERS = ("#5f0f40", "#0f4c5c", "#fb8b24", "#386641", "#6d597a", "#bc4749")
FIRST = "ours"
"""Drawn wide: a line that lies on it is then seen as one."""
DPI = 110
TICKS_MAX = 6
"""Up to so many places on a linear axis are named; with more the axis chooses."""

Curves = Mapping[str, Mapping[Any, Sequence[float]]]
"""Name -> x -> repeats."""


def colour(name: str, at: int = 0) -> str:
    """A contender's own; a paler one for its variants ("ours, checksums off")."""
    first, comma, _ = name.partition(",")
    if comma and first in COLOURS:
        return VARIANTS.get(first, COLOURS[first])
    return COLOURS.get(name) or _OTHERS[at % len(_OTHERS)]


def curves(
    axes: Any,
    data: Curves,
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    title: str = "",
) -> None:
    """One line for each name through the medians, with intervals as bars. A scale that is not
    logarithmic begins at 0."""
    data = {name: points for name, points in data.items() if any(map(len, points.values()))}
    for at, (name, points) in enumerate(data.items()):
        places = [place for place, repeats in points.items() if len(repeats)]
        found = [median_interval(points[place]) for place in places]
        axes.errorbar(
            [_number(place) for place in places],
            [one.estimate for one in found],
            yerr=_errors(found),
            label=name,
            color=colour(name, at),
            marker=MARKERS.get(name, "o"),
            markersize=7 if name == FIRST else 4,
            linewidth=3.5 if name == FIRST else 1.5,
            capsize=3,
        )
    ticks = sorted({_number(place) for points in data.values() for place in points})
    log_x = log_x and len(ticks) > 1
    if log_x:
        axes.set_xscale("symlog" if _has_zero(data) else "log", **_linear(data))
    if log_x or len(ticks) <= TICKS_MAX:
        axes.set_xticks(ticks, [f"{tick:,.0f}" if tick >= 1000 else f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    if log_y:
        logarithmic(axes)
    elif data:
        axes.set_ylim(bottom=0)
    finish(axes, x=x, y=y, title=title, legend=bool(data))


def bars(
    axes: Any,
    groups: Sequence[str],
    data: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    y: str,
    log_y: bool = False,
    title: str = "",
) -> None:
    """Groups along x, in each a bar with its interval for each name. Name -> group -> repeats."""
    data = {name: by_group for name, by_group in data.items() if any(by_group.values())}
    width = 0.8 / max(1, len(data))
    for at, (name, by_group) in enumerate(data.items()):
        shown = [
            (place, by_group[group]) for place, group in enumerate(groups) if by_group.get(group)
        ]
        found = [median_interval(repeats) for _, repeats in shown]
        axes.bar(
            [place + (at - (len(data) - 1) / 2) * width for place, _ in shown],
            [one.estimate for one in found],
            width,
            yerr=_errors(found),
            label=name,
            color=colour(name, at),
            capsize=2,
        )
    axes.set_xticks(range(len(groups)), groups)
    if log_y:
        logarithmic(axes)
    finish(axes, x="", y=y, title=title, legend=len(data) > 1)


def logarithmic(axes: Any) -> None:
    """A logarithmic y axis with plain numbers on it, also within one decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def finish(axes: Any, *, x: str, y: str, title: str = "", legend: bool = True) -> None:
    axes.set_xlabel(x)
    if _is_first(axes):
        axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.grid(True, axis="y", alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if legend:
        axes.legend(fontsize=8, frameon=False)


def _is_first(axes: Any) -> bool:
    """Whether the scale is its own, or it stands left of all that share it."""
    is_shared = len(axes.get_shared_y_axes().get_siblings(axes)) > 1
    place = axes.get_subplotspec()
    return not is_shared or place is None or bool(place.is_first_col())


def _errors(found: Sequence[Interval]) -> list[list[float]]:
    """Distances down and up; none where too few rounds give no interval."""
    down = [one.estimate - one.low if math.isfinite(one.low) else 0.0 for one in found]
    up = [one.high - one.estimate if math.isfinite(one.high) else 0.0 for one in found]
    return [down, up]


def _number(place: Parameter) -> float:
    return float(place)


def _has_zero(data: Curves) -> bool:
    return any(_number(place) == 0.0 for points in data.values() for place in points)


def _linear(data: Curves) -> dict[str, float]:
    """Where a logarithmic axis with a zero on it turns linear: at the least other place."""
    if not _has_zero(data):
        return {}
    places = [_number(place) for points in data.values() for place in points]
    return {"linthresh": min((place for place in places if place > 0), default=1.0)}
