"""Ceiling: our load and store beside what fio gets from the same mount, checksums on and off.

fio uses the size of our calls and as many threads as we used: readers as many as the depth chosen,
writers as many as packs. Turns alternate. Processor time of both sides and of the mount's own
process stands beside, so that a limit set by the cores is seen as one. Checksums off is a stand-in
for measuring only: the product has no such switch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from bench.core import fio
from bench.core.adapters import OURS
from bench.core.case import FULL, QUICK, Context, Figure, Outcome, Parameter, Row, Table, Verdict
from bench.core.mounts import Conditions, Mount, let_go_of_pages, mounted
from bench.core.profile import Sampler, process_seconds
from bench.core.select import choices, interval, ratio, texts, values, where
from bench.core.statistics import at_least, median
from bench.core.turns import Batch, Memory, Turn, TurnFailed, one_turn, rotated, turns
from bench.report.plots import bars
from sharedfs_backend import native
from sharedfs_backend.layout import seal

BATCH = Batch(128, 4 << 20)
UNCHECKED, FIO = "ours, checksums off", "fio"
SIDES = (OURS, UNCHECKED, FIO)
LATENCIES = (0.0, 1.0)
TARGETS = (("load", 0.9), ("store", 0.8))
FIO_OPERATION = {"load": "read", "store": "write"}
ROUNDS_MIN = 7
HASHES = "xxhash"
"""The module that the seal hashes units with, under the name it has there."""


class Nothing:
    """Stands for a checksum that costs nothing. `updates` tells whether it was used."""

    updates = 0

    def update(self, _data: object, /) -> None:
        Nothing.updates += 1

    def digest(self) -> bytes:
        return bytes(16)


class NoChecksums:
    """Stands for the xxhash module where units of chunks are hashed; the rest stays as it is."""

    xxh3_128 = Nothing
    xxh3_128_digest = staticmethod(xxhash.xxh3_128_digest)


@functools.cache
def compiled_nothing() -> ctypes.CDLL | None:
    """nothing.c; None where there is no C compiler."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "nothing.so"
        source = Path(__file__).with_name("nothing.c")
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True)
            return ctypes.CDLL(str(library))
        except (OSError, subprocess.CalledProcessError):
            return None


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Within it no byte of a chunk is hashed in this process, in Python or in compiled loops."""
    kept, loops, nothing = getattr(seal, HASHES), native.loops(), compiled_nothing()
    setattr(seal, HASHES, NoChecksums)
    if loops is not None and nothing is not None:
        names = ("create", "release", "reset", "update", "digest")
        use = loops._library.sf_use
        use(*(ctypes.cast(getattr(nothing, name), ctypes.c_void_p) for name in names))
    try:
        yield
    finally:
        setattr(seal, HASHES, kept)
        native.loops.cache_clear()
        native.loops()  # which puts XXH3's functions back


def updates() -> int:
    """How often a checksum that costs nothing was asked for, wherever."""
    nothing = compiled_nothing()
    return Nothing.updates + (
        0 if nothing is None else ctypes.c_long.in_dll(nothing, "updates").value
    )


class Ceiling:
    """See the module's text."""

    name = "ceiling"
    question = "How close do load and store come to fio on the same mount?"
    minutes: Mapping[str, float] = {QUICK: 0.8, FULL: 5}
    needs: tuple[str, ...] = ("fio",)

    def run(self, context: Context) -> None:
        context.record("cores", len(os.sched_getaffinity(0)), "", cell="0 ms")
        context.progress.total(len(LATENCIES) * (context.rounds + 1) * len(SIDES))
        with mounted(context.folder) as mount:
            for latency in LATENCIES:
                cell = f"{latency:g} ms"
                if context.cells.finished(cell):
                    continue
                if latency and not mount.throttled:
                    for operation, _ in TARGETS:
                        context.missing(operation, "MB/s", mount.why, cell=cell, latency_ms=latency)
                    continue
                self._cell(context, mount, cell, latency)
                context.cells.finish(cell)

    def _cell(self, context: Context, mount: Mount, cell: str, latency: float) -> None:
        memory = Memory(BATCH, context.seed)
        with turns((OURS, UNCHECKED), mount, cell, memory, adapters={UNCHECKED: OURS}) as made:
            plans = {name: fio.Plan(1, BATCH.size, BATCH.total) for name, _ in TARGETS}
            for number in range(-1, context.rounds):
                mount.apply(Conditions(latency))
                for side in rotated(SIDES, number) if number >= 0 else SIDES:
                    context.progress.step(f"{cell}, {side}, round {number + 1}")
                    fixed: dict[str, Parameter] = {
                        "cell": cell,
                        "side": side,
                        "latency_ms": latency,
                    }
                    if side == FIO:
                        plain(context, mount, plans, number, fixed)
                    else:
                        ours(context, mount, made[side], number, fixed, plans)
            self._profile(context, mount, made[OURS], cell, latency)

    def _profile(
        self, context: Context, mount: Mount, turn: Turn, cell: str, latency: float
    ) -> None:
        cores = len(os.sched_getaffinity(0))
        mount.apply(Conditions(latency))
        for operation in ("store", "load"):
            keys = turn.next_keys()
            if operation == "load":
                turn.driver.store(keys, turn.memory.source.objects)
                turn.let_go()
            with Sampler(mount.daemon_pid) as profile:
                if operation == "store":
                    turn.driver.store(keys, turn.memory.source.objects)
                else:
                    turn.driver.load(keys, turn.memory.target.objects)
            turn.remove_data()
            context.text(
                "profile", profile.text(cores), cell=cell, latency_ms=latency, operation=operation
            )

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        return [*_bandwidth(rows), *_profiles(self, rows)]

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        made = []
        for latency in LATENCIES:
            for operation, target in TARGETS:
                found = ratio(rows, operation, "side", OURS, FIO, latency_ms=latency)
                outcome = at_least(found, target, ROUNDS_MIN)
                name = f"{operation} at {latency:g} ms, checksums on"
                what = f"at least {target:g}x fio's {FIO_OPERATION[operation]}"
                if found is None or outcome is Outcome.NOT_MEASURED:
                    note = f"{found.rounds if found else 0} rounds of both, {ROUNDS_MIN} are needed"
                    made.append(Verdict(name, what, Outcome.NOT_MEASURED, note=note))
                    continue
                made.append(
                    Verdict(
                        *(name, what, outcome, found.estimate, found.low, found.high, "x"),
                        note=limit(rows, operation, latency),
                    )
                )
        return made


