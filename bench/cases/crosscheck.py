"""Crosscheck: is the order of the contenders on the throttled mount that of a real network's?

The throttled mount is an instrument of ours. Here the same batches run on it and on GlusterFS over
TCP, whose every message a proxy delays, at about the same time for each request. Only the order is
compared: the two cost different numbers of round trips for one call, and GlusterFS is no fast one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from bench.core.adapters import CONTENDERS
from bench.core.case import FULL, QUICK, Context, Figure, Outcome, Row, Table, Verdict
from bench.core.mounts import Conditions, Mount, mounted
from bench.core.select import interval, ratio, values
from bench.core.turns import Batch, Memory, store_lookup_load
from bench.proxy.gluster import Gluster, GlusterUnavailable
from bench.proxy.process import ProxyProcess
from bench.report.plots import bars

THROTTLE, GLUSTERFS = "throttled mount", "GlusterFS behind a proxy"
PLACES = (THROTTLE, GLUSTERFS)
OPERATIONS = {"store": "store", "lookup_load": "lookup + load"}
BATCH = Batch(32, 256 << 10)
LATENCY_MS = 2.0
"""Of each request on the throttled mount, of each message there and back through the proxy."""


class Delayed:
    """A GlusterFS client behind the proxy, as the cases know mounts. `backing` is the brick."""

    throttled = True
    why = ""
    daemon_pid: int | None = None

    def __init__(self, path: Path, brick: Path, proxy: ProxyProcess) -> None:
        self.path, self.backing, self._proxy = path, brick, proxy

    def apply(self, conditions: Conditions) -> None:
        if conditions.bandwidth_mb_s is not None:
            raise ValueError("the proxy delays; it limits no bandwidth")
        self._proxy.delay(conditions.latency_ms / 2)

    def counters(self) -> dict[str, int]:
        return {}


@contextlib.contextmanager
def delayed(folder: Path) -> Iterator[Mount]:
    """A brick, the proxy and a client. Raises GlusterUnavailable."""
    with Gluster(folder) as gluster, ProxyProcess(gluster.port) as proxy:
        yield Delayed(gluster.mount("client", proxy.port), gluster.brick, proxy)


class Crosscheck:
    """See the module's text."""

    name = "crosscheck"
    question = "Do the contenders come in the same order on a real network file system?"
    minutes: Mapping[str, float] = {QUICK: 0.6, FULL: 3}
    needs: tuple[str, ...] = ("throttle", "glusterfs")
    selectable: tuple[str, ...] = tuple(CONTENDERS)

    def run(self, context: Context) -> None:
        names = [name for name in CONTENDERS if context.wants(name)]
        rounds = min(5, context.rounds) if context.quick else context.rounds
        context.progress.total(len(PLACES) * len(names) * (rounds + 1))
        memory = Memory(BATCH, context.seed)
        with contextlib.ExitStack() as stack:
            for place in PLACES:
                if context.cells.finished(place):
                    continue
                try:
                    mount = stack.enter_context(_place(place, context.folder))
                except GlusterUnavailable as error:
                    context.missing("store", "ms", str(error), place=place)
                    continue
                store_lookup_load(
                    context,
                    mount,
                    names,
                    memory,
                    Conditions(LATENCY_MS),
                    cell=place,
                    rounds=rounds,
                    place=place,
                )
                context.cells.finish(place)

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        return [
            Figure(
                name="crosscheck",
                title="The same contenders on the throttled mount and on GlusterFS",
                sentence=f"Each stores and reloads {BATCH} with {LATENCY_MS:g} ms added to each "
                "request (throttled mount) or to each message there and back (GlusterFS over a "
                "delaying proxy). Only the order is to be compared: one call costs a different "
                "number of messages there.",
                draw=lambda figure: _draw(figure, rows),
                table=_table(rows),
            )
        ]

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        return [_verdict(rows, operation, title) for operation, title in OPERATIONS.items()]


def _place(place: str, folder: Path) -> contextlib.AbstractContextManager[Mount]:
    if place == THROTTLE:
        return mounted(folder / "throttle")
    return delayed(folder / "glusterfs")


def order(rows: Sequence[Row], operation: str, place: str) -> list[str]:
    """The contenders measured there, fastest first."""
    found = {name: interval(rows, operation, adapter=name, place=place) for name in CONTENDERS}
    return sorted(
        (name for name, one in found.items() if one is not None),
        key=lambda name: found[name].estimate,  # type: ignore[union-attr] # filtered above
    )


def contradictions(rows: Sequence[Row], operation: str) -> list[str]:
    """Pairs of which one is faster here and the other there, both beyond the 95 % interval."""
    wrong = []
    for one, other in combinations(CONTENDERS, 2):
        found = [ratio(rows, operation, "adapter", one, other, place=place) for place in PLACES]
        sides = {1 if each.low > 1 else -1 if each.high < 1 else 0 for each in found if each}
        if {1, -1} <= sides:
            wrong.append(f"{one} and {other}")
    return wrong


def _verdict(rows: Sequence[Row], operation: str, title: str) -> Verdict:
    orders = [order(rows, operation, place) for place in PLACES]
    note = "; ".join(
        f"{place}: {', '.join(one) or 'not measured'}"
        for place, one in zip(PLACES, orders, strict=True)
    )
    if set(orders[0]) != set(orders[1]) or len(orders[0]) < 2:
        outcome = Outcome.NOT_MEASURED
    elif wrong := contradictions(rows, operation):
        outcome, note = Outcome.MISSED, f"{note}. Contradicted by {'; '.join(wrong)}"
    else:
        outcome = Outcome.MET if orders[0] == orders[1] else Outcome.WITHIN
    return Verdict(f"order, {title}", "the same in both places", outcome, note=note)


def _table(rows: Sequence[Row]) -> Table:
    lines = []
    for operation, title in OPERATIONS.items():
        for place in PLACES:
            found = [interval(rows, operation, adapter=name, place=place) for name in CONTENDERS]
            cells = [f"{one.text()}" if one else "not measured" for one in found]
            lines.append((title, place, *cells))
    return Table(("operation", "where", *(f"{name}, ms" for name in CONTENDERS)), tuple(lines))


def _draw(figure: Any, rows: Sequence[Row]) -> None:
    for at, (operation, title) in enumerate(OPERATIONS.items()):
        data = {
            name: {place: values(rows, operation, adapter=name, place=place) for place in PLACES}
            for name in CONTENDERS
        }
        axes = figure.add_subplot(1, len(OPERATIONS), at + 1)
        bars(axes, PLACES, data, y="ms", log_y=True, title=title)


CASE = Crosscheck()
