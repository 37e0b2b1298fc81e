"""Workload: a named list of requests, and what generators share. Values and pure functions.

`Request` is that of the routing simulator: seconds, prompt and output tokens, one number for each
whole block of the prompt. Partial blocks are left out, since engines cache whole ones.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.routing.traces import BLOCK_TOKENS, Request

__all__ = [
    "BLOCK_TOKENS",
    "Drawing",
    "Fresh",
    "Request",
    "Workload",
    "gamma_arrivals",
    "lognormal_tokens",
    "zipf_weights",
]

OUTPUT_TOKEN_SECONDS = 0.025
"""Between two output tokens: when the next turn of a conversation can begin."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival."""

    name: str
    requests: tuple[Request, ...]
    statement: str
    """The distributions it was drawn from, or the file it was read from."""
    block_tokens: int = BLOCK_TOKENS

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def distinct_blocks(self) -> int:
        return len({block for request in self.requests for block in request.blocks})

    @property
    def blocks(self) -> int:
        return sum(len(request.blocks) for request in self.requests)

    @property
    def reuse(self) -> float:
        """Share of the blocks that an unlimited cache would have: those seen before."""
        return 1.0 - self.distinct_blocks / self.blocks if self.blocks else 0.0


class Fresh:
    """Numbers never used before, for blocks nobody has seen."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def blocks(self, tokens: int, block_tokens: int) -> list[int]:
        """As many as there are whole blocks in `tokens`."""
        return [next(self._numbers) for _ in range(tokens // block_tokens)]

    def extend(self, blocks: list[int], tokens: int, block_tokens: int) -> None:
        """A prompt that has grown to `tokens`: blocks that are now whole get their numbers."""
        while len(blocks) < tokens // block_tokens:
            blocks.append(next(self._numbers))


def lognormal_tokens(mean: float, sigma: float, rng: random.Random) -> int:
    """At least one token; `mean` is that of the distribution, `sigma` of its logarithm."""
    median = mean * math.exp(-(sigma**2) / 2)
    return 1 + int(median * rng.lognormvariate(0.0, sigma))


def zipf_weights(count: int, exponent: float) -> list[float]:
    """The i-th most popular is asked for in proportion to i ** -exponent."""
    return [(place + 1) ** -exponent for place in range(count)]


def gamma_arrivals(
    per_second: float, variation: float, count: int, rng: random.Random
) -> Iterator[float]:
    """Times of `count` arrivals whose gaps have this coefficient of variation (1: Poisson)."""
    shape = variation**-2
    at = 0.0
    for _ in range(count):
        at += rng.gammavariate(shape, 1.0 / (per_second * shape))
        yield at


class Drawing:
    """What a generator draws from one source of chance, and the requests it has drawn so far."""

    def __init__(self, rng: random.Random, block_tokens: int) -> None:
        self.rng, self._block_tokens = rng, block_tokens
        self._fresh, self._requests = Fresh(), list[Request]()

    def tokens(self, mean: float, sigma: float) -> int:
        """A lognormal length."""
        return lognormal_tokens(mean, sigma, self.rng)

    def arrivals(self, per_second: float, count: int, variation: float = 1.0) -> Iterator[float]:
        return gamma_arrivals(per_second, variation, count, self.rng)

    def blocks(self, tokens: int) -> list[int]:
        """New ones for a text of that length."""
        return self._fresh.blocks(tokens, self._block_tokens)

    def ask(self, at: float, tokens: int, output: int, blocks: list[int]) -> None:
        """A request. What its prompt has beyond `blocks` is new; they grow by that."""
        self._fresh.extend(blocks, tokens, self._block_tokens)
        self._requests.append(Request(at, tokens, output, tuple(blocks)))

    def workload(self, name: str, statement: str) -> Workload:
        return in_order(name, self._requests, statement, self._block_tokens)


def in_order(name: str, requests: Sequence[Request], statement: str, block_tokens: int) -> Workload:
    return Workload(
        name, tuple(sorted(requests, key=lambda each: each.at)), statement, block_tokens
    )