def ours(
    context: Context,
    mount: Mount,
    turn: Turn,
    number: int,
    fixed: dict[str, Parameter],
    plans: dict[str, fio.Plan],
) -> None:
    """One turn; `plans` learns the threads and blocks it used, for fio to use the same."""
    hashed = updates()
    before, daemon = turn.driver.counts(), process_seconds(mount.daemon_pid)
    try:
        with unchecked() if fixed["side"] == UNCHECKED else contextlib.nullcontext():
            timed = one_turn(turn)
    except (TurnFailed, TimeoutError, OSError) as error:
        for operation, _ in TARGETS:
            context.record(operation, None, "MB/s", repeat=number, note=str(error), **fixed)
        return
    if fixed["side"] == UNCHECKED and updates() == hashed:
        note = "checksums could not be taken out: they are not computed where the stand-in goes"
        for operation, _ in TARGETS:
            context.record(operation, None, "MB/s", repeat=number, note=note, **fixed)
        return
    after, daemon_after = turn.driver.counts(), process_seconds(mount.daemon_pid)
    if fixed["side"] == OURS:
        plans.update(used(before, after, turn.driver.store_object.settings.write_threads_max))
    turn.remove_data()
    if number < 0:
        return
    wall = sum(one.seconds for one in timed.values())
    for operation, _ in TARGETS:
        one = timed[operation]
        mb_s = BATCH.total / one.seconds / 1e6
        context.record(operation, mb_s, "MB/s", repeat=number, note="", **fixed)
        cpu = one.cpu_seconds / (BATCH.total / 1e9)
        context.record(f"{operation}_cpu", cpu, "s/GB", repeat=number, note="", **fixed)
    if daemon is not None and daemon_after is not None:
        spent = (daemon_after - daemon) / (2 * BATCH.total / 1e9)
        context.record("mount_cpu", spent, "s/GB", repeat=number, note="", **fixed)
        busy = (sum(one.cpu_seconds for one in timed.values()) + daemon_after - daemon) / wall
        context.record("busy_cores", busy, "", repeat=number, note="", **fixed)


def used(
    before: Mapping[str, float], after: Mapping[str, float], writers_max: int
) -> dict[str, fio.Plan]:
    """Threads: as many as the depth chosen, and as packs were written at once. Blocks: the power of
    two next to what a call of ours moved."""

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    def block(moved: str, calls: str) -> int:
        mean = grown(moved) / max(1.0, grown(calls))
        return 1 << max(12, round(math.log2(max(1.0, mean))))

    writers = max(1, min(writers_max, int(grown("pack_operations_create"))))
    return {
        "load": fio.Plan(max(1, int(after["depth"])), block("bytes_read", "reads"), BATCH.total),
        "store": fio.Plan(writers, block("bytes_stored", "pack_operations_write"), BATCH.total),
    }


