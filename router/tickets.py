"""Tickets: one request's reservation on one replica, from the choice to its end.

Opaque to everybody but the fleet: it holds what was predicted, so that what happens can be compared
with it. A ticket is closed exactly once, whatever the order of the calls about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.asks import Ask
from router.estimate import Estimate
from router.shadow import Node


@dataclass(slots=True, eq=False)
class Rival:
    """What the runner-up promised, for hindsight."""

    last: Ticket | None
    """The last request before ours there, had we gone there; None: nothing was."""
    io_s: float
    compute_s: float


@dataclass(slots=True, eq=False)
class Ticket:
    """Mutable, of one event loop. Times are None until they come."""

    replica: str
    blocks: Sequence[int]
    block_tokens: float
    prompt_tokens: int
    local_tokens: float
    host_tokens: float
    shared_tokens: float
    compute_s: float
    """Predicted GPU time, slowed by decodes."""
    io_s: float
    """Predicted time from dispatch until what is to be loaded is there."""
    load_s: float
    """The shared part of it, without waiting for other loads."""
    local_s: float
    """The part from host memory."""
    chosen_at: float
    known_blocks: int
    """Blocks of the prompt the replica was thought to hold before."""
    is_streamed: bool = True
    rival: Rival | None = None
    ready_at: float = 0.0
    """When its loads should be done."""
    decodes: int = 0
    """Running beside its prefill."""
    sent_at: float | None = None
    first_at: float | None = None
    began_at: float | None = None
    """When its prefill could begin at the earliest; known at the first token."""
    was_idle: bool = False
    """Nothing was before it when it came."""
    io_waited_s: float = 0.0
    """Predicted wait for earlier loads."""
    is_open: bool = True
    edge: Node | None = None
    """Where its prompt ended in the tree when it was chosen."""

    @property
    def cached_tokens(self) -> float:
        """What the engine is expected to report as cached."""
        return self.local_tokens + self.host_tokens + self.shared_tokens

    @property
    def remembered_tokens(self) -> float:
        """What it would report if the shadow were right, however little that is trusted."""
        remembered = max(self.known_blocks * self.block_tokens, self.cached_tokens)
        return min(remembered, self.prompt_tokens - 1.0)


def ticket_for(ask: Ask, replica: str, costs: Estimate, known_blocks: int, now: float) -> Ticket:
    """The reservation of a request that was promised these costs."""
    return Ticket(
        replica,
        ask.blocks,
        ask.block_tokens,
        ask.prompt_tokens,
        costs.gpu_tokens,
        costs.host_tokens,
        costs.shared_tokens,
        costs.compute_s,
        costs.local_s + costs.shared_s,
        costs.load_s,
        costs.local_s,
        now,
        known_blocks,
        ask.is_streamed,
        io_waited_s=costs.shared_s - costs.load_s,
    )
