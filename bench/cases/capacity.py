"""Capacity: hit rate and time to first token against the cap: ours beside LRU and Belady's optimum.

The product's own store decides, under a virtual clock (bench/engine/virtual.py): real journals,
credits, sweeps and drop delays, hours of traffic in seconds, packs without payload. LRU and Belady
are computed over the same requests; LRU once with the whole cap, and once with the room that our
sweep leaves below it, so that what the reserve costs and what the order costs are seen apart.
A trace given by path (`--trace`) keeps its own times and is measured instead of generated requests.
Times are modelled: reloads by what this directory was measured to take, prefills by the stated GPU.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cases import capacity_says
from bench.cases.capacity_says import BELADY, LRU, LRU_SAME_ROOM, OURS, UNLIMITED
from bench.core.case import FULL, QUICK, Context, Figure, Parameter, Row, Verdict
from bench.engine.hardware import GPUS, prefill_on
from bench.engine.models import MODELS
from bench.engine.retention import belady_hits, lru_hits, unlimited_hits
from bench.engine.tier import loading_of, measured_tier
from bench.engine.virtual import VirtualStore
from bench.workloads import documents
from bench.workloads.registry import from_file, make
from bench.workloads.workload import Workload
from sharedfs_backend.economics import Loading, Prefill

MODEL, GPU = "llama-3.1-8b-bf16", "A40"
CHUNK_BYTES = 1 << 20
"""Stands for a block's KV; only the ratio to the cap matters."""
SHARES = {QUICK: (0.25, 0.5, 0.8, 1.0, 1.25), FULL: (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)}
"""Caps, as a share of all distinct blocks of the workload."""
CAP_BYTES_MIN = 64 << 20
SPAN_SECONDS = 3 * 3600.0
"""Workloads are spread over this: a cap holds minutes to hours of writes, as a real one does."""
FIRST_SECONDS = 10.0
"""The store is up for so long before the first request."""
TRACE_REQUESTS_MAX = 1000
"""Of a file, in the quick profile."""
ROOM = 0.8
"""Of the cap, what the default low watermark leaves filled after a sweep."""


@dataclass(frozen=True, slots=True)
class Timing:
    """From a number of cached blocks to a modelled time to first token."""

    prefill: Prefill
    loading: Loading
    block_tokens: int

    def ttft_seconds(self, prompt_tokens: int, found: int) -> float:
        """A reload is used where it is the quicker way (the router's gate)."""
        cached = min(found * self.block_tokens, prompt_tokens - 1)
        computed = self.prefill.seconds(prompt_tokens, prompt_tokens)
        loaded = self.loading.seconds(cached) + self.prefill.seconds(
            prompt_tokens - cached, prompt_tokens
        )
        return min(computed, loaded)


class Capacity:
    """See the module's text."""

    name = "capacity"
    question = "How do hit rate and time to first token depend on the cap, beside LRU and Belady?"
    minutes: Mapping[str, float] = {QUICK: 0.7, FULL: 15}
    needs: tuple[str, ...] = ()
    selectable: tuple[str, ...] = (
        *("cyclic", "zipf", "chat", "reverse", "agents", "rag"),
        *("one-shot", "mlperf-mix"),
    )
    takes_trace = True

    def run(self, context: Context) -> None:
        tier = measured_tier(context.folder)
        model = MODELS[MODEL]
        loading = loading_of(tier, model.kv_bytes_per_token)
        context.record("reload_bandwidth", tier.read_bytes_per_second / 1e6, "MB/s")
        context.record("reload_latency", loading.latency_seconds * 1e3, "ms")
        if context.quick:
            context.left_out("the other workloads; twice the size, more caps, more seeds")
        seeds = 1 if context.quick or context.trace else 3
        shares = SHARES[context.profile]
        names = [name for name in _workloads(context.quick) if context.wants(name)]
        names = [context.trace.stem] if context.trace else names
        context.progress.total(len(names) * seeds * len(shares))
        for name in names:
            for seed in range(context.seed, context.seed + seeds):
                workload = (
                    _replayed(context.trace, context.quick)
                    if context.trace
                    else workload_of(name, seed, context.quick)
                )
                timing = Timing(prefill_on(GPUS[GPU], model), loading, workload.block_tokens)
                for share in shares:
                    cell = f"{name} {seed} {share}"
                    if not context.cells.finished(cell):
                        self._cell(context, workload, timing, share, seed)
                        context.cells.finish(cell)
                    context.progress.step(f"{name}, cap {share:g} of the working set")

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        return capacity_says.figures(rows)

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        return capacity_says.verdicts(rows)

    def _cell(
        self, context: Context, workload: Workload, timing: Timing, share: float, seed: int
    ) -> None:
        cap_bytes = max(CAP_BYTES_MIN, int(share * workload.distinct_blocks * CHUNK_BYTES))
        blocks_max = cap_bytes // CHUNK_BYTES
        prompts = [request.blocks for request in workload.requests]
        lived = live(context, workload, cap_bytes, seed)
        found = {
            OURS: lived.hits,
            LRU: lru_hits(prompts, blocks_max),
            LRU_SAME_ROOM: lru_hits(prompts, int(ROOM * blocks_max)),
            BELADY: belady_hits(prompts, blocks_max),
            UNLIMITED: unlimited_hits(prompts),
        }

        def keep(metric: str, value: float, unit: str, **more: Parameter) -> None:
            fixed: dict[str, Parameter] = {"workload": workload.name, "cap_share": share, **more}
            context.record(metric, value, unit, repeat=seed, note="", **fixed)

        for policy, hits in found.items():
            times = [
                timing.ttft_seconds(request.prompt_tokens, hit)
                for request, hit in zip(workload.requests, hits, strict=True)
            ]
            mean = sum(times) / len(times)
            keep("hit_rate", sum(hits) / workload.blocks, "", policy=policy)
            keep("ttft_mean", mean * 1e3, "ms", policy=policy)
        keep("written_over_distinct", lived.chunks_written / workload.distinct_blocks, "")
        keep("refused_over_distinct", lived.chunks_refused / workload.distinct_blocks, "")
        keep("peak_over_cap", lived.peak_bytes / cap_bytes, "")