def plain(
    context: Context,
    mount: Mount,
    plans: Mapping[str, fio.Plan],
    number: int,
    fixed: dict[str, Parameter],
) -> None:
    """fio's turn: write, then read what was laid out before the first round."""
    for operation in ("store", "load"):
        plan = plans[operation]
        folder = f"fio-{operation}"
        (mount.path / folder).mkdir(exist_ok=True)
        if operation == "load":
            fio.lay_out(mount.backing / folder, BATCH.total)
            let_go_of_pages(mount.backing / folder)
        try:
            moved = fio.run(mount.path / folder, FIO_OPERATION[operation], plan)
        except fio.FioFailed as error:
            context.record(operation, None, "MB/s", repeat=number, note=str(error), **fixed)
            continue
        if operation == "store":
            shutil.rmtree(mount.backing / folder, ignore_errors=True)
        if number < 0:
            continue
        context.record(operation, moved.mb_s, "MB/s", repeat=number, note="", **fixed)
        cpu = moved.cpu_seconds / (moved.moved / 1e9)
        context.record(f"{operation}_cpu", cpu, "s/GB", repeat=number, note="", **fixed)
        how: dict[str, Parameter] = {"operation": operation, **fixed}
        context.record("threads", plan.threads, "", repeat=number, note="", **how)
        context.record("block", plan.block / (1 << 20), "MiB", repeat=number, note="", **how)


def limit(rows: Sequence[Row], operation: str, latency: float) -> str:
    """What the cores allow, from measured processor time of our process and the mount's."""
    cpu = values(rows, f"{operation}_cpu", side=OURS, latency_ms=latency)
    cores = values(rows, "cores")
    busy = values(rows, "busy_cores", side=OURS, latency_ms=latency)
    mount = values(rows, "mount_cpu", side=OURS, latency_ms=latency)
    if not cpu or not cores:
        return ""
    each = median(cpu) + (median(mount) if mount else 0.0)
    text = f"{median(cpu):.2f} processor seconds per GB in our process"
    text += f" and {median(mount):.2f} in the mount's" if mount else ""
    text += f": {cores[0] / each * 1e3:.0f} MB/s at most on {cores[0]:.0f} cores"
    return text + (f", of which {median(busy):.1f} were busy" if busy else "")


def _bandwidth(rows: Sequence[Row]) -> list[Figure]:
    latencies = [float(one) for one in choices(where(rows, "load"), "latency_ms")]
    if not latencies:
        return []
    lines = []
    fixed: dict[str, Any]
    for latency in latencies:
        for operation, _ in TARGETS:
            fixed = {"operation": operation, "latency_ms": latency}
            threads, block = (
                f"{median(found):.0f}" if (found := values(rows, metric, **fixed)) else "?"
                for metric in ("threads", "block")
            )
            for side in SIDES:
                fixed = {"side": side, "latency_ms": latency}
                speed = interval(rows, operation, **fixed)
                cpu = interval(rows, f"{operation}_cpu", **fixed)
                lines.append(
                    (
                        *(f"{latency:g}", operation, side, threads, block),
                        speed.text() if speed else "not measured",
                        cpu.text() if cpu else "not measured",
                    )
                )
    head = ("latency, ms", "operation", "side", "threads", "block, MiB", "MB/s")
    return [
        Figure(
            "bandwidth",
            "Load and store beside fio on the same mount",
            f"{BATCH} in one batch; fio reads and writes as much in our block size with as many "
            "threads as ours used: a file for each writer, a part of one file for each reader. "
            "Medians and 95 % intervals over rounds in turns. Processor time is that of each "
            "side's own process, without the mount's. fio's clock counts whole milliseconds and "
            "leaves out its threads' start.",
            draw=partial(_draw, list(rows), latencies),
            table=Table((*head, "processor s per GB"), tuple(lines)),
        )
    ]


def _draw(rows: Sequence[Row], latencies: Sequence[float], canvas: Any) -> None:
    plots = canvas.subplots(1, len(latencies), squeeze=False, sharey=True)[0]
    for axes, latency in zip(plots, latencies, strict=True):
        data = {
            side: {
                operation: values(rows, operation, side=side, latency_ms=latency)
                for operation, _ in TARGETS
            }
            for side in SIDES
        }
        bars(axes, ("load", "store"), data, y="MB/s", title=f"{latency:g} ms per operation")


def _profiles(case: Ceiling, rows: Sequence[Row]) -> list[Figure]:
    """Where the time goes, of every operation that does not reach its target."""
    short = [
        one.name for one in case.verdicts(rows) if one.outcome in (Outcome.MISSED, Outcome.WITHIN)
    ]
    made = []
    for latency in LATENCIES:
        for operation, _ in TARGETS:
            found = texts(rows, "profile", latency_ms=latency, operation=operation)
            if found and f"{operation} at {latency:g} ms, checksums on" in short:
                made.append(
                    Figure(
                        f"profile-{operation}-{latency:g}ms",
                        f"Where our time goes: {operation} at {latency:g} ms",
                        "The target was not reached. Samples of our threads in one batch of its "
                        "own; a line that calls the file system counts while it waits for it.",
                        text=f"{found[-1]}\n{limit(rows, operation, latency)}",
                    )
                )
    return made


CASE = Ceiling()
