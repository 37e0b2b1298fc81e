"""Agents: loops of short outputs over a context that grows with each tool's answer.

Every step sends the whole context again: instructions and tool descriptions common to all agents of
a kind, then the task, then what the tools said. Steps follow each other within seconds; nearly all
of a prompt was there a step before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.workloads.workload import BLOCK_TOKENS, OUTPUT_TOKEN_SECONDS, Drawing, Workload


@dataclass(frozen=True, slots=True)
class Agents:
    runs: int = 60
    runs_per_second: float = 0.2
    kinds: int = 3
    """Kinds of agents, each with instructions of its own."""
    instruction_tokens: int = 6144
    task_tokens_mean: float = 800.0
    steps_mean: float = 12.0
    """Geometric."""
    tool_tokens_mean: float = 900.0
    tool_sigma: float = 1.0
    output_tokens_mean: float = 120.0
    tool_seconds_mean: float = 3.0
    """Exponential."""
    prompt_tokens_max: int = 100_000
    block_tokens: int = BLOCK_TOKENS

    @property
    def statement(self) -> str:
        return (
            f"{self.runs} runs of {self.kinds} kinds, {self.runs_per_second:g}/s (Poisson), "
            f"instructions of {self.instruction_tokens} tokens, steps geometric (mean "
            f"{self.steps_mean:g}), tool answers lognormal (mean {self.tool_tokens_mean:g}, sigma "
            f"{self.tool_sigma:g}) after {self.tool_seconds_mean:g} s (exponential)"
        )


def generate(name: str, what: Agents, rng: random.Random) -> Workload:
    drawn = Drawing(rng, what.block_tokens)
    kinds = [drawn.blocks(what.instruction_tokens) for _ in range(what.kinds)]
    for began_at in drawn.arrivals(what.runs_per_second, what.runs):
        at, blocks = began_at, list(rng.choice(kinds))
        tokens = what.instruction_tokens + drawn.tokens(what.task_tokens_mean, 0.7)
        while tokens <= what.prompt_tokens_max:
            output = drawn.tokens(what.output_tokens_mean, 0.7)
            drawn.ask(at, tokens, output, blocks)
            if rng.random() * what.steps_mean < 1.0:
                break
            tokens += output + drawn.tokens(what.tool_tokens_mean, what.tool_sigma)
            at += output * OUTPUT_TOKEN_SECONDS + rng.expovariate(1 / what.tool_seconds_mean)
    return drawn.workload(name, what.statement)
