"""Many nodes: the same driver on each, all on one namespace: aggregate bandwidth and latency.

Nodes are Ray actors where Ray is installed, spread over a cluster if there is one; else processes
of this machine, and named so. All store at once, find each other's prefixes, and load them at once;
every byte is checked. On one machine this shows what processes do to each other on its cores, not
what a file system does with many clients.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from bench.cases import nodes_says
from bench.core.case import FULL, QUICK, Context, Figure, Parameter, Row, Verdict
from bench.core.statistics import quantile
from bench.engine.launchers import Fleet, fleet, ray_problem
from bench.engine.node import Result, Task

COUNTS = {QUICK: (1, 2, 4), FULL: (1, 2, 4, 8)}
PREFIXES = {QUICK: 2, FULL: 4}
TOKENS = {QUICK: 2048, FULL: 4096}
ROUNDS = {QUICK: 3, FULL: 7}
"""After one that warms up."""


class Nodes:
    """See the module's text."""

    name = "nodes"
    question = "What do many nodes reach together on one namespace, and what does each wait?"
    minutes: Mapping[str, float] = {QUICK: 0.2, FULL: 10}
    needs: tuple[str, ...] = ()

    def run(self, context: Context) -> None:
        why = ray_problem()
        if why:
            context.missing("load_aggregate", "MB/s", why, nodes_are="Ray actors")
        if context.quick:
            context.left_out("8 nodes, more and longer prefixes")
        counts = COUNTS[context.profile]
        context.progress.total(len(counts))
        with fleet(max(counts)) as nodes:
            for count in counts:
                cell = f"{count} nodes"
                context.progress.step(f"{cell}, {nodes.kind}")
                if not context.cells.finished(cell):
                    self._count(context, nodes, count)
                    context.cells.finish(cell)

    def _count(self, context: Context, nodes: Fleet, count: int) -> None:
        rounds = 1 + min(context.rounds, ROUNDS[context.profile])
        root = context.folder / f"kv-{count}"
        tasks = [
            Task(
                str(root),
                rank,
                count,
                tokens=TOKENS[context.profile],
                prefixes=PREFIXES[context.profile],
                rounds=rounds,
            )
            for rank in range(count)
        ]
        try:
            results = nodes.run(tasks)
            for number in range(1, rounds):
                mine = [result for result in results if result.round == number]
                keep(context, mine, nodes.kind, count, number)
        except RuntimeError as error:
            context.missing("load_aggregate", "MB/s", str(error), nodes=count)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        return nodes_says.figures(rows)

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        return nodes_says.verdicts(rows)


def keep(context: Context, results: Sequence[Result], kind: str, count: int, number: int) -> None:
    """Rows of one round: bytes of all nodes over the time from the first to the last."""
    fixed: dict[str, Parameter] = {"nodes": count, "nodes_are": kind}

    def record(metric: str, value: float, unit: str) -> None:
        context.record(metric, value, unit, repeat=number, note="", **fixed)

    latencies = [seconds * 1e3 for result in results for seconds in result.load_seconds]
    stored = sum(result.stored_bytes for result in results)
    loaded = sum(result.loaded_bytes for result in results)
    store_span = max(r.store_until for r in results) - min(r.store_from for r in results)
    load_span = max(r.load_until for r in results) - min(r.load_from for r in results)
    record("store_aggregate", stored / 1e6 / max(store_span, 1e-9), "MB/s")
    record("load_aggregate", loaded / 1e6 / max(load_span, 1e-9), "MB/s")
    record("load_p50", quantile(latencies, 0.5), "ms")
    record("load_p99", quantile(latencies, 0.99), "ms")
    record("visible", max(result.visible_seconds for result in results) * 1e3, "ms")
    record("hosts", len({result.host for result in results}), "")
    record("missing_chunks", sum(result.missing_chunks for result in results), "")
    record("damaged_chunks", sum(result.damaged_chunks for result in results), "")


CASE = Nodes()
