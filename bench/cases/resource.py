"""Resource: processor time, memory, descriptors and threads, for each GB moved and over time.

Every contender moves the same batches in a process of its own: store, look up, load, remove. What
counts is the difference to the process before the adapter was made, LMCache and torch loaded and
the buffers touched. Ours also with a catalog of a million chunks, and, in the full profile, for an
hour.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bench.cases.catalog import fill
from bench.core.adapters import CONTENDERS, FS_NATIVE, OURS
from bench.core.case import FULL, QUICK, Context, Figure, Outcome, Parameter, Row, Table, Verdict
from bench.core.children import Child, ChildFailed
from bench.core.mounts import Conditions, Mount, mounted
from bench.core.select import choices, interval, values, where
from bench.core.statistics import median
from bench.core.turns import Batch, rotated
from bench.report.plots import bars, colour, finish

BATCH = Batch(64, 4 << 20)
MILLION = 1_000_000
LARGE = "ours, 10^6 chunks"
BATCHES, HOUR = "batches", "an hour"
HOUR_SECONDS, HOUR_PAUSE = 3600.0, 1.0
FLAT_SHARE_MAX = 0.02
FLAT = "at most 2 % more in the last ten minutes than in the second ten"
GROWN = (("rss", "resident memory, MB", 1e6), ("fds", "descriptors", 1), ("threads", "threads", 1))


class Resource:
    """See the module's text."""

    name = "resource"
    question = (
        "What processor time, memory and descriptors does it take, for each GB and over time?"
    )
    minutes: Mapping[str, float] = {QUICK: 1.1, FULL: 75}
    needs: tuple[str, ...] = ()
    selectable: tuple[str, ...] = tuple(CONTENDERS)

    def run(self, context: Context) -> None:
        rounds = min(context.rounds, 2 if context.quick else 7)
        seconds = 1.0 if context.quick else 20.0
        wanted = [name for name in CONTENDERS if context.wants(name)] or list(CONTENDERS)
        sides = [*wanted, *([LARGE] if OURS in wanted else [])]
        context.progress.total(len(sides) * rounds + (0 if context.quick else 1))
        with mounted(context.folder) as mount:
            mount.apply(Conditions())
            cell = BATCHES
            if not context.cells.finished(cell):
                for number in range(rounds):
                    for side in rotated(sides, number):
                        context.progress.step(f"{side}, process {number + 1} of {rounds}")
                        moved(context, mount, (side,), number, seconds, 0.0, cell)
                context.cells.finish(cell)
            self._hour(context, mount)

    def _hour(self, context: Context, mount: Mount) -> None:
        if context.cells.finished(HOUR):
            return
        if context.quick:
            context.left_out("memory, descriptors and threads over an hour")
        else:
            context.progress.step("an hour, ours and fs_native beside each other")
            moved(context, mount, (OURS, FS_NATIVE), 0, HOUR_SECONDS, HOUR_PAUSE, HOUR)
        context.cells.finish(HOUR)

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        return [*_per_gb(rows), *_over_time(rows)]

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        made = []
        for metric, label, _ in GROWN:
            name = f"over an hour: {label.split(',')[0]}"
            share = grown_late(rows, metric)
            if share is None:
                made.append(Verdict(name, FLAT, Outcome.NOT_MEASURED))
                continue
            outcome = Outcome.MET if share <= FLAT_SHARE_MAX else Outcome.MISSED
            made.append(Verdict(name, FLAT, outcome, share))
        return made


def moved(
    context: Context,
    mount: Mount,
    sides: Sequence[str],
    number: int,
    seconds: float,
    pause: float,
    cell: str,
) -> None:
    """A process for each side, all at the same time, to their end."""
    fixed: dict[str, Parameter] = {"cell": cell}
    heard: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    try:
        with contextlib.ExitStack() as stack:
            live: dict[str, Child] = {}
            for side in sides:
                arguments = _arguments(mount, side, number, seconds, pause, cell)
                live[side] = stack.enter_context(Child("bench.core.mover", arguments))
            while live:
                for side, child in list(live.items()):
                    heard[side].append(child.hear())
                    if "done" in heard[side][-1]:
                        del live[side]
    except ChildFailed as error:
        for side in sides:
            context.record("cpu", None, "s/GB", repeat=number, note=str(error), side=side, **fixed)
        return
    for side in sides:
        before, ready, *samples, _ = heard[side]
        _keep(context, side, number, before["before"], ready["ready"], samples, fixed)


def _arguments(
    mount: Mount, side: str, number: int, seconds: float, pause: float, cell: str
) -> dict[str, Any]:
    """What the process of a side is told."""
    numbered = "" if side == LARGE else f"-{number}"
    folder = "".join(letter if letter.isalnum() else "-" for letter in f"{cell}-{side}{numbered}")
    if side == LARGE and not (mount.backing / folder).exists():
        fill(mount, folder, MILLION, "snapshot")
    return {
        "adapter": OURS if side == LARGE else side,
        "root": str(mount.path / folder),
        "backing": str(mount.backing / folder),
        "seconds": seconds,
        "pause": pause,
        "count": BATCH.count,
        "size": BATCH.size,
        "first": number << 32,  # no process may find what another has stored and removed
        "wait_chunks": MILLION if side == LARGE else 0,
    }


