"""Cells: which trace, world, start and policy are simulated, and one cell carried out.

A cell's trace is remade where it runs: read from the file and spread by the seed, or generated from
the seed. Values and one function; it must not know how results are shown.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from bench.routing.engine import World
from bench.routing.simulate import Outcome, bound, simulate
from bench.routing.traces import Request, Statistics, generate, read, spread
from router.constants import Constants
from router.policies import POLICIES

OVERLOAD_UTILISATION = 0.85
GENERATED = {
    # Many turns, much to reuse: the trace of the overload and the default one.
    "sessions": Statistics(),
    # Long documents asked about a few times, short turns, unequal popularity.
    "documents": Statistics(
        sessions_per_second=2.2,
        turns_mean=3.0,
        groups=60,
        group_blocks=30,
        first_tokens_median=1500.0,
        turn_tokens_median=500.0,
    ),
    # One system prompt of 20k tokens for everybody, and little else.
    "one prompt": Statistics(
        sessions_per_second=6.0,
        turns_mean=1.2,
        system_blocks=40,
        groups=0,
        first_tokens_median=2000.0,
    ),
}
SPEEDUP = {"sessions": 4.5, "documents": 2.0, "one prompt": 1.0}
"""So that eight replicas are moderately busy."""

STARTS = {
    "right": (1.0, 1.0, 1.0),
    # Factors on prefill costs, bandwidth and latency of what the router starts from.
    "3x slow": (3.0, 1 / 3, 3.0),
    "3x fast": (1 / 3, 3.0, 1 / 3),
    "3x mixed": (1 / 3, 1 / 3, 3.0),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation. `trace` is a name of `GENERATED`, "file", or "overload"."""

    group: str
    trace: str
    policy: str
    """A policy's name, or "bound"."""
    replicas: int = 8
    speed: float = 1.0
    gigabytes_per_second: float = 5.0
    """0: there is no shared tier."""
    total_gigabytes_per_second: float = float("inf")
    is_gated: bool = True
    start: str = "right"
    routers: int = 1
    tell: bool = False
    """Whether several tell each other, as the processes on one port do."""


MAIN = ("ttft", "least-pending-seconds", "weighted-3-2-2", "radix", "radix-smallest", "bound")


def cells(has_file: bool) -> Iterator[Cell]:
    """All of them, each once."""
    if has_file:
        for policy in (*POLICIES, "bound"):
            yield Cell("policies", "file", policy)
        for bandwidth in (1.0, 2.0, 5.0, 10.0, 20.0):
            for policy in ("ttft", "least-pending-seconds"):
                yield Cell("bandwidth", "file", policy, gigabytes_per_second=bandwidth)
        for policy in ("ttft", "least-pending-seconds"):
            yield Cell("no tier", "file", policy, gigabytes_per_second=0.0)
            yield Cell("always loading", "file", policy, gigabytes_per_second=1.0, is_gated=False)
            yield Cell("4 GB/s in all", "file", policy, total_gigabytes_per_second=4.0)
        for start in STARTS:
            yield Cell("learning", "file", "ttft", start=start)
        for routers in (1, 2, 4):
            for policy in ("ttft", "least-pending-seconds"):
                yield Cell("routers", "file", policy, routers=routers)
        for routers in (2, 4):
            yield Cell("routers", "file", "ttft", routers=routers, tell=True)
    for policy in MAIN:
        yield Cell("overload", "overload", policy, replicas=4)
    for trace in GENERATED:
        for policy in (*MAIN, "least-requests", "round-robin"):
            yield Cell("generated", trace, policy)
    if has_file:
        for replicas in (4, 8):
            for speed in (0.5, 0.7, 1.0, 1.4):
                for policy in (each for each in MAIN if each != "radix-smallest"):
                    yield Cell("speeds", "file", policy, replicas, speed)


def run(cell: Cell, seed: int, path: Path | None) -> Outcome:
    """One cell, one seed."""
    requests = trace_of(cell, seed, path)
    bandwidth = cell.gigabytes_per_second * 1e9
    world = World(
        shared_bytes_per_second=bandwidth or 1.0,
        total_bytes_per_second=cell.total_gigabytes_per_second * 1e9,
        has_shared_tier=bandwidth > 0,
    )
    if cell.policy == "bound":
        return bound(requests, world, cell.replicas)
    prefill, speed, latency = STARTS[cell.start]
    constants = Constants()
    constants = replace(
        constants,
        shared_blocks=1 << 20,  # what the tier holds is known, as from a catalog
        fixed_seconds=world.prefill.fixed_seconds * prefill,
        token_seconds=world.prefill.token_seconds * prefill,
        pair_seconds=world.prefill.pair_seconds * prefill,
        shared_bytes_per_second=world.shared_bytes_per_second * speed,
        shared_latency_seconds=world.shared_latency_seconds * latency,
        has_shared_tier=world.has_shared_tier,
        is_load_gated=cell.is_gated,
    )
    return simulate(
        requests,
        world,
        constants,
        policy=cell.policy,
        replicas=cell.replicas,
        seed=seed,
        routers=cell.routers,
        tell=cell.tell,
    )


def trace_of(cell: Cell, seed: int, path: Path | None) -> list[Request]:
    """The cell's requests in order of arrival."""
    rng = random.Random(seed)
    if cell.trace == "file":
        assert path is not None
        return spread(_file(path), cell.speed, rng)
    if cell.trace == "overload":
        requests = generate(GENERATED["sessions"], rng)
        return run_faster(requests, cell.replicas, OVERLOAD_UTILISATION)
    return faster(generate(GENERATED[cell.trace], rng), SPEEDUP[cell.trace] * cell.speed)


@lru_cache(maxsize=1)
def _file(path: Path) -> list[Request]:
    return read(path)


def faster(requests: list[Request], speed: float) -> list[Request]:
    """The same requests in less time."""
    return [replace(each, at=each.at / speed) for each in requests]


def run_faster(requests: list[Request], replicas: int, utilisation: float) -> list[Request]:
    """The same requests, at the rate at which the bound keeps its GPUs so busy."""
    low, high = 0.05, 50.0
    for _ in range(20):
        middle = (low * high) ** 0.5
        if bound(faster(requests, middle), World(), replicas).utilisation < utilisation:
            low = middle
        else:
            high = middle
    return faster(requests, low)
