"""Visibility: from the commit in one process to the hit in another, and what keeping up costs.

One process commits, the next store of N in turn each time; this one looks. *Unasked*: only the
periodic refresh brings news, and the look itself is free of side effects. *Asked*: lookups that
miss, as requests do, which may bring a refresh forward. Beside it the adapters, ours and fs_native,
asked for the chunk until they have it. Instants are of one clock on one machine.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bench.core.adapters import FS_NATIVE, OURS, Arena, Driver, object_keys
from bench.core.case import FULL, QUICK, Context, Figure, Parameter, Row, Table, Verdict
from bench.core.children import Child, ChildFailed
from bench.core.mounts import Conditions, Mount, mounted
from bench.core.select import by_param, choices, interval, values, where
from bench.core.statistics import quantile
from bench.report.plots import curves

CHUNK_BYTES = 64 << 10
LOOK_SECONDS = 0.0005
GIVE_UP_SECONDS = 30.0
UNASKED, ASKED = "unasked", "asked"


class Visibility:
    """See the module's text."""

    name = "visibility"
    question = "How long from a commit in one process to the hit in another, and at what cost?"
    minutes: Mapping[str, float] = {QUICK: 1.1, FULL: 12}
    needs: tuple[str, ...] = ()
    selectable: tuple[str, ...] = (OURS, FS_NATIVE)
    random_by_nature = ("visible",)

    def run(self, context: Context) -> None:
        settings = (0.1, 1.0) if context.quick else (0.1, 0.3, 1.0, 3.0)
        crowds = (1, 64) if context.quick else (1, 4, 16, 64)
        latencies = (0.0,) if context.quick else (0.0, 1.0)
        repeats = 7 if context.quick else 20
        context.progress.total(
            len(latencies) * (len(settings) * len(crowds) * 2 + 2) * (repeats + 1)
        )
        if context.quick:
            context.left_out("refresh every 0.3 and 3 s, 4 and 16 writers, 1 ms per operation")
        with mounted(context.folder) as mount:
            for latency in latencies:
                for writers in crowds:
                    cell = f"{writers} writers at {latency:g} ms"
                    if context.cells.finished(cell):
                        continue
                    if latency and not mount.throttled:
                        context.missing("visible", "ms", mount.why, cell=cell, latency_ms=latency)
                        continue
                    self._crowd(context, mount, cell, writers, settings, latency, repeats)
                    context.cells.finish(cell)
                self._adapters(context, mount, latency, repeats)

    def _crowd(
        self,
        context: Context,
        mount: Mount,
        cell: str,
        writers: int,
        settings: Sequence[float],
        latency: float,
        repeats: int,
    ) -> None:
        root = mount.path / f"crowd-{writers}-{latency:g}"
        root.mkdir()
        arguments = {"adapter": OURS, "root": str(root), "count": writers, "bytes": CHUNK_BYTES}
        fixed: dict[str, Parameter] = {
            "cell": cell,
            "writers": writers,
            "latency_ms": latency,
            "adapter": OURS,
        }
        try:
            with Child("bench.core.writers", arguments) as child:
                child.hear()
                numbers = itertools.count(1)
                mount.apply(Conditions(latency))
                for refresh in settings:
                    fixed["refresh_s"] = refresh
                    self._reader(context, str(root), child, numbers, repeats, dict(fixed))
        except ChildFailed as error:
            context.record("visible", None, "ms", repeat=0, note=str(error), **fixed)
        finally:
            mount.apply(Conditions())

    def _reader(
        self,
        context: Context,
        root: str,
        child: Child,
        numbers: Iterator[int],
        repeats: int,
        fixed: dict[str, Parameter],
    ) -> None:
        from bench.core.writers import chunk_key
        from sharedfs_backend.catalog import ANY_SPACE
        from sharedfs_backend.settings import Settings
        from sharedfs_backend.store import DIRECT_LAYOUT, DIRECT_USE, Store

        settings = Settings(root=root, refresh_seconds=float(fixed["refresh_s"]), audit=False)
        with Store(settings=settings) as store:
            realm = store.realm(DIRECT_USE)
            store.wait_current()
            catalog = store.parts.catalog

            def unasked(number: int) -> bool:
                return bool(catalog.find(chunk_key(number), ANY_SPACE, realm=realm.digest).hits[0])

            def asked(number: int) -> bool:
                return store.lookup([chunk_key(number)], layouts=DIRECT_LAYOUT)[0]

            looks: dict[str, Callable[[int], bool]] = {UNASKED: unasked, ASKED: asked}
            for mode, look in looks.items():
                before, began = operations(store.stats()), time.monotonic()
                for repeat in range(repeats):
                    context.progress.step(f"{fixed['cell']}, refresh {fixed['refresh_s']} s")
                    pause(context.seed, repeat, float(fixed["refresh_s"]))
                    taken = visible_ms(child, next(numbers), look)
                    note = _unseen(taken)
                    context.record(
                        "visible", taken, "ms", repeat=repeat, note=note, mode=mode, **fixed
                    )
                spent = operations(store.stats()) - before
                rate = spent / (time.monotonic() - began)
                context.record("operations", rate, "1/s", repeat=None, note="", mode=mode, **fixed)

    def _adapters(self, context: Context, mount: Mount, latency: float, repeats: int) -> None:
        """What LMCache's lookups see, ours with its default settings."""
        cell = f"adapters at {latency:g} ms"
        if context.cells.finished(cell) or (latency and not mount.throttled):
            return
        for name in (OURS, FS_NATIVE):
            if not context.wants(name):
                continue
            root = mount.path / f"adapter-{name}-{latency:g}"
            root.mkdir()
            fixed: dict[str, Parameter] = {
                "cell": cell,
                "mode": "adapter",
                "latency_ms": latency,
                "adapter": name,
            }
            arguments = {"adapter": name, "root": str(root), "count": 1, "bytes": CHUNK_BYTES}
            module = "bench.core.writers"
            if name == OURS:  # through the adapter on both sides
                arguments["adapter"] = "ours adapter"
            arena = Arena(1, CHUNK_BYTES)
            try:
                with Child(module, arguments) as child, Driver(name, root, arena) as driver:
                    child.hear()
                    mount.apply(Conditions(latency))
                    for repeat in range(-1, repeats):
                        context.progress.step(f"{name} through LMCache's interface")
                        pause(context.seed, repeat, 1.0)
                        look = partial(adapter_looks, driver)
                        taken = visible_ms(child, repeat + 2, look)
                        note = _unseen(taken)
                        if repeat >= 0:
                            context.record(
                                "visible", taken, "ms", repeat=repeat, note=note, **fixed
                            )
            except (ChildFailed, TimeoutError) as error:
                context.record("visible", None, "ms", repeat=0, note=str(error), **fixed)
            finally:
                mount.apply(Conditions())
        context.cells.finish(cell)

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        return [*_settings(rows), *_beside(rows)]

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        return []


