"""Cold catalog: from a process's start to its first hit, by the number of chunks in the namespace.

Each measurement is a new process. The namespace holds a snapshot, as a fleet that has run for a
while leaves it, or only journals, as one just begun; the chunk asked for is the last one in them.
Beside it stand the adapters as LMCache makes them, ours with the largest catalog and fs_native,
which has none and instead asks the file system for every chunk at every lookup.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bench.catalog.data import WRITER
from bench.core import namespaces
from bench.core.adapters import FS_NATIVE, OURS, Arena, Driver, object_keys
from bench.core.case import FULL, QUICK, Context, Figure, Parameter, Row, Table, Verdict
from bench.core.children import Child, ChildFailed
from bench.core.mounts import Conditions, Mount, mounted
from bench.core.select import by_param, choices, interval, where
from bench.core.turns import rotated
from bench.report.plots import curves
from sharedfs_backend.layout import SnapshotName

SIZES = (1_000, 10_000, 100_000, 1_000_000)
SOURCES = ("snapshot", "journals")
BATCH, BATCH_BYTES = 64, 1 << 20
PHASES = ("imports", "opening", "catalog")


class Catalog:
    """See the module's text."""

    name = "catalog"
    question = "How long from a process's start to its first hit, by chunks in the namespace?"
    minutes: Mapping[str, float] = {QUICK: 1.7, FULL: 10}
    needs: tuple[str, ...] = ()
    selectable: tuple[str, ...] = (OURS, FS_NATIVE)

    def run(self, context: Context) -> None:
        rounds = min(context.rounds, 3 if context.quick else 9)
        latencies = (0.0, 1.0)
        cells = len(SOURCES) * (len(SIZES) * (1 if context.quick else 2) + int(context.quick))
        context.progress.total((cells + (2 if context.quick else 4)) * rounds)
        if context.quick:
            context.left_out("1 ms with less than 10^6 chunks, LMCache's adapters at 0 ms")
        with mounted(context.folder) as mount:
            for chunks in SIZES:
                for source in SOURCES:
                    some = latencies if chunks == SIZES[-1] or not context.quick else (0.0,)
                    self._size(context, mount, chunks, source, rounds, some)
            self._adapters(context, mount, rounds, latencies[1:] if context.quick else latencies)

    def _size(
        self,
        context: Context,
        mount: Mount,
        chunks: int,
        source: str,
        rounds: int,
        latencies: Sequence[float],
    ) -> None:
        cell = f"{chunks} chunks, {source}"
        if context.cells.finished(cell):
            return
        folder = f"{source}-{chunks}"
        journals = fill(mount, folder, chunks, source)
        held = chunks - chunks % namespaces.PACK_CHUNKS
        for latency in latencies:
            fixed: dict[str, Parameter] = {
                "cell": cell,
                "chunks": chunks,
                "source": source,
                "latency_ms": latency,
                "adapter": OURS,
            }
            if latency and not mount.throttled:
                context.missing("first_hit", "s", mount.why, **fixed)
                continue
            context.record("journals", journals, "", repeat=None, note="", **fixed)
            mount.apply(Conditions(latency))
            for number in range(rounds):
                context.progress.step(f"{cell} at {latency:g} ms, round {number + 1}")
                arguments = {
                    "adapter": "store",
                    "root": str(mount.path / folder),
                    "chunk": held - 1,
                }
                measure(context, arguments, number, fixed)
            mount.apply(Conditions())
        shutil.rmtree(mount.backing / folder, ignore_errors=True)
        context.cells.finish(cell)

    def _adapters(
        self, context: Context, mount: Mount, rounds: int, latencies: Sequence[float]
    ) -> None:
        """As LMCache makes them, imports of LMCache included but told apart."""
        cell = "adapters"
        if context.cells.finished(cell):
            return
        fill(mount, OURS, SIZES[-1], "snapshot")
        arena = Arena(BATCH, BATCH_BYTES)
        arena.fill(context.seed)
        names = [name for name in (OURS, FS_NATIVE) if context.wants(name)]
        for name in names:
            with Driver(name, mount.path / name, arena) as driver:
                driver.store(object_keys(0, BATCH), arena.objects)
        for latency in latencies:
            if latency and not mount.throttled:
                context.missing("first_hit", "s", mount.why, cell=cell, latency_ms=latency)
                continue
            mount.apply(Conditions(latency))
            for number in range(rounds):
                for name in rotated(names, number):
                    context.progress.step(f"{name} in LMCache at {latency:g} ms")
                    arguments = {
                        "adapter": name,
                        "root": str(mount.path / name),
                        "chunk": 0,
                        "count": BATCH,
                        "size": BATCH_BYTES,
                    }
                    fixed: dict[str, Parameter] = {
                        "cell": cell,
                        "adapter": name,
                        "source": "LMCache",
                        "latency_ms": latency,
                    }
                    measure(context, arguments, number, fixed)
        mount.apply(Conditions())
        context.cells.finish(cell)

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        return [*_sizes(rows), *_beside(rows)]

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        return []


