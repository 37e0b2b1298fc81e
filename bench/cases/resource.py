"""Resource: processor time, memory, descriptors and threads, for each GB moved and over time.

Every contender moves the same batches in a process of its own: store, look up, load, remove. What
counts is the difference to the process before the adapter was made, LMCache and torch loaded and
the buffers touched. Ours also with a catalog of a million chunks, and, in the full profile, for an
hour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bench.cases.catalog import fill
from bench.core.adapters import CONTENDERS, FS_NATIVE, OURS
from bench.core.case import FULL, QUICK, Context, Figure, Parameter, Row, Table, Verdict
from bench.core.children import Child, ChildFailed
from bench.core.mounts import Conditions, Mount, mounted
from bench.core.select import choices, interval, values, where
from bench.core.turns import Batch, rotated
from bench.report.plots import bars, colour, finish

BATCH = Batch(64, 4 << 20)
MILLION = 1_000_000
LARGE = "ours, 10^6 chunks"
HOUR_SECONDS, HOUR_PAUSE = 3600.0, 1.0
GROWN = (("rss", "resident memory, MB", 1e6), ("fds", "descriptors", 1), ("threads", "threads", 1))


class Resource:
    """See the module's text."""

    name = "resource"
    question = (
        "What processor time, memory and descriptors does it take, for each GB and over time?"
    )
    minutes: Mapping[str, float] = {QUICK: 2, FULL: 75}
    needs: tuple[str, ...] = ()

    def run(self, context: Context) -> None:
        rounds = 3 if context.quick else min(7, context.rounds)
        seconds = 1.5 if context.quick else 20.0
        wanted = [name for name in CONTENDERS if context.wants(name)] or list(CONTENDERS)
        sides = [*wanted, *([LARGE] if OURS in wanted else [])]
        context.progress.total(len(sides) * rounds)
        with mounted(context.folder) as mount:
            mount.apply(Conditions())
            cell = "batches"
            if not context.cells.finished(cell):
                for number in range(rounds):
                    for side in rotated(sides, number):
                        context.progress.step(f"{side}, process {number + 1} of {rounds}")
                        moved(context, mount, side, number, seconds, 0.0, cell)
                context.cells.finish(cell)
            self._hour(context, mount)

    def _hour(self, context: Context, mount: Mount) -> None:
        cell = "an hour"
        if context.cells.finished(cell):
            return
        if context.quick:
            why = "an hour of it is part of the full profile: make bench-full"
            context.missing("rss", "MB", why, cell=cell, side=OURS)
        else:
            for side in (OURS, FS_NATIVE):
                moved(context, mount, side, 0, HOUR_SECONDS, HOUR_PAUSE, cell)
        context.cells.finish(cell)

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        return [*_per_gb(rows), *_over_time(rows)]

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        return []


def moved(
    context: Context,
    mount: Mount,
    side: str,
    number: int,
    seconds: float,
    pause: float,
    cell: str,
) -> None:
    """One process, to its end. Rows: processor seconds for each GB, growth, and samples."""
    name = OURS if side == LARGE else side
    numbered = "" if side == LARGE else f"-{number}"
    folder = "".join(letter if letter.isalnum() else "-" for letter in f"{cell}-{side}{numbered}")
    if side == LARGE and not (mount.backing / folder).exists():
        fill(mount.backing / folder, MILLION, "snapshot")
    arguments: dict[str, Any] = {
        "adapter": name,
        "root": str(mount.path / folder),
        "backing": str(mount.backing / folder),
        "seconds": seconds,
        "pause": pause,
        "count": BATCH.count,
        "size": BATCH.size,
        "first": number << 32,  # no process may find what another has stored and removed
        "wait_chunks": MILLION if side == LARGE else 0,
    }
    fixed: dict[str, Parameter] = {"cell": cell, "side": side}
    try:
        with Child("bench.core.mover", arguments) as child:
            before, ready = child.hear()["before"], child.hear()["ready"]
            samples = []
            while "done" not in (heard := child.hear()):
                samples.append(heard)
    except ChildFailed as error:
        context.record("cpu", None, "s/GB", repeat=number, note=str(error), **fixed)
        return
    if not all(one["whole"] for one in samples):
        note = "a batch was not stored and loaded whole"
        context.record("cpu", None, "s/GB", repeat=number, note=note, **fixed)
        return
    gigabytes = 2 * BATCH.total * len(samples) / 1e9
    last = samples[-1]["state"]
    whole = (last["cpu"] - ready["cpu"]) / gigabytes
    context.record("cpu", whole, "s/GB", repeat=number, note="", **fixed)
    for operation in ("store", "load"):
        spent = sum(one[f"{operation}_cpu"] for one in samples) / (gigabytes / 2)
        context.record(f"{operation}_cpu", spent, "s/GB", repeat=number, note="", **fixed)
    for metric, _, unit in GROWN:
        most = max(one["state"][metric] for one in samples)
        context.record(
            f"{metric}_before", before[metric] / unit, "", repeat=number, note="", **fixed
        )
        grown = (most - before[metric]) / unit
        context.record(f"{metric}_grown", grown, "", repeat=number, note="", **fixed)
    every = max(1, len(samples) // 400)
    for one in samples[::every]:
        at = one["state"]["at"] - before["at"]
        for metric, _, unit in GROWN:
            context.record(
                f"{metric}_at",
                one["state"][metric] / unit,
                "",
                repeat=number,
                note="",
                seconds=round(at, 3),
                **fixed,
            )


def _per_gb(rows: Sequence[Row]) -> list[Figure]:
    sides = [str(one) for one in choices(where(rows, "cpu", cell="batches"), "side")]
    if not sides:
        return []
    lines = []
    metrics = ("store_cpu", "load_cpu", "cpu", *(f"{metric}_grown" for metric, _, _ in GROWN))
    for side in sides:
        cells = [interval(rows, metric, cell="batches", side=side) for metric in metrics]
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
            operation: values(rows, f"{operation}_cpu", cell="batches", side=side)
            for operation in ("store", "load")
        }
        for side in sides
    }
    bars(left, ("store", "load"), data, y="processor seconds per GB")
    grown = {side: {"": values(rows, "rss_grown", cell="batches", side=side)} for side in sides}
    bars(right, ("",), grown, y="MB resident, over the start")


def _over_time(rows: Sequence[Row]) -> list[Figure]:
    picked = where(rows, "rss_at", cell="an hour")
    if not picked:
        return []
    lasted = max(float(row.params["seconds"]) for row in picked)
    return [
        Figure(
            "time",
            "Memory, descriptors and threads over time",
            f"One process each, a batch stored, loaded and removed every second or as fast as it "
            f"goes, for {lasted / 60:.0f} minutes. Every point is one sample after a batch; a flat "
            "line is what is wanted.",
            draw=partial(_draw_time, list(rows)),
            inches=(9.0, 3.2),
        )
    ]


def _draw_time(rows: Sequence[Row], canvas: Any) -> None:
    plots = canvas.subplots(1, len(GROWN))
    for axes, (metric, label, _) in zip(plots, GROWN, strict=True):
        for side in choices(where(rows, f"{metric}_at", cell="an hour"), "side"):
            found = where(rows, f"{metric}_at", cell="an hour", side=side)
            points = sorted((float(row.params["seconds"]), row.value or 0.0) for row in found)
            minutes = [second / 60 for second, _ in points]
            heights = [value for _, value in points]
            axes.plot(minutes, heights, label=str(side), color=colour(str(side)))
        axes.set_ylim(bottom=0)
        finish(axes, x="minutes", y=label)


CASE = Resource()
