"""One-shot: unique prompts, nothing in common: the case in which a cache only costs.

Batch classification and single questions are like this. Every store is in vain, so what is seen is
the price of trying.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.workloads.workload import BLOCK_TOKENS, Drawing, Workload


@dataclass(frozen=True, slots=True)
class OneShot:
    prompts: int = 200
    prompts_per_second: float = 1.0
    prompt_tokens_mean: float = 3000.0
    prompt_sigma: float = 0.8
    output_tokens_mean: float = 50.0
    prompt_tokens_max: int = 32_000
    block_tokens: int = BLOCK_TOKENS

    @property
    def statement(self) -> str:
        return (
            f"{self.prompts} unique prompts, {self.prompts_per_second:g}/s (Poisson), lengths "
            f"lognormal (mean {self.prompt_tokens_mean:g}, sigma {self.prompt_sigma:g})"
        )


def generate(name: str, what: OneShot, rng: random.Random) -> Workload:
    drawn = Drawing(rng, what.block_tokens)
    for at in drawn.arrivals(what.prompts_per_second, what.prompts):
        tokens = drawn.tokens(what.prompt_tokens_mean, what.prompt_sigma)
        tokens = min(tokens, what.prompt_tokens_max)
        drawn.ask(at, tokens, drawn.tokens(what.output_tokens_mean, 0.7), [])
    return drawn.workload(name, what.statement)
