"""Asks: a request as the decision sees it. Values only.

It must not know HTTP, JSON or sockets. Prefix identity is a chain of blocks: block i's hash commits
to every byte before its end, so equal hashes at i mean equal prefixes up to there.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.values import value


@value
class Ask:
    """What is known about one request before it is sent anywhere."""

    blocks: Sequence[int]
    """Chain hashes (64 bits) of the prompt's whole prefix blocks, first to last."""
    block_tokens: float
    """Prompt tokens a block stands for: estimated from the characters, exact in exact mode."""
    prompt_tokens: int
    """L, the prompt's tokens: an estimate unless in exact mode."""
    output_tokens: int | None = None
    """The request's own limit on generated tokens, if it names one."""
    model: str = ""
    affinity: int = 0
    """What a policy that hashes requests to replicas hashes: the first block, or a session."""
    shared_tokens: int | None = None
    """Tokens of the prefix the shared tier holds, from the catalog; None where nobody asked it."""
    is_streamed: bool = True
    """Whether its first byte is its first token's; else it comes with the last."""


@value
class Usage:
    """What a replica reported about an answered request."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