def fill(mount: Mount, folder: str, chunks: int, source: str) -> int:
    """A namespace of that many chunks; how many journals hold them. It is created where it will be
    used, since a namespace keeps what its mount was like; what it holds comes from behind."""
    mount.apply(Conditions())
    namespaces.create(mount.path / folder)
    root = mount.backing / folder
    namespaces.add_snapshot(root, chunks)
    if source == "snapshot":
        return 0
    snapshot = root / SnapshotName(1, WRITER).path
    made = namespaces.add_journals(root, snapshot)
    snapshot.unlink()
    return made


def measure(
    context: Context, arguments: Mapping[str, Any], number: int, fixed: dict[str, Parameter]
) -> None:
    """One process: its phases and their sum, in seconds from its start."""
    try:
        with Child("bench.core.cold", arguments) as child:
            heard = child.hear()
    except ChildFailed as error:
        context.record("first_hit", None, "s", repeat=number, note=str(error), **fixed)
        return
    instants = (child.started, heard["imported"], heard["opened"], heard["found"])
    for phase, begin, end in zip(PHASES, instants, instants[1:], strict=False):
        context.record(phase, end - begin, "s", repeat=number, note="", **fixed)
    context.record("first_hit", instants[-1] - instants[0], "s", repeat=number, note="", **fixed)
    after = instants[-1] - instants[1]
    context.record("after_imports", after, "s", repeat=number, note="", **fixed)


def _sizes(rows: Sequence[Row]) -> list[Figure]:
    picked = [row for row in rows if "chunks" in row.params]
    latencies = [float(one) for one in choices(where(picked, "first_hit"), "latency_ms")]
    if not latencies:
        return []
    lines = []
    for source in SOURCES:
        for chunks in choices(where(picked, "first_hit", source=source), "chunks"):
            for latency in latencies:
                fixed: dict[str, Any] = {"source": source, "chunks": chunks, "latency_ms": latency}
                cells = [interval(picked, name, **fixed) for name in (*PHASES, "first_hit")]
                texts = (one.text() if one else "not measured" for one in cells)
                lines.append((source, f"{chunks}", f"{latency:g}", *texts))
    head = ("read from", "chunks", "latency, ms", *(f"{name}, s" for name in PHASES), "together, s")
    return [
        Figure(
            "cold",
            "From the start of a process to its first hit",
            "A new process opens the namespace and asks for its last chunk until it is a hit; no "
            "LMCache in it, so imports are ours alone. Medians and 95 % intervals of a few "
            "processes each; the machine's file cache is warm, what the mount adds is its latency. "
            "Journals are read in a random order, so the chunk may come before the rest.",
            draw=partial(_draw, picked, latencies),
            table=Table(head, tuple(lines)),
        )
    ]


def _draw(rows: Sequence[Row], latencies: Sequence[float], canvas: Any) -> None:
    plots = canvas.subplots(1, len(latencies), squeeze=False, sharey=True)[0]
    for axes, latency in zip(plots, latencies, strict=True):
        data = {
            source: by_param(rows, "first_hit", "chunks", source=source, latency_ms=latency)
            for source in SOURCES
        }
        title = f"{latency:g} ms per operation"
        curves(
            axes, data, x="chunks", y="until the first hit, s", log_x=True, log_y=True, title=title
        )


def _beside(rows: Sequence[Row]) -> list[Figure]:
    picked = where(rows, "first_hit", source="LMCache")
    if not picked:
        return []
    lines = []
    for latency in choices(picked, "latency_ms"):
        for name in choices(picked, "adapter"):
            fixed: dict[str, Any] = {"source": "LMCache", "latency_ms": latency, "adapter": name}
            cells = [interval(rows, metric, **fixed) for metric in ("imports", "after_imports")]
            texts = (one.text() if one else "not measured" for one in cells)
            lines.append((f"{latency:g}", str(name), *texts))
    return [
        Figure(
            "adapters",
            "The same as LMCache's adapter",
            f"From the start of a process to the first complete lookup of {BATCH} stored chunks. "
            f"Ours opens a namespace of {SIZES[-1]:,} chunks; fs_native has no catalog and asks "
            "the file system for each chunk, at every lookup again. Imports are LMCache's and "
            "torch's. Few processes each: read factors, not digits.",
            table=Table(
                ("latency, ms", "adapter", "imports, s", "then to the first hit, s"), tuple(lines)
            ),
        )
    ]


CASE = Catalog()
