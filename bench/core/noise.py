"""What made a run less precise than it could be, each with what to try. Pure.

Looks at what the cores did just before, at time stolen by the host, at the spread of repeats, and
at drift over the rounds. A warning never changes a value: it stands beside the results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from bench.core.case import Row
from bench.core.results import Origin

BUSY_SHARE_MAX = 0.15
"""Of the cores, before the case began: what others used then, they may use while it runs."""
STOLEN_SHARE_MAX = 0.02
SPREAD_MAX = 0.25
"""Half the distance of the quartiles over the median."""
REPEATS_MIN = 5
DRIFT_MAX = 0.3
TIME_UNITS = frozenset({"ms", "s", "us"})


def warnings(
    rows: Sequence[Row], origin: Origin, cores: int, random: Sequence[str] = ()
) -> list[str]:
    """One sentence for each cause found. Metrics named in `random` spread by nature."""
    found = []
    if origin.busy_start > BUSY_SHARE_MAX * cores:
        found.append(
            f"{origin.busy_start:.1f} of {cores} cores were at work before the case began: end "
            "what else runs, or trust ratios between contenders more than times"
        )
    if origin.stolen_share > STOLEN_SHARE_MAX:
        found.append(
            f"the host took {origin.stolen_share:.0%} of the processor time: use a machine of "
            "its own, or more rounds (--rounds)"
        )
    groups = _groups([row for row in rows if row.metric not in random])
    noisy = [key for key, values in groups.items() if _spread(values) > SPREAD_MAX]
    if noisy:
        worst = max(noisy, key=lambda key: _spread(groups[key]))
        found.append(
            f"{len(noisy)} of {len(groups)} measured quantities spread by more than "
            f"{SPREAD_MAX:.0%} (worst: {worst}): raise --rounds, or run it where nothing else runs"
        )
    drifting = [key for key, values in groups.items() if abs(_drift(values)) > DRIFT_MAX]
    if len(drifting) * 4 > len(groups) > 0:
        found.append(
            f"{len(drifting)} of {len(groups)} quantities changed steadily over the rounds: "
            "something filled up or heated up; run the case alone (python -m bench run "
            f"{origin.case}) on an empty directory"
        )
    return found


def _groups(rows: Sequence[Row]) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.value is not None and row.unit in TIME_UNITS:
            params = ", ".join(f"{name} {value}" for name, value in sorted(row.params.items()))
            groups[f"{row.metric}; {params}"].append(row.value)
    return {key: values for key, values in groups.items() if len(values) >= REPEATS_MIN}


def _spread(values: Sequence[float]) -> float:
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float((high - low) / 2 / middle) if middle > 0 else 0.0


def _drift(values: Sequence[float]) -> float:
    """Change of the median from the first to the last third, over the first."""
    third = max(1, len(values) // 3)
    first, last = np.median(values[:third]), np.median(values[-third:])
    return float((last - first) / first) if first > 0 else 0.0
