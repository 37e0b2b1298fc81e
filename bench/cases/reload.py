"""Reload: what a prefix costs to store, find and load, beside LMCache's own file adapters.

Three parts: the batches of the acceptance targets at 0 and 1 ms; the slope, milliseconds of reload
for each millisecond an operation takes; and the sweep over latency, bandwidth, prefix length and
chunk size. Loads come from packs not held open. What the rows say is in
reload_says.py and reload_draws.py. `--only` takes contenders, and the parts batch, slope, sweep,
length, tier.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence

from bench.cases import reload_draws, reload_says
from bench.cases.reload_says import ACCEPTED, BESIDE, DISTINCT, LARGE, SLOPE_LATENCIES
from bench.core.adapters import CONTENDERS, FS_NATIVE, OURS, TUNED
from bench.core.case import FULL, QUICK, Context, Figure, Parameter, Row, Verdict
from bench.core.machine import memory_available_bytes
from bench.core.mounts import Conditions, Mount, mounted, plain_bandwidth_mb_s, what_serves
from bench.core.profile import Sampler
from bench.core.turns import Batch, Memory, Turn, TurnFailed, one_turn, rotated, turns
from bench.core.turns import store_lookup_load as take_turns
from bench.core.vllm_tier import VLLM_TIER

LLAMA_8B = 131_072
"""Bytes of KV per token, Llama 3.1 8B in bf16: 2 x 32 layers x 8 heads x 128 x 2 bytes."""
QWEN_1_5B = 28_672
"""Qwen2.5-1.5B in fp16: 2 x 28 layers x 2 heads x 128 x 2 bytes."""
CHUNK_TOKENS = 256
SLOPE_TOKENS = (4096, 16384, 65536)
LATENCIES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
QUICK_LATENCIES = (0.0, 1.0, 10.0)
SHARES = (1.0, 0.5, 0.25)
"""Of the mount's bandwidth."""
QUICK_LEAVES = (
    "slope of 65,536 tokens",
    "sweep at 0.1, 0.3 and 3 ms, at half the bandwidth, and with fs",
    "prefixes of 4k to 128k tokens in chunks of 64, 256 and 1,024",
    "vLLM's file tier with 256 x 512 KiB",
)
PROFILE_ROUNDS = 3
MEMORY_SHARE = 0.7
"""Of the memory available, what a cell may take: arenas and, on a memory file system, its data."""


