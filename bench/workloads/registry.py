"""The workloads by name, in the sizes the cases use. `make` is a function of name, seed, scale.

`scale` multiplies how much there is of it (conversations, questions, passes, seconds), never the
lengths or rates. Real files come by path: `from_file`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.workloads import agents, chat, documents, files, mlperf, oneshot, rag
from bench.workloads.workload import BLOCK_TOKENS, Workload, gamma_arrivals

Maker = Callable[[str, random.Random, float, int], Workload]


def _documents(order: str, count: int = 10) -> Maker:
    def made(name: str, rng: random.Random, scale: float, block_tokens: int) -> Workload:
        what = documents.Documents(documents=count, order=order, block_tokens=block_tokens)
        passes, reads = _scaled(what.passes, scale, 2), _scaled(what.zipf_reads, scale)
        return documents.generate(name, replace(what, passes=passes, zipf_reads=reads), rng)

    return made


def _chat(name: str, rng: random.Random, scale: float, block_tokens: int) -> Workload:
    what = chat.Chat(block_tokens=block_tokens)
    count = _scaled(what.conversations, scale)
    return chat.generate(name, replace(what, conversations=count), rng)


def _rag(is_sorted: bool) -> Maker:
    def made(name: str, rng: random.Random, scale: float, block_tokens: int) -> Workload:
        what = rag.Rag(is_sorted=is_sorted, block_tokens=block_tokens)
        return rag.generate(name, replace(what, questions=_scaled(what.questions, scale)), rng)

    return made


def _agents(name: str, rng: random.Random, scale: float, block_tokens: int) -> Workload:
    what = agents.Agents(block_tokens=block_tokens)
    return agents.generate(name, replace(what, runs=_scaled(what.runs, scale)), rng)


def _oneshot(name: str, rng: random.Random, scale: float, block_tokens: int) -> Workload:
    what = oneshot.OneShot(block_tokens=block_tokens)
    return oneshot.generate(name, replace(what, prompts=_scaled(what.prompts, scale)), rng)


def _mlperf(name: str, rng: random.Random, scale: float, block_tokens: int) -> Workload:
    what = mlperf.Mix(block_tokens=block_tokens)
    return mlperf.generate(name, replace(what, seconds=what.seconds * scale), rng)


WORKLOADS: dict[str, Maker] = {
    "documents": _documents("same"),
    "documents-reverse": _documents("reverse"),
    "documents-zipf": _documents("zipf", count=60),
    "chat": _chat,
    "rag": _rag(True),
    "rag-unsorted": _rag(False),
    "agents": _agents,
    "one-shot": _oneshot,
    "mlperf-mix": _mlperf,
}


def make(name: str, seed: int, *, scale: float = 1.0, block_tokens: int = BLOCK_TOKENS) -> Workload:
    """The named workload. ValueError for a name that is none."""
    if name not in WORKLOADS:
        raise ValueError(f"no workload {name!r}: one of {', '.join(WORKLOADS)}")
    return WORKLOADS[name](name, random.Random(f"{name} {seed}"), scale, block_tokens)


def from_file(path: Path, seed: int = 1, *, requests_max: int | None = None) -> Workload:
    """A trace (.jsonl), ShareGPT (.json) or BurstGPT (.csv) file. ValueError for anything else."""
    if path.suffix == ".jsonl":
        return files.hash_ids(path, requests_max=requests_max)
    if path.suffix == ".csv":
        return files.burstgpt(path, requests_max=requests_max)
    if path.suffix == ".json":
        arrivals = gamma_arrivals(1.0, 2.0, 1 << 30, random.Random(seed))
        return files.sharegpt(path, arrivals, conversations_max=requests_max)
    raise ValueError(f"{path}: give a .jsonl trace, a .json of ShareGPT or a .csv of BurstGPT")


def _scaled(count: int, scale: float, least: int = 1) -> int:
    return max(least, round(count * scale))
