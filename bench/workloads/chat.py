"""Chat: conversations of several turns, ShareGPT-like lengths, BurstGPT-like arrivals.

Lengths are lognormal with ShareGPT's published means (161 tokens a prompt, 338 an answer: Kwon et
al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023,
section 6.1), turns geometric. Conversations begin with Gamma-distributed gaps, whose coefficient of
variation above 1 is the burstiness that "BurstGPT" (Wang et al., 2024) found in production. A turn
sends the whole conversation so far; the next one comes after the answer and some thinking.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.workloads.workload import BLOCK_TOKENS, OUTPUT_TOKEN_SECONDS, Drawing, Workload


@dataclass(frozen=True, slots=True)
class Chat:
    conversations: int = 200
    conversations_per_second: float = 1.0
    variation: float = 2.0
    """Of the gaps between conversations; 1 is Poisson."""
    turns_mean: float = 3.5
    think_seconds_mean: float = 20.0
    """Exponential."""
    system_tokens: int = 1024
    """Common to all."""
    prompt_tokens_mean: float = 161.0
    prompt_sigma: float = 1.3
    """Of the logarithm."""
    answer_tokens_mean: float = 338.0
    answer_sigma: float = 0.9
    prompt_tokens_max: int = 32_000
    block_tokens: int = BLOCK_TOKENS

    @property
    def statement(self) -> str:
        return (
            f"{self.conversations} conversations, {self.conversations_per_second:g}/s with Gamma "
            f"gaps (variation {self.variation:g}), turns geometric (mean {self.turns_mean:g}), "
            f"prompts lognormal (mean {self.prompt_tokens_mean:g}, sigma {self.prompt_sigma:g}), "
            f"answers lognormal (mean {self.answer_tokens_mean:g}, sigma {self.answer_sigma:g}), "
            f"system prompt of {self.system_tokens} tokens"
        )


def generate(name: str, what: Chat, rng: random.Random) -> Workload:
    drawn = Drawing(rng, what.block_tokens)
    system, count = drawn.blocks(what.system_tokens), what.conversations
    for began_at in drawn.arrivals(what.conversations_per_second, count, what.variation):
        at, tokens, blocks = began_at, what.system_tokens, list(system)
        while True:
            tokens += drawn.tokens(what.prompt_tokens_mean, what.prompt_sigma)
            if tokens > what.prompt_tokens_max:
                break
            answer = drawn.tokens(what.answer_tokens_mean, what.answer_sigma)
            drawn.ask(at, tokens, answer, blocks)
            if rng.random() * what.turns_mean < 1.0:
                break
            tokens += answer
            at += answer * OUTPUT_TOKEN_SECONDS + rng.expovariate(1 / what.think_seconds_mean)
    return drawn.workload(name, what.statement)
