"""Outcomes: what a decision says, and what the fleet shows of itself. Values only.

Everything here is plain: a view can be turned into JSON or metrics as it stands. It must not know
how a decision came about. Seconds, bytes and tokens; times are of the caller's monotonic clock.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from router.estimate import Estimate
from router.tickets import Ticket


class ReplicaState(enum.Enum):
    """Who may get requests. The health checks decide; load is never touched by it."""

    READY = "ready"
    DRAINING = "draining"  # finishes what it has
    DOWN = "down"
    HALF_OPEN = "half-open"  # takes one request, to see


@dataclass(init=False, slots=True, unsafe_hash=True)
class Decision:
    """A replica chosen, and already reserved under `ticket`."""

    replica: str
    costs: Estimate
    """Seconds: `queue_s`, `local_s`, `shared_s`, `compute_s`, `total_s`; and `cost_s`, which was
    compared. The parts overlap: `total_s` is not their sum."""
    runner_up: str | None
    runner_up_total_s: float | None
    local_tokens: int
    """Prompt tokens expected in the replica's GPU."""
    dram_tokens: int
    """Further ones expected in its host memory."""
    shared_tokens: int
    """Further ones to be loaded from the shared tier."""
    loads_shared: bool
    """False: the engine should not load; computing is as fast, or there is nothing."""
    ticket: Ticket

    def __init__(
        self,
        replica: str,
        costs: Estimate,
        runner_up: str | None,
        runner_up_total_s: float | None,
        local_tokens: int,
        dram_tokens: int,
        shared_tokens: int,
        loads_shared: bool,
        ticket: Ticket,
    ) -> None:
        self.replica = replica
        self.costs = costs
        self.runner_up = runner_up
        self.runner_up_total_s = runner_up_total_s
        self.local_tokens = local_tokens
        self.dram_tokens = dram_tokens
        self.shared_tokens = shared_tokens
        self.loads_shared = loads_shared
        self.ticket = ticket


@dataclass(frozen=True, slots=True)
class Overload:
    """Every replica would take longer than the objective. Nothing was reserved."""

    least_cost_s: float
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Observation:
    """What a replica's `/metrics` said. None: it did not say."""

    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None
    gpu_blocks: int | None = None
    block_tokens: int | None = None
    external_hit_tokens: float | None = None
    external_query_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica as the router sees it."""

    replica: str
    state: ReplicaState
    in_flight: int
    pending: int
    """Requests sent whose first token has not come."""
    pending_s: float
    """Seconds of prefill still to do, the router's own and what it infers of others'."""
    decodes: int
    fixed_s: float
    token_s: float
    pair_s: float
    shared_bytes_per_s: float
    shared_latency_s: float
    samples: int
    """Prefills learned from."""
    trust: float
    """Reported cached tokens for each predicted one, lately; 1 is perfect."""
    has_alarm: bool
    """Prediction and report have disagreed for long: the router's prefixes are not the engine's."""
    shadow_blocks: int
    kv_usage: float
    has_exact_residency: bool
    external_hit_rate: float | None
    predicted_tokens: int
    reported_tokens: int


@dataclass(frozen=True, slots=True)
class FleetView:
    """The fleet as plain values, for the admin endpoints, metrics and the page."""

    policy: str
    replicas: tuple[ReplicaView, ...]
    reservations: int
    decisions: Mapping[tuple[str, str], int]
    """How often (replica, policy) was chosen; a replica's count goes when it leaves."""
    overloads: int
    regret_seconds: float
    """Sum over answered requests of what the best would have cost less than the chosen, both with
    what is known after the fact about the chosen replica's prefix and speed."""
    regrets: int
    predicted_tokens: int
    """Cached tokens predicted, of the requests that reported theirs."""
    reported_tokens: int
    tree_blocks: int
    """Blocks the router remembers, of all replicas."""
    common_tokens: int = 0
    """The prefix most recent requests share."""
