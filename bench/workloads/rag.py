"""RAG: a system prompt, a few documents found for the question, the question.

Documents are shared by popularity (Zipf), but as prefixes only as far as their order agrees: two
requests that found the same documents in another order share the system prompt alone. `is_sorted`
is the deployment that orders what it found by identity, so that prefixes meet.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.workloads.workload import BLOCK_TOKENS, Drawing, Workload, zipf_weights


@dataclass(frozen=True, slots=True)
class Rag:
    questions: int = 300
    questions_per_second: float = 1.0
    documents: int = 200
    document_tokens_mean: float = 2000.0
    document_sigma: float = 0.5
    zipf_exponent: float = 1.0
    found: int = 3
    """Documents in a prompt."""
    is_sorted: bool = True
    system_tokens: int = 1024
    question_tokens_mean: float = 50.0
    answer_tokens_mean: float = 200.0
    block_tokens: int = BLOCK_TOKENS

    @property
    def statement(self) -> str:
        order = "by identity" if self.is_sorted else "by rank"
        return (
            f"{self.questions} questions, {self.questions_per_second:g}/s (Poisson), {self.found} "
            f"of {self.documents} documents each by Zipf s={self.zipf_exponent:g}, ordered {order},"
            f" lengths lognormal (mean {self.document_tokens_mean:g}, sigma "
            f"{self.document_sigma:g}), system prompt of {self.system_tokens} tokens"
        )


def generate(name: str, what: Rag, rng: random.Random) -> Workload:
    drawn = Drawing(rng, what.block_tokens)
    system = drawn.blocks(what.system_tokens)
    weights = zipf_weights(what.documents, what.zipf_exponent)
    lengths = [
        max(1, drawn.tokens(what.document_tokens_mean, what.document_sigma))
        // what.block_tokens
        * what.block_tokens
        for _ in range(what.documents)
    ]
    chains: dict[tuple[int, ...], list[int]] = {(): system}
    for at in drawn.arrivals(what.questions_per_second, what.questions):
        found = _found(what, weights, rng)
        blocks = list(_chain(found, chains, lengths, drawn))
        tokens = what.system_tokens + sum(lengths[document] for document in found)
        question = drawn.tokens(what.question_tokens_mean, 0.5)
        answer = drawn.tokens(what.answer_tokens_mean, 0.7)
        drawn.ask(at, tokens + question, answer, blocks)
    return drawn.workload(name, what.statement)


def _found(what: Rag, weights: list[float], rng: random.Random) -> tuple[int, ...]:
    """Distinct documents; the most popular first if sorted, else as drawn."""
    found: list[int] = []
    while len(found) < min(what.found, what.documents):
        (document,) = rng.choices(range(what.documents), weights)
        if document not in found:
            found.append(document)
    return tuple(sorted(found) if what.is_sorted else found)


def _chain(
    found: tuple[int, ...],
    chains: dict[tuple[int, ...], list[int]],
    lengths: list[int],
    drawn: Drawing,
) -> list[int]:
    """Blocks of a prompt with these documents in this order: the same for the same beginnings."""
    known = chains.get(found)
    if known is None:
        before = _chain(found[:-1], chains, lengths, drawn)
        known = before + drawn.blocks(lengths[found[-1]])
        chains[found] = known
    return known