@dataclass(frozen=True, slots=True)
class Lived:
    """What the store did over a workload."""

    hits: list[int]
    chunks_written: int
    chunks_refused: int
    peak_bytes: int


def live(context: Context, workload: Workload, cap_bytes: int, seed: int) -> Lived:
    """The workload through the product's store: look up, store what was not found."""
    root = context.folder / "kv"
    hits, peak_bytes = [], 0
    with _quiet():
        store = VirtualStore(root, CHUNK_BYTES, seed=seed, cap_bytes=cap_bytes)
        try:
            for request in workload.requests:
                store.advance(FIRST_SECONDS + request.at)
                depth = store.depth(request.blocks)
                hits.append(depth)
                store.put(request.blocks[depth:])
                peak_bytes = max(peak_bytes, store.total_bytes)
        finally:
            store.close()
            shutil.rmtree(root, ignore_errors=True)
    return Lived(hits, store.chunks_written, store.chunks_refused, peak_bytes)


def workload_of(name: str, seed: int, quick: bool) -> Workload:
    """The named workload, spread over `SPAN_SECONDS`."""
    made = _made(name, seed, quick)
    factor = SPAN_SECONDS / max(1e-9, made.requests[-1].at)
    spread = tuple(replace(request, at=request.at * factor) for request in made.requests)
    return replace(made, requests=spread, statement=f"{made.statement}; spread over 3 hours")


def _replayed(path: Path, quick: bool) -> Workload:
    """The file's requests, from its beginning, whatever its times count from: every second up to
    the first one would be lived through."""
    made = from_file(path, requests_max=TRACE_REQUESTS_MAX if quick else None)
    first = made.requests[0].at
    moved = tuple(replace(request, at=request.at - first) for request in made.requests)
    return replace(made, name=path.stem, requests=moved)


def _workloads(quick: bool) -> tuple[str, ...]:
    most = ("cyclic", "zipf")
    return most if quick else Capacity.selectable


def _made(name: str, seed: int, quick: bool) -> Workload:
    size = 0.5 if quick else 1.0
    rng = random.Random(seed)
    if name in ("cyclic", "reverse"):
        order = "same" if name == "cyclic" else name
        what = documents.Documents(documents=round(120 * size), passes=6, order=order)
        return documents.generate(name, what, rng)
    if name == "zipf":
        reads = round(800 * size)
        what = documents.Documents(documents=round(200 * size), order="zipf", zipf_reads=reads)
        return documents.generate(name, what, rng)
    return make(name, seed, scale=(4.0 if name == "chat" else 2.0) * size)


@contextmanager
def _quiet() -> Iterator[None]:
    """Stores that are dropped for want of room are counted here, not logged."""
    logger = logging.getLogger("sharedfs_backend")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


CASE = Capacity()
