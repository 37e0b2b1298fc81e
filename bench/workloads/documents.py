"""Documents: a fixed set, read again and again: in order, in reverse, at random by popularity.

The first pass reads every document once. In order, cyclic re-reading is the worst case of LRU: a
cache slightly smaller than the set has dropped each document just before it is read again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.workloads.workload import BLOCK_TOKENS, Fresh, Request, Workload, zipf_weights


@dataclass(frozen=True, slots=True)
class Documents:
    """Ten documents of 5,000 tokens, one question each time."""

    documents: int = 10
    document_tokens: int = 5000
    question_tokens: int = 60
    output_tokens: int = 128
    passes: int = 2
    """The first included; without meaning for Zipf."""
    order: str = "same"
    """same, reverse (every second pass backwards), or zipf."""
    zipf_exponent: float = 1.0
    zipf_reads: int = 200
    gap_seconds: float = 2.0
    block_tokens: int = BLOCK_TOKENS

    @property
    def statement(self) -> str:
        size = f"{self.documents} documents of {self.document_tokens} tokens"
        if self.order == "zipf":
            return f"{size}, {self.zipf_reads} reads by Zipf s={self.zipf_exponent:g}"
        return f"{size}, {self.passes} passes, order: {self.order}; one every {self.gap_seconds} s"


def generate(name: str, what: Documents, rng: random.Random) -> Workload:
    fresh = Fresh()
    texts = [fresh.blocks(what.document_tokens, what.block_tokens) for _ in range(what.documents)]
    requests = [
        Request(
            number * what.gap_seconds,
            what.document_tokens + what.question_tokens,
            what.output_tokens,
            tuple(texts[document]),
        )
        for number, document in enumerate(_reads(what, rng))
    ]
    return Workload(name, tuple(requests), what.statement, what.block_tokens)


def _reads(what: Documents, rng: random.Random) -> list[int]:
    everything = list(range(what.documents))
    if what.order == "zipf":
        weights = zipf_weights(what.documents, what.zipf_exponent)
        return rng.choices(everything, weights, k=what.zipf_reads)
    if what.order not in ("same", "reverse"):
        raise ValueError(f"no order {what.order!r}: same, reverse or zipf")
    reads: list[int] = []
    for number in range(what.passes):
        is_back = what.order == "reverse" and number % 2 == 1
        reads += reversed(everything) if is_back else everything
    return reads