def _keep(
    context: Context,
    side: str,
    number: int,
    before: Mapping[str, float],
    ready: Mapping[str, float],
    samples: Sequence[Mapping[str, Any]],
    fixed: Mapping[str, Parameter],
) -> None:
    """Rows: processor seconds for each GB, growth, and samples."""

    def keep(metric: str, value: float, unit: str, **more: Parameter) -> None:
        where: dict[str, Parameter] = {**fixed, "side": side, **more}
        context.record(metric, value, unit, repeat=number, note="", **where)

    if not all(one["whole"] for one in samples):
        note = "a batch was not stored and loaded whole"
        context.record("cpu", None, "s/GB", repeat=number, note=note, side=side, **fixed)
        return
    gigabytes = 2 * BATCH.total * len(samples) / 1e9
    last = samples[-1]["state"]
    keep("cpu", (last["cpu"] - ready["cpu"]) / gigabytes, "s/GB")
    for operation in ("store", "load"):
        spent = sum(one[f"{operation}_cpu"] for one in samples) / (gigabytes / 2)
        keep(f"{operation}_cpu", spent, "s/GB")
    for metric, _, unit in GROWN:
        most = max(one["state"][metric] for one in samples)
        keep(f"{metric}_before", before[metric] / unit, "")
        keep(f"{metric}_grown", (most - before[metric]) / unit, "")
    every = max(1, len(samples) // 400)
    for one in samples[::every]:
        at = round(one["state"]["at"] - before["at"], 3)
        for metric, _, unit in GROWN:
            keep(f"{metric}_at", one["state"][metric] / unit, "", seconds=at)


def grown_late(rows: Sequence[Row], metric: str) -> float | None:
    """How much more the last sixth of the hour had than its second sixth, as a share of that; None
    without an hour."""
    picked = where(rows, f"{metric}_at", cell=HOUR, side=OURS)
    lasted = max((float(row.params["seconds"]) for row in picked), default=0.0)
    if lasted < HOUR_SECONDS * 0.9:
        return None
    sixths: dict[int, list[float]] = {}
    for row in picked:
        sixths.setdefault(int(6 * float(row.params["seconds"]) / lasted), []).append(row.value or 0)
    return median(sixths[5]) / median(sixths[1]) - 1.0


def _per_gb(rows: Sequence[Row]) -> list[Figure]:
    sides = [str(one) for one in choices(where(rows, "cpu", cell=BATCHES), "side")]
    if not sides:
        return []
    lines = []
    metrics = ("store_cpu", "load_cpu", "cpu", *(f"{metric}_grown" for metric, _, _ in GROWN))
    for side in sides:
        cells = [interval(rows, metric, cell=BATCHES, side=side) for metric in metrics]
        lines.append((side, *(one.text() if one else "not measured" for one in cells)))
    head = ("side", "store, s/GB", "load, s/GB", "all, s/GB of either")
    return [
        Figure(
            "per-gb",
            "Processor time for each GB, and what a process grows by",
            f"Batches of {BATCH} stored and loaded again and again without added latency, each "
            "side in processes of its own. Processor seconds are those of the process, kernel time "
            "included, the mount's daemon not; the third column includes what runs between "
            "batches. Growth is the most seen over the state before the adapter was made, its "
            "catalog included; the buffers of the driver are not part of it.",
            draw=partial(_draw, list(rows), sides),
            table=Table((*head, *(f"+ {label}" for _, label, _ in GROWN)), tuple(lines)),
        )
    ]


def _draw(rows: Sequence[Row], sides: Sequence[str], canvas: Any) -> None:
    left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
    data = {
        side: {
            operation: values(rows, f"{operation}_cpu", cell=BATCHES, side=side)
            for operation in ("store", "load")
        }
        for side in sides
    }
    bars(left, ("store", "load"), data, y="processor seconds per GB")
    grown = {side: {"": values(rows, "rss_grown", cell=BATCHES, side=side)} for side in sides}
    bars(right, ("",), grown, y="MB resident, over the start")


def _over_time(rows: Sequence[Row]) -> list[Figure]:
    picked = where(rows, "rss_at", cell=HOUR)
    if not picked:
        return []
    lasted = max(float(row.params["seconds"]) for row in picked)
    return [
        Figure(
            "time",
            "Memory, descriptors and threads over time",
            "One process each, at the same time, a batch stored, loaded and removed every second "
            f"or as fast as it goes, for {lasted / 60:.0f} minutes. Every point is one sample "
            "after a batch; a flat line is what is wanted.",
            draw=partial(_draw_time, list(rows)),
            inches=(9.0, 3.2),
        )
    ]


def _draw_time(rows: Sequence[Row], canvas: Any) -> None:
    plots = canvas.subplots(1, len(GROWN))
    for axes, (metric, label, _) in zip(plots, GROWN, strict=True):
        for side in choices(where(rows, f"{metric}_at", cell=HOUR), "side"):
            found = where(rows, f"{metric}_at", cell=HOUR, side=side)
            points = sorted((float(row.params["seconds"]), row.value or 0.0) for row in found)
            minutes = [second / 60 for second, _ in points]
            heights = [value for _, value in points]
            axes.plot(minutes, heights, label=str(side), color=colour(str(side)))
        axes.set_ylim(bottom=0)
        finish(axes, x="minutes", y=label)


CASE = Resource()
