"""Traces: requests with their arrival times, from a file or generated with stated statistics.

A file has one JSON object a line: `timestamp` (ms), `input_length`, `output_length` (tokens),
`hash_ids` (one for each block of 512 prompt tokens, the last perhaps partial; equal ids at equal
places mean equal prefixes). Partial blocks are left out: engines cache whole ones. It must not know
routers or replicas.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 512
SECONDS_MAX = 1e10
"""Later than any epoch's now: a time beyond is in another unit or none."""
QUANTUM_SECONDS = 3.0
"""The published trace's timestamps are multiples of this."""


@dataclass(frozen=True, slots=True)
class Request:
    at: float
    """Seconds."""
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """One number for each whole block; equal numbers at equal places, equal prefixes."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a generated trace is made of: sessions that start at random and have several turns."""

    seconds: float = 2400.0
    sessions_per_second: float = 0.5
    turns_mean: float = 4.0
    """Geometric."""
    think_seconds_mean: float = 40.0
    """Between an answer's start and the next turn; exponential."""
    system_blocks: int = 2
    """Prompt blocks all requests share."""
    groups: int = 20
    group_blocks: int = 4
    """Prompt blocks the sessions of a group share after those; groups are of unequal size."""
    first_tokens_median: float = 3000.0
    turn_tokens_median: float = 1000.0
    tokens_sigma: float = 1.0
    """Of the logarithm: both are lognormal."""
    output_tokens_mean: float = 300.0
    """Exponential."""
    prompt_tokens_max: int = 120_000


def read(path: Path) -> list[Request]:
    """A trace file's requests, in its order. ValueError names the line that is none."""
    requests = []
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            try:
                requests.append(_request(json.loads(line)))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: no request ({error!r})") from None
    return requests


def _request(entry: Any) -> Request:
    """One line. Lengths of 0, as failed requests have in published traces, count as 1."""
    at, prompt, output = (
        float(entry["timestamp"]) / 1000.0,
        int(entry["input_length"]),
        int(entry["output_length"]),
    )
    if not 0.0 <= at < SECONDS_MAX or prompt < 0 or output < 0:
        raise ValueError("a time or length below 0, or no time at all")
    blocks = tuple(entry["hash_ids"][: prompt // BLOCK_TOKENS])
    return Request(at, max(1, prompt), max(1, output), blocks)


def spread(requests: Sequence[Request], speed: float, rng: random.Random) -> list[Request]:
    """The same, spread over each quantum at random and run `speed` times as fast."""
    moved = [
        replace(each, at=(each.at + rng.random() * QUANTUM_SECONDS) / speed) for each in requests
    ]
    return sorted(moved, key=lambda each: each.at)


def generate(statistics: Statistics, rng: random.Random) -> list[Request]:
    """A trace with these statistics; arrival times are not quantized."""
    requests: list[Request] = []
    fresh = iter(range(1 << 40))
    system = [next(fresh) for _ in range(statistics.system_blocks)]
    groups = [
        [next(fresh) for _ in range(statistics.group_blocks)] for _ in range(statistics.groups)
    ]
    weights = [1.0 / (place + 1) for place in range(statistics.groups)]
    at = 0.0
    while (at := at + rng.expovariate(statistics.sessions_per_second)) < statistics.seconds:
        blocks = list(system)
        if groups:
            blocks += rng.choices(groups, weights)[0]
        tokens = len(blocks) * BLOCK_TOKENS + _lognormal(
            statistics.first_tokens_median, statistics, rng
        )
        turn_at = at
        while True:
            tokens = min(tokens, statistics.prompt_tokens_max)
            while len(blocks) < tokens // BLOCK_TOKENS:
                blocks.append(next(fresh))
            output = 1 + int(rng.expovariate(1 / statistics.output_tokens_mean))
            requests.append(Request(turn_at, tokens, output, tuple(blocks)))
            if rng.random() * statistics.turns_mean < 1.0:
                break
            tokens += output + _lognormal(statistics.turn_tokens_median, statistics, rng)
            turn_at += output * 0.025 + rng.expovariate(1 / statistics.think_seconds_mean)
    requests.sort(key=lambda each: each.at)
    return [each for each in requests if each.at < statistics.seconds]


def _lognormal(median: float, statistics: Statistics, rng: random.Random) -> int:
    return 1 + int(median * rng.lognormvariate(0.0, statistics.tokens_sigma))
