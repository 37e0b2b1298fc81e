"""Tickets: one request's reservation on one replica, from the choice to its end.

Opaque to everybody but the fleet: it holds what was predicted, so that what happens can be compared
with it. A ticket is closed exactly once, whatever the order of the calls about it. One is made for
every request: constructors are written out (see `compiling`).
"""

from __future__ import annotations

from collections.abc import Sequence

from router.asks import Ask
from router.estimate import Estimate
from router.shadow import Node


class Rival:
    """What the runner-up promised, for hindsight."""

    __slots__ = ("compute_s", "io_s", "last")

    def __init__(self, last: Ticket | None, io_s: float, compute_s: float) -> None:
        self.last = last
        """The last request before ours there, had we gone there; None: nothing was."""
        self.io_s = io_s
        self.compute_s = compute_s


class Ticket:
    """Mutable, of one event loop. Times are None until they come."""

    __slots__ = (
        "began_at", "block_tokens", "blocks", "chosen_at", "compute_s", "decodes", "edge",
        "first_at", "host_tokens", "io_s", "io_waited_s", "is_open", "is_ours", "is_streamed",
        "known_blocks", "load_s", "local_s", "local_tokens", "number", "prompt_tokens",
        "ready_at", "replica", "rival", "sent_at", "shared_tokens", "was_idle",
    )  # fmt: skip

    def __init__(
        self,
        replica: str,
        blocks: Sequence[int],
        block_tokens: float,
        prompt_tokens: int,
        local_tokens: float,
        host_tokens: float,
        shared_tokens: float,
        compute_s: float,
        io_s: float,
        load_s: float,
        local_s: float,
        chosen_at: float,
        known_blocks: int,
        is_streamed: bool = True,
        io_waited_s: float = 0.0,
    ) -> None:
        self.replica = replica
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.prompt_tokens = prompt_tokens
        self.local_tokens = local_tokens
        self.host_tokens = host_tokens
        self.shared_tokens = shared_tokens
        self.compute_s = compute_s
        """Predicted GPU time, slowed by decodes."""
        self.io_s = io_s
        """Predicted time from dispatch until what is to be loaded is there."""
        self.load_s = load_s
        """The shared part of it, without waiting for other loads."""
        self.local_s = local_s
        """The part from host memory."""
        self.chosen_at = chosen_at
        self.known_blocks = known_blocks
        """Blocks of the prompt the replica was thought to hold before."""
        self.is_streamed = is_streamed
        self.io_waited_s = io_waited_s
        """Predicted wait for earlier loads."""
        self.rival: Rival | None = None
        self.ready_at = 0.0
        """When its loads should be done."""
        self.decodes = 0
        """Running beside its prefill."""
        self.sent_at: float | None = None
        self.first_at: float | None = None
        self.began_at: float | None = None
        """When its prefill could begin at the earliest; known at the first token."""
        self.was_idle = False
        """Nothing was before it when it came."""
        self.is_open = True
        self.is_ours = True
        """False: another process on the port chose, and told of it."""
        self.number = 0
        """Under which others were told of it; 0: they were not."""
        self.edge: Node | None = None
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
        costs.shared_s - costs.load_s,
    )
