"""Resource: processor time, memory, descriptors and threads, for each GB moved and over time.

Every contender moves the same batches in a process of its own: store, look up, load, remove. What
counts is the difference to the process before the adapter was made, LMCache and torch loaded and
the buffers touched. Ours also with a catalog of a million chunks, and, in the full profile, for an
hour.

What a process remembers of chunks is bounded, and an hour must be long enough to reach the bounds:
it moves the same bytes in chunks an eighth as large, about a million of them, below a cap that lets
the catalog reach its size within minutes. `resource_says` has how it is judged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from bench.cases.catalog import fill
from bench.cases.resource_says import (
    BATCH,
    BATCHES,
    GROWN,
    HOUR,
    HOUR_BATCH,
    HOUR_OPTIONS,
    HOUR_SECONDS,
    figures,
    verdicts,
)
from bench.core.adapters import CONTENDERS, FS_NATIVE, OURS
from bench.core.case import FULL, QUICK, Context, Figure, Parameter, Row, Verdict
from bench.core.children import Child, ChildFailed
from bench.core.mounts import Conditions, Mount, mounted
from bench.core.turns import rotated

MILLION = 1_000_000
LARGE = "ours, 10^6 chunks"
HOUR_PAUSE = 1.0
HOUR_TORN_SHARE_MAX = 0.01
"""Of the hour's batches may be stored or loaded in part, and are told: it asks what is left behind,
and a busy machine must not cost an hour."""


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
        return figures(rows)

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        return verdicts(rows)


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
        keep(context, side, number, before["before"], ready, samples, fixed)


def _arguments(
    mount: Mount, side: str, number: int, seconds: float, pause: float, cell: str
) -> dict[str, Any]:
    """What the process of a side is told."""
    batch = HOUR_BATCH if cell == HOUR else BATCH
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
        "count": batch.count,
        "size": batch.size,
        "options": dict(HOUR_OPTIONS) if cell == HOUR and side == OURS else {},
        "first": number << 32,  # no process may find what another has stored and removed
        "wait_chunks": MILLION if side == LARGE else 0,
    }


def keep(
    context: Context,
    side: str,
    number: int,
    before: Mapping[str, float],
    ready: Mapping[str, Any],
    samples: Sequence[Mapping[str, Any]],
    fixed: Mapping[str, Parameter],
) -> None:
    """Rows: processor seconds for each GB, growth, and samples."""

    def note(metric: str, value: float, unit: str, **more: Parameter) -> None:
        where: dict[str, Parameter] = {**fixed, "side": side, **more}
        context.record(metric, value, unit, repeat=number, note="", **where)

    torn = sum(not one["whole"] for one in samples)
    if torn > (HOUR_TORN_SHARE_MAX * len(samples) if fixed["cell"] == HOUR else 0):
        why = "a batch was not stored and loaded whole"
        context.record("cpu", None, "s/GB", repeat=number, note=why, side=side, **fixed)
        return
    batch = HOUR_BATCH if fixed["cell"] == HOUR else BATCH
    gigabytes = 2 * batch.total * len(samples) / 1e9
    last = samples[-1]["state"]
    note("cpu", (last["cpu"] - ready["ready"]["cpu"]) / gigabytes, "s/GB")
    for operation in ("store", "load"):
        spent = sum(one[f"{operation}_cpu"] for one in samples) / (gigabytes / 2)
        note(f"{operation}_cpu", spent, "s/GB")
    for metric, _, unit in GROWN:
        most = max(one["state"][metric] for one in samples)
        note(f"{metric}_before", before[metric] / unit, "")
        note(f"{metric}_grown", (most - before[metric]) / unit, "")
    every = max(1, len(samples) // 400)
    for one in samples[::every]:
        at = round(one["state"]["at"] - before["at"], 3)
        note("chunks_at", (one["batch"] + 1) * batch.count, "", seconds=at)
        for metric, _, unit in GROWN:
            note(f"{metric}_at", one["state"][metric] / unit, "", seconds=at)
        for name, count in one["remembered"].items():
            note(f"{name}_at", count, "", seconds=at)
    note("batches_torn", torn, "")
    for name, most in ready["limits"].items():
        note(f"{name}_limit", most, "")


CASE = Resource()