def _unseen(taken: float | None) -> str:
    return "" if taken is not None else f"not seen in {GIVE_UP_SECONDS:.0f} s"


def adapter_looks(driver: Driver, number: int) -> bool:
    keys = object_keys(number, 1)
    found = driver.lookup(keys).complete
    if found:
        driver.unlock(keys)
    return found


def visible_ms(child: Child, number: int, look: Callable[[int], bool]) -> float | None:
    """From the commit to the hit; None if there was none. Looking goes on while the child commits,
    as the others do; a hit seen before the writer could say it committed counts as 0."""
    child.tell({"chunk": number})
    give_up = time.monotonic() + GIVE_UP_SECONDS
    while not look(number):
        if time.monotonic() > give_up:
            child.hear()
            return None
        time.sleep(LOOK_SECONDS)
    seen = time.monotonic()
    committed: float = child.hear()["committed"]
    return max(0.0, (seen - committed) * 1e3)


def pause(seed: int, repeat: int, refresh_seconds: float) -> None:
    """So that commits fall anywhere between two refreshes."""
    time.sleep(random.Random(seed * 1009 + repeat).uniform(0.0, min(1.0, refresh_seconds)))


def operations(stats: Mapping[str, float]) -> float:
    """On the file system, by this process, whatever they were."""
    return sum(count for name, count in stats.items() if name.startswith("operations_"))


def _settings(rows: Sequence[Row]) -> list[Figure]:
    picked = where(rows, "visible", adapter=OURS, mode=UNASKED)
    if not picked:
        return []
    lines = []
    for latency in choices(picked, "latency_ms"):
        for refresh in choices(picked, "refresh_s"):
            for writers in choices(picked, "writers"):
                for mode in (UNASKED, ASKED):
                    fixed: dict[str, Any] = {
                        "latency_ms": latency,
                        "refresh_s": refresh,
                        "writers": writers,
                        "mode": mode,
                    }
                    found = values(rows, "visible", **fixed)
                    middle = interval(rows, "visible", **fixed)
                    rate = interval(rows, "operations", **fixed)
                    if middle is None:
                        continue
                    lines.append(
                        (
                            *(f"{latency:g}", f"{refresh:g}", f"{writers}", mode),
                            middle.text(),
                            f"{quantile(found, 1.0):.0f}",
                            f"{rate.estimate:.0f}" if rate else "not measured",
                        )
                    )
    head = ("latency, ms", "refresh, s", "writers", "look", "median, ms", "most, ms")
    return [
        Figure(
            "visible",
            "From a commit to the hit elsewhere",
            "Median and greatest delay by refresh setting and number of writers, with the reader's "
            "own file operations per second meanwhile (reading on, heartbeats). Commits fall at "
            "random between two refreshes. A store's own call returns after its commit, so a "
            "delay is known no better than the scheduling of three processes allows.",
            draw=partial(_draw, list(rows)),
            table=Table((*head, "operations/s"), tuple(lines)),
            inches=(9.0, 3.8),
        )
    ]


def _draw(rows: Sequence[Row], canvas: Any) -> None:
    left, right = canvas.subplots(1, 2)
    for axes, metric, label in ((left, "visible", "ms to the hit"), (right, "operations", "1/s")):
        data = {
            f"refresh {refresh:g} s, {mode}": by_param(
                rows, metric, "writers", refresh_s=refresh, mode=mode, latency_ms=0.0
            )
            for refresh in choices(where(rows, "visible", mode=UNASKED), "refresh_s")
            for mode in (UNASKED, ASKED)
        }
        curves(axes, data, x="writers", y=label, log_x=True, log_y=True)


def _beside(rows: Sequence[Row]) -> list[Figure]:
    picked = where(rows, "visible", mode="adapter")
    if not picked:
        return []
    lines = []
    for latency in choices(picked, "latency_ms"):
        for name in choices(picked, "adapter"):
            found = interval(picked, "visible", latency_ms=latency, adapter=name)
            text = found.text() if found else "not measured"
            lines.append((f"{latency:g}", str(name), text))
    return [
        Figure(
            "adapters",
            "The same through LMCache's interface",
            "One writer, default settings: lookups repeated until they hit. fs_native asks the "
            "file system each time and so sees a file as soon as it has its name; the price is an "
            "operation for every chunk of every lookup. Median and 95 % interval.",
            table=Table(("latency, ms", "adapter", "ms to the hit"), tuple(lines)),
        )
    ]


CASE = Visibility()