class Reload:
    """See the module's text."""

    name = "reload"
    question = "What does a prefix cost to store, find and load, and how does latency add to it?"
    minutes: Mapping[str, float] = {QUICK: 5, FULL: 60}
    needs: tuple[str, ...] = ()
    selectable: tuple[str, ...] = (
        *("batch", "slope", "sweep", "length", "tier"),
        *dict.fromkeys((*CONTENDERS, *BESIDE, TUNED, VLLM_TIER)),
    )

    def run(self, context: Context) -> None:
        with mounted(context.folder) as mount:
            context.progress.total(_steps(context))
            context.text("mount", what_serves(mount))
            parts = {
                "batch": self._accepted,
                "slope": self._slopes,
                "sweep": self._sweep,
                "length": self._lengths,
                "tier": self._vllm_tier,
            }
            named = [name for name in parts if name in context.only]
            for name in named or parts:
                parts[name](context, mount)

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        return reload_draws.figures(rows)

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        return reload_says.verdicts(rows)

    # -- the acceptance batches ------------------------------------------------------------------

    def _accepted(self, context: Context, mount: Mount) -> None:
        for batch in ACCEPTED:
            for latency in (0.0, 1.0):
                cell = f"batch {batch} at {latency:g} ms"
                if not _begins(context, mount, cell, latency, batch=str(batch)):
                    continue
                memory = Memory(batch, context.seed)
                take_turns(
                    context,
                    mount,
                    _wanted(context, BESIDE),
                    memory,
                    Conditions(latency),
                    cell=cell,
                    rounds=context.rounds,
                    part="batch",
                    batch=str(batch),
                    latency_ms=latency,
                )
                self._profile(context, mount, memory, cell, latency)
                context.cells.finish(cell)

    def _profile(
        self, context: Context, mount: Mount, memory: Memory, cell: str, latency: float
    ) -> None:
        """Where our own time goes, in rounds of their own."""
        if OURS not in _wanted(context, BESIDE):
            return
        cores = len(os.sched_getaffinity(0))
        with turns((OURS,), mount, f"{cell} profile", memory) as made:
            turn = made[OURS]
            mount.apply(Conditions(latency))
            try:
                one_turn(turn)
                with Sampler(mount.daemon_pid) as storing:
                    keys = [turn.next_keys() for _ in range(PROFILE_ROUNDS)]
                    for some in keys:
                        turn.driver.store(some, memory.source.objects)
                turn.driver.close_files()
                turn.let_go()
                with Sampler(mount.daemon_pid) as loading:
                    for some in keys:
                        turn.driver.lookup(some)
                        turn.driver.load(some, memory.target.objects)
                        turn.driver.unlock(some)
            except (TurnFailed, TimeoutError, OSError) as error:
                context.missing("profile", "", str(error), cell=cell)
                return
        fixed: dict[str, Parameter] = {
            "cell": cell,
            "batch": str(memory.batch),
            "latency_ms": latency,
        }
        for operation, profile in (("store", storing), ("load", loading)):
            context.record(
                "profile",
                None,
                "text",
                repeat=None,
                note=profile.text(cores),
                operation=operation,
                **fixed,
            )

    # -- the slope -------------------------------------------------------------------------------

    def _slopes(self, context: Context, mount: Mount) -> None:
        """In each round each contender stores the prefix anew at 0 ms and loads it at every
        latency, so that no data of two contenders has to lie there at once."""
        for tokens in _slope_tokens(context):
            cell = f"slope {tokens}"
            if tokens > SLOPE_TOKENS[0] and not context.affords(f"slope of {tokens} tokens"):
                continue
            batch = Batch(tokens // CHUNK_TOKENS, CHUNK_TOKENS * LLAMA_8B)
            if not _begins(context, mount, cell, 1.0, prefix_tokens=tokens, part="slope"):
                continue
            wanted = batch.total + 2 * min(DISTINCT, batch.count) * batch.size
            if not _fits(context, cell, wanted, prefix_tokens=tokens, part="slope"):
                continue
            memory = Memory(batch, context.seed, DISTINCT)
            names = _wanted(context, _sloped(context, tokens))
            with turns(names, mount, cell, memory) as made:
                for number in range(-1, _slope_rounds(context, tokens)):
                    for name in rotated(names, number):
                        self._slope_turn(context, mount, made[name], number, tokens, cell)
            context.cells.finish(cell)

    def _slope_turn(
        self, context: Context, mount: Mount, turn: Turn, number: int, tokens: int, cell: str
    ) -> None:
        keys, objects = turn.next_keys(), turn.memory.target.objects
        mount.apply(Conditions())
        stored = turn.driver.store(keys, turn.memory.source.objects)
        latencies = SLOPE_LATENCIES if number >= 0 else (SLOPE_LATENCIES[0], SLOPE_LATENCIES[-1])
        for at, latency in enumerate(rotated([str(one) for one in latencies], number)):
            context.progress.step(f"{cell}, {turn.name} at {latency} ms, round {number + 1}")
            fixed: dict[str, Parameter] = {
                "cell": cell,
                "part": "slope",
                "adapter": turn.name,
                "prefix_tokens": tokens,
                "latency_ms": float(latency),
            }
            mount.apply(Conditions(float(latency)))
            if turn.name == OURS:  # the depth follows the mount: let it settle on this latency
                turn.driver.load(keys, objects)
                turn.driver.close_files()
            if at == 0:
                turn.memory.target.clear()  # what is compared is what the measured load brought
            turn.let_go()
            before, own = mount.counters(), turn.driver.counts()
            found, loaded = turn.driver.lookup(keys), turn.driver.load(keys, objects)
            after, own_after = mount.counters(), turn.driver.counts()
            turn.driver.unlock(keys)
            turn.driver.close_files()
            if number < 0:
                continue
            wrong = turn.memory.wrong_chunks() if at == 0 else 0
            if wrong or not (stored.complete and found.complete and loaded.complete):
                note = f"stored {stored.succeeded}, found {found.succeeded}, loaded "
                note += f"{loaded.succeeded} of {loaded.asked} chunks, {wrong} with other bytes"
                context.record("reload", None, "ms", repeat=number, note=note, **fixed)
                continue
            together = (found.seconds + loaded.seconds) * 1e3
            context.record("reload", together, "ms", repeat=number, note="", **fixed)
            for kind in sorted(after):
                count = after[kind] - before.get(kind, 0)
                context.record("operations", count, "", repeat=number, note="", kind=kind, **fixed)
            for kind in ("opens", "reads", "depth"):
                if kind in own_after:
                    own_count = own_after[kind] - (own.get(kind, 0) if kind != "depth" else 0)
                    context.record(f"own_{kind}", own_count, "", repeat=number, note="", **fixed)
        turn.remove_data()

    # -- the sweeps ------------------------------------------------------------------------------

    def _sweep(self, context: Context, mount: Mount) -> None:
        """Latency times bandwidth, 4,096 tokens of a small model."""
        batch = Batch(4096 // CHUNK_TOKENS, CHUNK_TOKENS * QWEN_1_5B)
        cell = "bandwidth of the mount"
        full = plain_bandwidth_mb_s(mount)
        if not context.cells.finished(cell):
            context.record("mount_bandwidth", full, "MB/s", cell=cell)
            context.cells.finish(cell)
        rounds = _few(context)
        for share in (SHARES[0], SHARES[-1]) if context.quick else SHARES:
            for latency in _sweep_latencies(context):
                cell = f"sweep {latency:g} ms, bandwidth {share:g}"
                limit = None if share == 1.0 else full * share
                if not _begins(context, mount, cell, latency, limit, part="sweep"):
                    continue
                if not context.affords(cell):
                    continue
                take_turns(
                    context,
                    mount,
                    _wanted(context, _sweepers(context)),
                    Memory(batch, context.seed),
                    Conditions(latency, limit),
                    cell=cell,
                    rounds=rounds,
                    part="sweep",
                    latency_ms=latency,
                    bandwidth_share=share,
                )
                context.cells.finish(cell)

    def _vllm_tier(self, context: Context, mount: Mount) -> None:
        """vLLM's own file tier beside ours; last, since importing vLLM takes its time."""
        if not (context.wants(VLLM_TIER) or context.wants("tier")):
            return
        for batch in (LARGE,) if context.quick else ACCEPTED:
            for latency in (0.0, 1.0):
                cell = f"tier {batch} at {latency:g} ms"
                if not _begins(context, mount, cell, latency, part="tier"):
                    continue
                if not context.affords(f"vLLM's {cell}"):
                    continue
                if why := _unavailable_tier():
                    context.missing("load", "ms", why, cell=cell, adapter=VLLM_TIER)
                    context.cells.finish(cell)
                    continue
                take_turns(
                    context,
                    mount,
                    (OURS, VLLM_TIER),
                    Memory(batch, context.seed),
                    Conditions(latency),
                    cell=cell,
                    rounds=_few(context),
                    part="tier",
                    batch=str(batch),
                    latency_ms=latency,
                )
                context.cells.finish(cell)

    def _lengths(self, context: Context, mount: Mount) -> None:
        """Prefix length times chunk size, full profile only."""
        if context.quick:
            for what in QUICK_LEAVES:
                context.left_out(what)
            return
        for tokens in (4096, 16384, 65536, 131072):
            for chunk in (64, 256, 1024):
                batch = Batch(tokens // chunk, chunk * QWEN_1_5B)
                for latency in (0.0, 1.0):
                    cell = f"length {tokens}, chunk {chunk}, {latency:g} ms"
                    fixed: dict[str, Parameter] = {
                        "prefix_tokens": tokens,
                        "chunk_tokens": chunk,
                        "part": "length",
                    }
                    if not _begins(context, mount, cell, latency, limit=None, **fixed):
                        continue
                    if not _fits(context, cell, 4 * batch.total, **fixed):
                        continue
                    take_turns(
                        context,
                        mount,
                        _wanted(context, CONTENDERS),
                        Memory(batch, context.seed),
                        Conditions(latency),
                        cell=cell,
                        rounds=min(5, context.rounds),
                        latency_ms=latency,
                        part="length",
                        prefix_tokens=tokens,
                        chunk_tokens=chunk,
                    )
                    context.cells.finish(cell)


def _unavailable_tier() -> str:
    """Why vLLM's own file tier cannot be driven here; "" if it can."""
    try:
        importlib.import_module("vllm.v1.kv_offload.tiering.fs.manager")
    except ImportError as error:
        return f"this vLLM has no file tier that can be driven by itself: {error}"
    return ""


def _few(context: Context) -> int:
    """Rounds of what has no target."""
    return min(3, context.rounds) if context.quick else context.rounds


def _slope_rounds(context: Context, tokens: int) -> int:
    most = 7 if tokens == SLOPE_TOKENS[0] or not context.quick else 3
    return min(context.rounds, most)


def _slope_tokens(context: Context) -> Sequence[int]:
    return SLOPE_TOKENS[:2] if context.quick else SLOPE_TOKENS


def _sloped(context: Context, tokens: int) -> Sequence[str]:
    quick = context.quick and tokens != SLOPE_TOKENS[0]
    return (OURS, FS_NATIVE) if quick else (OURS, FS_NATIVE, TUNED)


def _sweep_latencies(context: Context) -> Sequence[float]:
    return QUICK_LATENCIES if context.quick else LATENCIES


def _sweepers(context: Context) -> Sequence[str]:
    return (OURS, FS_NATIVE) if context.quick else CONTENDERS


def _wanted(context: Context, names: Sequence[str]) -> list[str]:
    return [name for name in names if context.wants(name)] or list(names)


def _begins(
    context: Context,
    mount: Mount,
    cell: str,
    latency: float,
    limit: float | None = None,
    **params: Parameter,
) -> bool:
    """Whether to measure the cell; where its conditions cannot be had that is recorded."""
    if context.cells.finished(cell):
        return False
    if mount.throttled or (latency == 0.0 and limit is None):
        return True
    context.missing("load", "ms", mount.why, cell=cell, latency_ms=latency, **params)
    context.cells.finish(cell)
    return False


def _fits(context: Context, cell: str, wanted: int, **params: Parameter) -> bool:
    available = int(memory_available_bytes() * MEMORY_SHARE)
    if wanted <= available:
        return True
    why = f"needs {wanted / (1 << 30):.0f} GiB of memory, {available / (1 << 30):.0f} may be taken"
    context.missing("load", "ms", why, cell=cell, **params)
    context.cells.finish(cell)
    return False


def _steps(context: Context) -> int:
    contenders = len(_wanted(context, CONTENDERS))
    batches = len(ACCEPTED) * 2 * (context.rounds + 1) * len(_wanted(context, BESIDE))
    slopes = sum(
        len(_sloped(context, tokens)) * (4 * _slope_rounds(context, tokens) + 2)
        for tokens in _slope_tokens(context)
    )
    sweep = (2 if context.quick else len(SHARES)) * len(_sweep_latencies(context))
    sweep *= _few(context) + 1
    sweep *= len(_wanted(context, _sweepers(context)))
    by_length = 0 if context.quick else 24 * (min(5, context.rounds) + 1) * contenders
    tier = 2 * (2 if context.quick else 4) * (_few(context) + 1)
    return batches + slopes + sweep + by_length + tier


CASE = Reload()
