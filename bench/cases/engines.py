"""Engines: two real vLLM engines, side by side with LMCache's own file adapter and with nothing.

For each way to keep KV a pair of replicas is started: `ours` on one shared namespace, `fs_native`
on one directory, `private` (ours, a namespace for each replica) and `none`. Prompts go to A, which
has to compute them, then to B, then to A again once its own caches have let them go. On the
throttled mount operations take 0, 1 and 10 ms meanwhile. Decoding is timed token by token on A
while B stores and loads.

Pairs cannot run at the same time on a small machine, so contenders are not interleaved as they are
in other cases: ratios between them carry the machine's drift. What the rows say: engines_says.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cases import engines_says
from bench.cases.engines_says import CHUNK_TOKENS, FS_NATIVE, NONE, OURS, PRIVATE, PROMPT_TOKENS
from bench.core.case import FULL, QUICK, Context, Figure, Row, Verdict
from bench.core.mounts import Conditions, Mount, mounted
from bench.demo.client import Completion, RequestFailed
from bench.demo.fleet import Fleet, FleetError, Replica
from bench.demo.model import ensure_model_apart
from bench.demo.prompts import tokens
from bench.demo.replica_spec import REPOSITORY, ReplicaSpec, plugin_adapter
from bench.demo.scenario import CATALOG_GAUGE, STORED_COUNTER, wait_until

DECODED_TOKENS = 96
BLOCKS = 70
"""Of 128 tokens in each engine's own cache: two prompts, so that a third drives out the first."""
L1_GIB = 0.2
"""Of LMCache's memory: three prompts."""
LATENCIES = (0.0, 1.0, 10.0)
DECODINGS = 4
PROMPTS_MIN = 4
"""At each condition; fewer would still lie in the caches when they are asked for again."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A contender at a place: "local" is the directory itself, "mount" the throttled one."""

    contender: str
    place: str

    @property
    def cell(self) -> str:
        return f"{self.contender} on {self.place}"


SETUPS = (
    *(Setup(contender, "local") for contender in (NONE, OURS, FS_NATIVE, PRIVATE)),
    *(Setup(contender, "mount") for contender in (OURS, FS_NATIVE)),
)


class Engines:
    """See the module's text."""

    name = "engines"
    question = "What do two real engines gain, what does storing cost them, and does decoding slow?"
    minutes: Mapping[str, float] = {QUICK: 0.1, FULL: 25}
    needs: tuple[str, ...] = ("lmcache",)
    selectable: tuple[str, ...] = tuple(dict.fromkeys(setup.contender for setup in SETUPS))

    def run(self, context: Context) -> None:
        if context.quick:  # a pair takes a minute to start, and one says nothing without its peers
            context.left_out("real engines: python -m bench run engines --full")
            return
        chosen = [setup for setup in SETUPS if context.wants(setup.contender)]
        context.progress.total(len(chosen))
        model = ensure_model_apart(REPOSITORY / ".demo" / "model")
        failed: list[str] = []
        with mounted(context.folder) as mount:
            for setup in chosen:
                context.progress.step(f"{setup.cell}: starting two engines")
                if context.cells.finished(setup.cell):
                    continue
                try:
                    self._measure(context, setup, mount, model)
                except (FleetError, RequestFailed) as error:  # the other pairs may do better
                    failed.append(f"{setup.cell}: {str(error).splitlines()[0]}")
                    context.missing("ttft", "ms", failed[-1], cell=setup.cell)
        if failed:
            raise FleetError("; ".join(failed))

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        return engines_says.figures(rows)

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        return engines_says.verdicts(rows)

    def _measure(self, context: Context, setup: Setup, mount: Mount, model: Path) -> None:
        if setup.place == "mount" and not mount.throttled:
            context.missing("ttft", "ms", mount.why, cell=setup.cell)
            context.cells.finish(setup.cell)
            return
        folder = (mount.path if setup.place == "mount" else mount.backing) / setup.cell
        folder.mkdir()
        with Fleet(context.folder / "logs" / setup.cell) as fleet:
            pair = fleet.start(*(_spec(setup, name, model, folder) for name in "AB"))
            Session(context, setup, mount, pair).run()
        context.cells.finish(setup.cell)


