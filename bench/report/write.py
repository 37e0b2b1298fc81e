"""Writes a run's report: the page and its pictures, and docs/RESULTS.md where that is asked for.

The only part of the report that touches files. Reads the run's Parquet files, nothing else, so a
report can be written anywhere the results were copied to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench.core.registry import registry
from bench.core.results import load_runs
from bench.report.markdown import PICTURES, document, picture_name
from bench.report.page import page
from bench.report.sections import Section, sections


class NothingToReport(Exception):
    """No result of any case; nothing was written."""


def write(
    runs: Sequence[Path],
    docs: Path | None,
    command: str,
    unreadable: Callable[[str], None] | None = None,
) -> Path:
    """The page's path, in the first run's folder. Pictures lie beside it, and in docs/results too
    when `docs` is given. Files that hold no results are told to `unreadable`. Raises
    NothingToReport, before anything is written."""
    cases, saved = registry().cases, load_runs(runs, unreadable)
    if not saved:
        raise NothingToReport(f"no results in {', '.join(map(str, runs))}")
    found = sections(saved, cases)
    absent = [name for name in cases if name not in {one.origin.case for one in saved.values()}]
    target = runs[0] / "report"
    _pictures(found, target)
    path = target / "index.html"
    path.write_text(page("SharedFSBackend: benchmark", found, absent), encoding="utf-8")
    if docs is not None:
        _pictures(found, docs / PICTURES)
        (docs / "RESULTS.md").write_text(document(found, command, absent), encoding="utf-8")
    return path


def _pictures(found: Sequence[Section], folder: Path) -> None:
    """Exactly these: pictures of an earlier report go."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.png"):
        path.unlink()
    for one in found:
        for drawn in one.figures:
            if drawn.png is not None:
                (folder / picture_name(one.name, drawn.figure.name)).write_bytes(drawn.png)
