"""The fleet: chooses a replica for each request, reserves it, and learns from what happens.

One object of one event loop: `choose` decides and reserves without letting anything come between.
It must not know HTTP, URLs or health checks, and reads no clock: `now` is an argument.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from router.asks import Ask, Usage
from router.constants import Constants
from router.outcome import (
    Costs,
    Decision,
    FleetView,
    Observation,
    Overload,
    ReplicaState,
    ReplicaView,
)
from router.tickets import Ticket

__all__ = [
    "Constants",
    "Costs",
    "Decision",
    "Fleet",
    "FleetView",
    "Observation",
    "Overload",
    "ReplicaState",
    "ReplicaView",
    "Ticket",
    "Usage",
]


class Fleet:
    """Replicas, their load and what they are thought to hold."""

    def __init__(
        self,
        *,
        constants: Constants | None = None,
        policy: str = "ttft",
        slo_seconds: float | None = None,
        rng: random.Random,
    ) -> None:
        self.constants = constants or Constants()

    def join(
        self,
        replica: str,
        *,
        kv_bytes_per_token: float | None = None,
        gpu_tokens: int | None = None,
        host_tokens: int | None = None,
    ) -> None:
        """A replica that may be chosen from now on; known already: its figures are replaced."""
        raise NotImplementedError

    def leave(self, replica: str) -> None:
        """Gone. Its open tickets stay valid and may still be closed."""
        raise NotImplementedError

    def set_state(self, replica: str, state: ReplicaState) -> None:
        """Who may be chosen; load and what was learned stay as they are."""
        raise NotImplementedError

    def choose(
        self, ask: Ask, now: float, *, exclude: frozenset[str] = frozenset()
    ) -> Decision | Overload | None:
        """The replica for a request, reserved; None if no replica can take it."""
        raise NotImplementedError

    def sent(self, ticket: Ticket, now: float) -> None:
        """The request has left for the replica."""
        raise NotImplementedError

    def first_byte(self, ticket: Ticket, now: float) -> None:
        """The first token is here: its prefill is done."""
        raise NotImplementedError

    def ended(self, ticket: Ticket, now: float, usage: Usage | None) -> None:
        """Answered in full. Frees the reservation; learns from what was reported."""
        raise NotImplementedError

    def released(self, ticket: Ticket, now: float) -> None:
        """Failed or abandoned. Frees the reservation; nothing is learned from it."""
        raise NotImplementedError

    def observe(self, replica: str, seen: Observation, now: float) -> None:
        """What the replica's metrics said just now."""
        raise NotImplementedError

    def resident(
        self, replica: str, stored: Iterable[int], removed: Iterable[int], cleared: bool
    ) -> None:
        """Exactly what the replica's GPU gained and lost, in blocks of `Ask.blocks`."""
        raise NotImplementedError

    def view(self, now: float) -> FleetView:
        """The fleet as plain values."""
        raise NotImplementedError

    @property
    def reservations(self) -> int:
        """Open tickets."""
        raise NotImplementedError
