"""A mix like that of MLPerf Storage's KV-cache workload: chat, coding and document users.

Users in equal parts; each sends a context, gets an answer, thinks, and goes on in the same context
until that reaches the type's maximum, then begins anew. 15 % are interactive (95 % of requests
within 50 ms, 99 % within 100 ms of cache time), 35 % responsive (100, 200 ms), the rest batch (1 s,
5 s). Ranges are uniform, as published: they are the benchmark's, the code is not.

It differs from the benchmark in what is measured: there each entry is a file of its own, here the
requests go through an engine's calls.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.workloads.workload import BLOCK_TOKENS, OUTPUT_TOKEN_SECONDS, Drawing, Workload


@dataclass(frozen=True, slots=True)
class UserKind:
    """Uniform ranges: (least, most)."""

    name: str
    context_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    think_seconds: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Quality:
    """A class of service: cache time of 95 and 99 % of its requests."""

    name: str
    share: float
    p95_seconds: float
    p99_seconds: float


KINDS = (
    UserKind("chat", (512, 4096), (50, 200), (0.1, 0.5)),
    UserKind("coding", (4096, 25_000), (100, 500), (0.2, 1.0)),
    UserKind("documents", (4096, 16_384), (200, 800), (0.3, 1.5)),
)
QUALITIES = (
    Quality("interactive", 0.15, 0.05, 0.1),
    Quality("responsive", 0.35, 0.1, 0.2),
    Quality("batch", 0.5, 1.0, 5.0),
)


@dataclass(frozen=True, slots=True)
class Mix:
    users: int = 60
    seconds: float = 60.0
    turn_tokens: int = 200
    """A user's next message."""
    block_tokens: int = BLOCK_TOKENS

    @property
    def statement(self) -> str:
        kinds = ", ".join(
            f"{kind.name} {kind.context_tokens[0]}-{kind.context_tokens[1]} tokens"
            for kind in KINDS
        )
        return f"{self.users} users for {self.seconds:g} s in equal parts: {kinds}; uniform"


def quality_of(request_number: int) -> Quality:
    """The class of the n-th request: shares come out exactly over each 20 requests in a row."""
    place, before = request_number * 7 % 20 / 20, 0.0
    for quality in QUALITIES:
        before += quality.share
        if place < before - 1e-9:
            return quality
    return QUALITIES[-1]


def generate(name: str, what: Mix, rng: random.Random) -> Workload:
    drawn = Drawing(rng, what.block_tokens)
    for user in range(what.users):
        kind = KINDS[user % len(KINDS)]
        at = rng.uniform(0.0, min(1.0, what.seconds))
        tokens, blocks = 0, list[int]()
        while at < what.seconds:
            if tokens == 0 or tokens > kind.context_tokens[1]:
                tokens, blocks = rng.randint(*kind.context_tokens), []
            output = rng.randint(*kind.output_tokens)
            drawn.ask(at, tokens, output, blocks)
            tokens += output + what.turn_tokens
            at += output * OUTPUT_TOKEN_SECONDS + rng.uniform(*kind.think_seconds)
    return drawn.workload(name, what.statement)
