"""Scale-out: replicas on private directories against one shared namespace, behind each policy.

Every decision is the router's own (`router.fleet`), every hit the product's own store's, in virtual
time; queues, prefills and decodes are simulated (bench/routing). The load grows with the replicas:
each brings its users. Engines load whatever their directory has. A reload takes what this directory
was measured to take, private or shared: what is compared is who finds what, not whose disk is
quicker.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.cases import scaleout_says
from bench.core.case import FULL, QUICK, Context, Figure, Parameter, Row, Verdict
from bench.engine.hardware import GPUS, prefill_on
from bench.engine.models import MODELS
from bench.engine.stored import StoredTier, Stores
from bench.engine.tier import loading_of, measured_tier
from bench.routing.engine import World
from bench.routing.simulate import Outcome, simulate
from bench.workloads import chat, rag
from bench.workloads.workload import Workload
from router.constants import Constants
from router.policies import POLICIES
from sharedfs_backend.economics import Loading

MODEL, GPU = "llama-3.1-8b-bf16", "A40"
REPLICAS = (1, 2, 4, 8)
QUICK_POLICIES = ("round-robin", "radix", "ttft")
CHUNK_BYTES = 256 << 10
"""Stands for a block's KV in the virtual stores, which have no cap here."""
GPU_BLOCKS, HOST_BLOCKS = 160, 160
"""10 GiB of KV each: what lies beyond is the directory's."""


@dataclass(frozen=True, slots=True)
class Place:
    """One simulation."""

    workload: str
    policy: str
    replicas: int
    is_shared: bool

    @property
    def directory(self) -> str:
        return "shared" if self.is_shared else "private"

    def __str__(self) -> str:
        return f"{self.workload}, {self.policy}, {self.replicas} replicas, {self.directory}"


class ScaleOut:
    """See the module's text."""

    name = "scaleout"
    question = "What do several replicas gain from one namespace over private directories?"
    minutes: Mapping[str, float] = {QUICK: 0.6, FULL: 20}
    needs: tuple[str, ...] = ()
    selectable: tuple[str, ...] = tuple(POLICIES)

    def run(self, context: Context) -> None:
        tier = measured_tier(context.folder)
        loading = loading_of(tier, MODELS[MODEL].kv_bytes_per_token)
        context.record("reload_bandwidth", tier.read_bytes_per_second / 1e6, "MB/s")
        context.record("reload_latency", loading.latency_seconds * 1e3, "ms")
        if context.quick:
            others = ", ".join(name for name in POLICIES if name not in QUICK_POLICIES)
            context.left_out(f"chat, three times as many requests, more seeds, and {others}")
            context.left_out("policies other than ttft with fewer replicas than the most")
        seeds = range(context.seed, context.seed + (1 if context.quick else 3))
        wanted = places(context)
        context.progress.total(len(wanted) * len(seeds))
        for place in wanted:
            for seed in seeds:
                cell = f"{place}, seed {seed}"
                context.progress.step(cell)
                if not context.cells.finished(cell):
                    self._place(context, place, loading, seed)
                    context.cells.finish(cell)

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        return scaleout_says.figures(rows)

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        return scaleout_says.verdicts(rows)

    def _place(self, context: Context, place: Place, loading: Loading, seed: int) -> None:
        workload = workload_of(place.workload, place.replicas, seed, context.quick)
        world = world_of(loading)
        folder = context.folder / "fleet"
        stores = Stores(
            folder,
            place.replicas,
            is_shared=place.is_shared,
            chunk_bytes=CHUNK_BYTES,
            seed=seed,
        )
        try:
            outcome = run(place, workload, world, stores, seed)
        finally:
            stores.close()
            shutil.rmtree(folder, ignore_errors=True)

        def keep(metric: str, value: float, unit: str) -> None:
            fixed: dict[str, Parameter] = {
                "workload": place.workload,
                "policy": place.policy,
                "replicas": place.replicas,
                "directory": place.directory,
            }
            context.record(metric, value, unit, repeat=seed, note="", **fixed)

        keep("ttft_mean", outcome.mean * 1e3, "ms")
        keep("ttft_p50", outcome.percentile(0.5) * 1e3, "ms")
        keep("ttft_p99", outcome.percentile(0.99) * 1e3, "ms")
        keep("hit_memory", outcome.local_hit, "")
        keep("hit_directory", outcome.shared_hit, "")
        keep("utilisation", outcome.utilisation, "")
        block_gb = world.kv_bytes_per_token * workload.block_tokens / 1e9
        keep("written", stores.chunks_written * block_gb, "GB")
        keep("duplicate", max(0, stores.chunks_duplicate) * block_gb, "GB")


def run(place: Place, workload: Workload, world: World, stores: Stores, seed: int) -> Outcome:
    """The workload through the router's decisions and the stores."""
    constants = replace(
        Constants(),
        fixed_seconds=world.prefill.fixed_seconds,
        token_seconds=world.prefill.token_seconds,
        pair_seconds=world.prefill.pair_seconds,
        kv_bytes_per_token=world.kv_bytes_per_token,
        shared_bytes_per_second=world.shared_bytes_per_second,
        shared_latency_seconds=world.shared_latency_seconds,
        gpu_tokens=world.gpu_blocks * workload.block_tokens,
        host_tokens=world.host_blocks * workload.block_tokens,
        has_shared_tier=place.is_shared,
        is_load_gated=False,
    )
    return simulate(
        workload.requests,
        world,
        constants,
        policy=place.policy,
        replicas=place.replicas,
        seed=seed,
        tiers=[StoredTier(world, stores, number) for number in range(place.replicas)],
    )


def world_of(loading: Loading) -> World:
    """One GPU's replica over a directory like this one."""
    model = MODELS[MODEL]
    return World(
        prefill=prefill_on(GPUS[GPU], model),
        kv_bytes_per_token=float(model.kv_bytes_per_token),
        host_bytes_per_second=20e9,
        gpu_blocks=GPU_BLOCKS,
        host_blocks=HOST_BLOCKS,
        shared_bytes_per_second=loading.bytes_per_second,
        shared_latency_seconds=loading.latency_seconds,
        is_always_loading=True,
    )


def places(context: Context) -> list[Place]:
    """Policies matter from two replicas on; the quick profile compares them with the most."""
    policies = QUICK_POLICIES if context.quick else tuple(POLICIES)
    workloads = ("rag",) if context.quick else ("rag", "chat")
    fewer = REPLICAS[-2] if context.quick else REPLICAS[0]
    return [
        Place(workload, policy, replicas, is_shared)
        for workload in workloads
        for replicas in REPLICAS
        for policy in policies
        for is_shared in (False, True)
        if context.wants(policy) and (policy == policies[-1] or replicas > fewer)
    ]


def workload_of(name: str, replicas: int, seed: int, quick: bool) -> Workload:
    """So many users for each replica, at one rate for each."""
    size = replicas * (1 if quick else 3)
    rng = random.Random(f"{name} {seed}")
    if name == "rag":
        what = rag.Rag(questions=120 * size, questions_per_second=0.35 * replicas, documents=120)
        return rag.generate(name, what, rng)
    conversations = 60 * size
    talk = chat.Chat(
        conversations=conversations,
        conversations_per_second=0.25 * replicas,
        system_tokens=2048,
        prompt_tokens_mean=500.0,
        think_seconds_mean=60.0,
    )
    return chat.generate(name, talk, rng)


CASE = ScaleOut()
