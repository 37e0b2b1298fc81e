"""Cost: what the first touch of a prefix pays, what a hit gains, and where reloading starts to win.

The synthetic engine moves real bytes of real shapes: a request misses, is stored, and comes again
to an empty memory tier. Between the two the product's files are closed and its pages gone from
behind the mount. Beside a store a fixed piece of single-threaded work runs, to see how far storing
slows what else the machine computes. Prefill seconds are modelled for stated GPUs, never measured.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from bench.cases import cost_says
from bench.core.adapters import FS_NATIVE, OURS, Driver
from bench.core.case import FULL, QUICK, Context, Figure, Parameter, Row, Verdict
from bench.core.mounts import Conditions, Mount, let_go_of_pages, mounted
from bench.engine.engine import SyntheticEngine, arena_of
from bench.engine.hardware import GPUS, prefill_on
from bench.engine.models import MODELS, Model

CHUNK_TOKENS = 256
LATENCIES_MS = (0.0, 1.0, 10.0)
LENGTHS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    QUICK: {"qwen2.5-1.5b-fp16": (1024, 8192), "llama-3.1-8b-bf16": (1024, 4096)},
    FULL: {
        "qwen2.5-1.5b-fp16": (1024, 4096, 16384),
        "llama-3.1-8b-bf16": (1024, 4096, 16384),
        "llama-3.1-70b-bf16-tp4": (1024, 4096, 8192),
    },
}
"""Tokens of a prefix, by model: full-size bytes of what fits a small machine."""
ROUNDS = {QUICK: 3, FULL: 9}
GPU = "A100"
"""The engine's own cost model needs one; the report models all."""
WORK_NUMBERS, WORK_TIMES = 200_000, 12


class Cost:
    """See the module's text."""

    name = "cost"
    question = "What does storing cost, from which hit rate and which length does a reload pay?"
    minutes: Mapping[str, float] = {QUICK: 0.7, FULL: 25}
    needs: tuple[str, ...] = ()
    selectable: tuple[str, ...] = (OURS, FS_NATIVE)

    def run(self, context: Context) -> None:
        rounds = min(context.rounds, ROUNDS[context.profile])
        lengths = LENGTHS[context.profile]
        adapters = (OURS,) if context.quick else (OURS, FS_NATIVE)
        if context.quick:
            context.left_out("fs_native, a model of 70B in four shards, prefixes of 16k tokens")
        with mounted(context.folder) as mount:
            latencies = LATENCIES_MS if mount.throttled else (0.0,)
            for latency in set(LATENCIES_MS) - set(latencies):
                context.missing("load", "ms", mount.why, latency_ms=latency)
            context.progress.total(len(lengths) * len(adapters) * (rounds + 1))
            for name, adapter in itertools.product(lengths, adapters):
                cell = f"{name}, {adapter}"
                if context.cells.finished(cell) or not context.wants(adapter):
                    continue
                if name != next(iter(lengths)) and not context.affords(cell):
                    continue
                with _rig(mount, adapter, MODELS[name], max(lengths[name])) as rig:
                    for number in range(-1, rounds):  # the first warms up
                        context.progress.step(f"{cell}, round {number + 1} of {rounds}")
                        for latency, tokens in itertools.product(latencies, lengths[name]):
                            found = rig.measure(tokens, latency)
                            if number >= 0:
                                _keep(context, rig, found, tokens, latency, number)
                context.cells.finish(cell)

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        return cost_says.figures(rows)

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        return cost_says.verdicts(rows)


@dataclass(frozen=True, slots=True)
class Touch:
    """Seconds of one prefix's first touch and of its return. `problem`: why they do not count."""

    miss_lookup: float
    submit: float
    store: float
    work_alone: float
    work_beside: float
    hit_lookup: float
    load: float
    problem: str = ""


