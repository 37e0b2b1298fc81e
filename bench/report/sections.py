"""What a run's saved rows say, case by case: verdicts, figures as PNG, and what was not measured.

A case that cannot make sense of its rows (an older version's, say) costs its own section only; the
section then says so.
"""

from __future__ import annotations

import io
import math
import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from bench.core.case import LEFT_OUT, Case, Figure, Outcome, Verdict
from bench.core.results import Origin, Saved
from bench.core.select import unmeasured
from bench.report.plots import DPI


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure with its picture, if it has one."""

    figure: Figure
    png: bytes | None


@dataclass(frozen=True, slots=True)
class Section:
    """One case of a run."""

    name: str
    question: str
    origin: Origin
    verdicts: list[Verdict]
    figures: list[Drawn]
    gaps: list[str]
    """What was not measured, each with why."""
    row_count: int
    trouble: str = ""


def sections(saved: Mapping[str, Saved], cases: Mapping[str, Case]) -> list[Section]:
    """In the cases' order; results of a case that is not there any more come last, as they are."""
    places = {name: at for at, name in enumerate(cases)}
    order = sorted(saved, key=lambda name: places.get(saved[name].origin.case, len(places)))
    return [_section(name, saved[name], cases.get(saved[name].origin.case)) for name in order]


def _section(name: str, saved: Saved, case: Case | None) -> Section:
    verdicts: list[Verdict] = []
    figures: list[Drawn] = []
    trouble = ""
    if case is None:
        trouble = "this version has no case of that name"
    else:
        try:
            verdicts = case.verdicts(saved.rows)
            figures = [Drawn(figure, picture(figure)) for figure in case.figures(saved.rows)]
        except Exception as error:  # the other sections are still worth reading
            traceback.print_exc()
            trouble = f"these results cannot be shown: {type(error).__name__}: {error}"
    return Section(
        name=name,
        question=case.question if case is not None else "",
        origin=saved.origin,
        verdicts=verdicts,
        figures=figures,
        gaps=_gaps(saved),
        row_count=len(saved.rows),
        trouble=trouble,
    )


def _gaps(saved: Saved) -> list[str]:
    """Equal reasons are told once, with what they concern; what a profile leaves out, whole."""
    found: dict[str, list[str]] = {}
    left: dict[str, list[str]] = {}
    for row in unmeasured(saved.rows):
        if row.metric == LEFT_OUT:
            left.setdefault(row.note, []).append(str(row.params["what"]))
            continue
        params = ", ".join(f"{k} {v}" for k, v in row.params.items() if k != "cell")
        found.setdefault(row.note, []).append(f"{row.metric} ({params})" if params else row.metric)
    gaps = [f"{'; '.join(dict.fromkeys(what))} ({why})" for why, what in left.items()]
    gaps += [f"{_listed(what)}: {why}" for why, what in found.items()]
    if not saved.origin.complete and saved.origin.failure not in found:
        why = saved.origin.failure or "it did not come to its end"
        gaps.append(f"the rest of the case: {why}")
    return gaps


def _listed(names: list[str], shown: int = 4) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - shown} more" if len(unique) > shown else ""
    return "; ".join(unique[:shown]) + more


def picture(figure: Figure) -> bytes | None:
    """The PNG; None for a figure that is a table only. Needs no display."""
    if figure.draw is None:
        return None
    os.environ.setdefault("MPLBACKEND", "Agg")
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=figure.inches, layout="constrained")
    figure.draw(canvas)
    out = io.BytesIO()
    canvas.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
    return out.getvalue()


def measured_text(verdict: Verdict) -> str:
    """The measured value with its interval and unit, or that there is none."""
    if verdict.outcome is Outcome.NOT_MEASURED:
        return "not measured"
    if verdict.measured is None:
        return "see the note"
    unit = f" {verdict.unit}" if verdict.unit else ""
    low, high = verdict.low, verdict.high
    if low is None or high is None or low == high or not math.isfinite(low):
        return f"{verdict.measured:.3g}{unit}"
    return f"{verdict.measured:.3g} ({verdict.low:.3g} to {verdict.high:.3g}){unit}"
