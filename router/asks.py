"""Asks: a request as the decision sees it. Values only; nobody assigns their fields.

It must not know HTTP, JSON or sockets. Prefix identity is a chain of blocks: block i's hash commits
to every byte before its end, so equal hashes at i mean equal prefixes up to there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(init=False, slots=True, unsafe_hash=True)
class Ask:
    """What is known about one request before it is sent anywhere."""

    blocks: Sequence[int]
    """Chain hashes (64 bits) of the prompt's whole prefix blocks, first to last."""
    block_tokens: float
    """Prompt tokens a block stands for: estimated from the characters, exact in exact mode."""
    prompt_tokens: int
    """L, the prompt's tokens: an estimate unless in exact mode."""
    output_tokens: int | None
    """The request's own limit on generated tokens, if it names one."""
    model: str
    affinity: int
    """What a policy that hashes requests to replicas hashes: the first block, or a session."""
    shared_tokens: int | None
    """Tokens of the prefix the shared tier holds, from the catalog; None where nobody asked it."""
    is_streamed: bool
    """Whether its first byte is its first token's; else it comes with the last."""

    def __init__(
        self,
        blocks: Sequence[int],
        block_tokens: float,
        prompt_tokens: int,
        output_tokens: int | None = None,
        model: str = "",
        affinity: int = 0,
        shared_tokens: int | None = None,
        is_streamed: bool = True,
    ) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.model = model
        self.affinity = affinity
        self.shared_tokens = shared_tokens
        self.is_streamed = is_streamed


@dataclass(init=False, slots=True, unsafe_hash=True)
class Usage:
    """What a replica reported about an answered request."""

    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None

    def __init__(
        self,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        completion_tokens: int | None = None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        self.completion_tokens = completion_tokens