class Session:
    """One pair of replicas, from its warm-up to its last token."""

    def __init__(
        self, context: Context, setup: Setup, mount: Mount, pair: Sequence[Replica]
    ) -> None:
        self._context, self._setup, self._mount = context, setup, mount
        self._first, self._second = pair
        self._drawn = 0

    def run(self) -> None:
        latencies = LATENCIES if self._setup.place == "mount" else (0.0,)
        prompts = max(PROMPTS_MIN, self._context.rounds)
        for replica in (self._first, self._second):
            for length in (100, 200):
                replica.complete(tokens(f"warm {replica.name} {length}", length), tokens_max=4)
        for latency in latencies:
            self._mount.apply(Conditions(latency))
            self._reloads(latency, [self._prompt() for _ in range(prompts)])
        for latency in {latencies[0], latencies[-1]}:
            self._mount.apply(Conditions(latency))
            self._decoding(latency)
        self._mount.apply(Conditions())

    def _reloads(self, latency: float, prompts: Sequence[tuple[int, ...]]) -> None:
        for number, prompt in enumerate(prompts):
            self._ask("cold", self._first, prompt, latency, number)
            self._ask("other", self._second, prompt, latency, number)
        for number, prompt in enumerate(prompts):
            self._ask("own", self._first, prompt, latency, number)

    def _ask(
        self, kind: str, replica: Replica, prompt: tuple[int, ...], latency: float, number: int
    ) -> None:
        """One request; its TTFT, and the tokens that came from the tier, as a row each."""
        before, stored = replica.prompt_tokens("external_kv_transfer"), self._stored(replica)
        done = replica.complete(prompt, tokens_max=2)
        loaded = replica.prompt_tokens("external_kv_transfer") - before
        fixed: dict[str, Any] = {
            "cell": self._setup.cell,
            "adapter": self._setup.contender,
            "place": self._setup.place,
            "latency_ms": latency,
            "kind": kind,
        }
        record = self._context.record
        due = engines_says.due_tokens(self._setup.contender, kind)
        short = "" if loaded >= due else f"{loaded:.0f} of {due} tokens came from the tier"
        ttft = None if short else done.ttft_seconds * 1e3
        record("ttft", ttft, "ms", repeat=number, note=short, **fixed)
        record("loaded_tokens", float(loaded), "tokens", repeat=number, **fixed)
        if kind == "cold" and self._setup.contender != NONE:
            self._settle(replica, stored, len(prompt) // CHUNK_TOKENS)

    def _stored(self, replica: Replica) -> float:
        return sum(
            sample.value
            for sample in replica.server_metrics().samples
            if sample.name.startswith(STORED_COUNTER) and sample.name.endswith("_total")
        )

    def _settle(self, writer: Replica, before: float, chunks: int) -> None:
        """Until the prompt is stored, and the other replica can know it."""
        wait_until(
            writer.server_metrics,
            lambda _page: self._stored(writer) - before >= chunks,
            f"{writer.name} does not store {chunks} chunks",
            writer,
        )
        if self._setup.contender == OURS:
            wanted = writer.server_metrics().total(CATALOG_GAUGE)
            wait_until(
                self._second.server_metrics,
                lambda page: page.total(CATALOG_GAUGE) >= wanted,
                f"{self._second.name} does not find what {writer.name} stored",
                self._second,
            )

    def _decoding(self, latency: float) -> None:
        """Gaps between tokens on A, B being busy with prompts that are stored and loaded."""
        for number in range(DECODINGS):
            with self._busy_neighbour():
                done: Completion = self._first.complete(
                    self._prompt(256), tokens_max=DECODED_TOKENS
                )
            gaps = [b - a for a, b in zip(done.times[:-1], done.times[1:], strict=True)]
            for gap in gaps:
                self._context.record(
                    "gap",
                    gap * 1e3,
                    "ms",
                    repeat=number,
                    cell=self._setup.cell,
                    adapter=self._setup.contender,
                    place=self._setup.place,
                    latency_ms=latency,
                )

    @contextmanager
    def _busy_neighbour(self) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._keep_busy, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _keep_busy(self, over: threading.Event) -> None:
        while not over.is_set():
            for prompt in (self._prompt(1000),) * 2:
                self._second.complete(prompt, tokens_max=1)

    def _prompt(self, count: int = PROMPT_TOKENS) -> tuple[int, ...]:
        self._drawn += 1
        return tokens(f"{self._context.seed}/{self._setup.cell}/{self._drawn}", count)


def _spec(setup: Setup, name: str, model: Path, folder: Path) -> ReplicaSpec:
    cores = sorted(os.sched_getaffinity(0))
    return ReplicaSpec(
        name,
        model,
        core=str(cores["AB".index(name) % len(cores)]),
        adapter=_adapter(setup.contender, name, folder),
        l1_gib=L1_GIB,
        engine_arguments=("--num-gpu-blocks-override", str(BLOCKS)),
    )


def _adapter(contender: str, name: str, folder: Path) -> Mapping[str, object] | None:
    if contender == NONE:
        return None
    if contender == FS_NATIVE:
        return {"type": "fs_native", "base_path": str(folder)}
    return plugin_adapter(folder if contender == OURS else folder / name)


CASE = Engines()