class Rig:
    """One engine over one adapter on the mount."""

    def __init__(self, mount: Mount, adapter: str, model: Model, tokens_max: int) -> None:
        self.adapter, self.model, self._mount = adapter, model, mount
        self._folder = f"cost-{adapter}-{model.name}"
        arena = arena_of(model, CHUNK_TOKENS, tokens_max // CHUNK_TOKENS)
        self.driver = Driver(adapter, mount.path / self._folder, arena)
        self._engine = SyntheticEngine(
            self.driver.adapter,
            model,
            arena,
            chunk_tokens=CHUNK_TOKENS,
            prefill=prefill_on(GPUS[GPU], model),
        )
        self._numbers = itertools.count(1)
        self._work = worker()

    def measure(self, tokens: int, latency_ms: float) -> Touch:
        """A prefix nobody had before: missed, stored, gone from memory, loaded."""
        chunks = [next(self._numbers) for _ in range(tokens // CHUNK_TOKENS)]
        engine = self._engine
        engine.l1.clear()
        alone = self._work()
        self._mount.apply(Conditions(latency_ms))
        first = engine.serve(chunks, tokens + 1)
        beside = self._work()
        engine.drain()
        store = max(engine.store_seconds, default=0.0)
        engine.store_seconds.clear()
        engine.l1.clear()
        self.driver.close_files()
        let_go_of_pages(self._mount.backing / self._folder)
        again = engine.serve(chunks, tokens + 1)
        engine.drain()
        self._mount.apply(Conditions())
        self._remove()
        problem = ""
        if engine.failed_stores:
            problem = "a store failed"
        elif first.stored_chunks != len(chunks):
            problem = f"{first.stored_chunks} of {len(chunks)} chunks were given to the tier"
        elif again.l2_chunks != len(chunks):
            problem = f"{again.l2_chunks} of {len(chunks)} chunks were loaded"
        engine.failed_stores = 0
        return Touch(
            first.lookup_seconds,
            first.submit_seconds,
            store,
            alone,
            beside,
            again.lookup_seconds,
            again.load_seconds,
            problem,
        )

    def close(self) -> None:
        self._engine.drain()
        self.driver.close()

    def _remove(self) -> None:
        """What was stored, from behind the mount; ours keeps its journals."""
        self.driver.close_files()
        for path in (self._mount.backing / self._folder).rglob("*"):
            if path.is_file() and (path.parent.parent.name == "packs" or self.adapter != OURS):
                path.unlink()


def worker(now: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    """A fixed piece of single-threaded work that needs no interpreter lock; seconds it took."""
    data = np.random.default_rng(1).random(WORK_NUMBERS)

    def work() -> float:
        began = now()
        for _ in range(WORK_TIMES):
            np.sort(data)
        return now() - began

    return work


@contextmanager
def _rig(mount: Mount, adapter: str, model: Model, tokens_max: int) -> Iterator[Rig]:
    rig = Rig(mount, adapter, model, tokens_max)
    try:
        yield rig
    finally:
        mount.apply(Conditions())
        rig.close()


def _keep(
    context: Context, rig: Rig, touch: Touch, tokens: int, latency_ms: float, number: int
) -> None:
    fixed: dict[str, Parameter] = {
        "adapter": rig.adapter,
        "model": rig.model.name,
        "tokens": tokens,
        "latency_ms": latency_ms,
        "mb": rig.model.chunk_bytes(1) * rig.model.ranks * tokens / 1e6,
    }
    if touch.problem:
        context.record("load", None, "ms", repeat=number, note=touch.problem, **fixed)
        return
    for metric, seconds in (
        ("miss_lookup", touch.miss_lookup),
        ("submit", touch.submit),
        ("store", touch.store),
        ("hit_lookup", touch.hit_lookup),
        ("load", touch.load),
    ):
        context.record(metric, seconds * 1e3, "ms", repeat=number, note="", **fixed)
    slowed = touch.work_beside / touch.work_alone
    context.record("work_beside_store", slowed, "", repeat=number, note="", **fixed)


CASE = Cost()
