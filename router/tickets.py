"""Tickets: one request's reservation on one replica, from the choice to its end.

Opaque to everybody but the fleet: it holds what was predicted, so that what happens can be compared
with it. A ticket is closed exactly once, whatever the order of the calls about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Ticket:
    """Mutable, of one event loop. Times are None until they come."""

    replica: str
    blocks: Sequence[int]
    block_tokens: float
    prompt_tokens: int
    output_tokens: int
    local_tokens: int
    host_tokens: int
    shared_tokens: int
    compute_s: float
    """Predicted GPU time."""
    io_s: float
    """Predicted time from dispatch until what is to be loaded is there."""
    load_s: float
    """The shared part of it, without waiting for other loads."""
    chosen_at: float
    ready_at: float = 0.0
    """When its loads should be done."""
    sent_at: float | None = None
    first_at: float | None = None
    began_at: float = 0.0
    """When its prefill could begin at the earliest; known at the first byte."""
    slow: float = 1.0
    """What running decodes made of a second of prefill, when it began."""
    is_open: bool = True
