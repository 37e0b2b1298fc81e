"""Node: one of many that use one namespace at the same time; the driver behind the `nodes` case.

    python -m bench.engine.node ROOT --rank 0 --of 4 [--prefixes 4] [--tokens 4096] [--model ...]
    python -m bench.engine.node -      # tasks as JSON lines on standard input, answers on output

Each node stores prefixes of its own, waits until it finds those of all others (through lookups
alone: no barrier is needed, and the wait is the visibility), then loads all of them, its own
excepted, in an order of its own. Bytes are checked. Started by hand it prints one JSON object for
each round: so `srun python -m bench.engine.node ROOT --rounds 5` makes a cluster's run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from bench.core.adapters import OURS, Driver
from bench.engine.engine import SyntheticEngine, arena_of
from bench.engine.models import MODELS
from sharedfs_backend.economics import Prefill

CHUNK_TOKENS = 256
MODEL, TOKENS, PREFIXES = "qwen2.5-1.5b-fp16", 4096, 4
POLL_SECONDS = 0.02
WAIT_SECONDS = 120.0
NO_PREFILL = Prefill(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Task:
    """What every node of a run does."""

    root: str
    rank: int
    of: int
    model: str = MODEL
    tokens: int = TOKENS
    prefixes: int = PREFIXES
    rounds: int = 1
    """The first of several warms up: nodes do not start at the same moment."""

    def chunks(self, round_: int, rank: int, prefix: int) -> range:
        """Chunk numbers of one prefix of one node in one round."""
        count = self.tokens // CHUNK_TOKENS
        first = ((round_ * self.of + rank) * self.prefixes + prefix) * count
        return range(first + 1, first + 1 + count)


@dataclass(slots=True)
class Result:
    """Of one node in one round. Times are since the epoch: spans of nodes can be joined."""

    rank: int
    round: int = 0
    host: str = ""
    stored_bytes: int = 0
    loaded_bytes: int = 0
    store_from: float = 0.0
    store_until: float = 0.0
    visible_seconds: float = 0.0
    """From the end of the own stores until everybody's prefixes were found."""
    load_from: float = 0.0
    load_until: float = 0.0
    load_seconds: list[float] = field(default_factory=list)
    """Lookup and load of each prefix."""
    missing_chunks: int = 0
    damaged_chunks: int = 0


def drive(task: Task) -> list[Result]:
    """Store, find, load, in every round. Everything is closed at the end; the files stay."""
    model = MODELS[task.model]
    arena = arena_of(model, CHUNK_TOKENS, task.tokens // CHUNK_TOKENS * task.prefixes)
    with Driver(OURS, Path(task.root), arena) as driver:
        engine = SyntheticEngine(
            driver.adapter,
            model,
            arena,
            chunk_tokens=CHUNK_TOKENS,
            prefill=NO_PREFILL,
            is_checked=True,
        )
        chunk_bytes = arena.size * model.ranks
        return [_round(task, engine, number, chunk_bytes) for number in range(task.rounds)]


def _round(task: Task, engine: SyntheticEngine, number: int, chunk_bytes: int) -> Result:
    count = task.tokens // CHUNK_TOKENS
    host = os.environ.get("SLURMD_NODENAME", os.uname().nodename)
    result = Result(task.rank, number, host)
    result.store_from = time.time()
    for prefix in range(task.prefixes):
        engine.serve(task.chunks(number, task.rank, prefix), task.tokens + 1)
    engine.drain()
    if engine.failed_stores:  # they would be waited for in vain
        raise RuntimeError(f"{engine.failed_stores} stores failed: is the directory full?")
    result.store_until = time.time()
    result.stored_bytes = count * chunk_bytes * task.prefixes
    engine.l1.clear()
    others = [
        task.chunks(number, rank, prefix)
        for rank in range(task.of)
        if rank != task.rank or task.of == 1
        for prefix in range(task.prefixes)
    ]
    _find_all(engine, others)
    result.visible_seconds = time.time() - result.store_until
    np.random.default_rng(task.rank).shuffle(others)
    result.load_from = time.time()
    for chunks in others:
        served = engine.serve(chunks, task.tokens + 1)
        result.load_seconds.append(served.lookup_seconds + served.load_seconds)
        result.loaded_bytes += served.l2_chunks * chunk_bytes
        result.missing_chunks += count - served.l2_chunks
        result.damaged_chunks += served.damaged_chunks
        engine.drain()
        engine.l1.clear()
    result.load_until = time.time()
    return result


def _find_all(engine: SyntheticEngine, prefixes: Sequence[range]) -> None:
    """Until a lookup of every prefix finds all of it. TimeoutError if that takes too long."""
    until = time.monotonic() + WAIT_SECONDS
    for chunks in prefixes:
        while not engine.finds(chunks):
            if time.monotonic() > until:
                raise TimeoutError(f"chunk {chunks[0]} was not found within {WAIT_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)


def answer(line: str) -> str:
    """The task in a line carried out: a JSON list of results, or an object with what went wrong."""
    try:
        return json.dumps([asdict(result) for result in drive(Task(**json.loads(line)))])
    except Exception as error:  # told to whoever sent the task; this node can take another
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.engine.node", description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--rank", type=int, default=int(os.environ.get("SLURM_PROCID", "0")))
    parser.add_argument("--of", type=int, default=int(os.environ.get("SLURM_NTASKS", "1")))
    parser.add_argument("--model", default=MODEL, choices=list(MODELS))
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--prefixes", type=int, default=PREFIXES)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args(arguments)
    if given.root == "-":
        for line in sys.stdin:
            print(answer(line), flush=True)
        return 0
    results = drive(Task(**vars(given)))
    for result in results:
        print(json.dumps(asdict(result)), flush=True)
    return 1 if any(each.missing_chunks or each.damaged_chunks for each in results) else 0


if __name__ == "__main__":
    sys.exit(main())
