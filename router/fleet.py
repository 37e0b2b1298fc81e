"""The fleet: chooses a replica for each request, reserves it, and learns from what happens.

One object of one event loop: `choose` decides and reserves without letting anything come between,
and its answer depends on the request, the fleet's state, the time and the given randomness alone.
It must not know HTTP, URLs or health checks, and reads no clock: `now` is an argument. All state is
bounded: by the replicas, their caches, and the open tickets.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Protocol

from router.appraisal import appraise, probe
from router.asks import Ask, Usage
from router.choice import least
from router.common import Common
from router.constants import Constants
from router.estimate import Estimate
from router.feedback import learn, regret
from router.learning import Usual
from router.outcome import (
    Decision,
    FleetView,
    Observation,
    Overload,
    ReplicaState,
    ReplicaView,
)
from router.policies import ESTIMATES_ALONE, POLICIES, RADIX_TOKENS, Standing
from router.replica import Replica
from router.shadow import Holder, Path, Tree
from router.tickets import Rival, Ticket, ticket_for
from router.views import view_of

__all__ = [
    "Constants",
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

EDGE_BLOCKS = 8
"""What an edge counts beside its blocks where the bound is one of memory: it takes some 700 bytes,
a block 8, and of the shortest prompts fit 13,000 (9 MB), of those of 64 KB 1,900 (2 MB)."""


class Listener(Protocol):
    """Hears of each request of one's own what the fleet does."""

    def placed(self, ticket: Ticket) -> None: ...

    def first(self, ticket: Ticket) -> None: ...

    def closed(self, ticket: Ticket, now: float) -> None: ...


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
        if policy not in POLICIES:
            raise ValueError(f"no policy {policy!r}: one of {', '.join(POLICIES)}")
        self.constants = constants or Constants()
        self._ungated = replace(self.constants, is_load_gated=False)
        self.policy = policy
        self.slo_seconds = slo_seconds
        self._score = POLICIES[policy]
        self._memory_tokens = RADIX_TOKENS if policy.startswith("radix") else 0
        self._rng = rng
        self._replicas: dict[str, Replica] = {}
        self._takers: list[Replica] | None = None
        """Those that take requests, kept while that depends on their states alone."""
        self._tree = Tree()
        self._shared = Holder(self.constants.shared_blocks, EDGE_BLOCKS)
        self._common = Common()
        self._answers = Usual()
        """Seconds from a stream's first token to its end."""
        self._turn = 0
        self._reservations = 0
        self._decisions: Counter[str] = Counter()
        self._overloads = 0
        self._regret_seconds = 0.0
        self._regrets = 0
        self._block_tokens = 1.0
        self.listener: Listener | None = None
        """Who is told what happens to one's own requests."""

    @property
    def reservations(self) -> int:
        """Open tickets of one's own."""
        return self._reservations

    def join(
        self,
        replica: str,
        *,
        kv_bytes_per_token: float | None = None,
        gpu_tokens: int | None = None,
        host_tokens: int | None = None,
    ) -> None:
        """A replica that may be chosen from now on; known already: its figures are replaced."""
        known = self._replicas.get(replica)
        if known is None:
            known = Replica(replica, self._usual())
            self._replicas[replica], self._takers = known, None
        if kv_bytes_per_token is not None:
            known.has_kv_of(self.constants, kv_bytes_per_token)
        if gpu_tokens is not None:
            known.gpu_tokens, known.has_known_gpu = float(gpu_tokens), True
        if host_tokens is not None:
            known.host_tokens = float(host_tokens)

    def _usual(self) -> Constants:
        """Where a new replica starts: the median of what was learned of the others."""
        prefills = [each.speed.prefill for each in self._replicas.values() if each.is_known()]
        if not prefills:
            return self.constants
        return replace(
            self.constants,
            fixed_seconds=median(each.fixed_seconds for each in prefills),
            token_seconds=median(each.token_seconds for each in prefills),
            pair_seconds=median(each.pair_seconds for each in prefills),
        )

    def leave(self, replica: str) -> None:
        """Gone. Its open tickets stay valid and may still be closed."""
        self._takers = None
        known = self._replicas.pop(replica, None)
        if known is not None:
            for holder in (known.gpu, known.host, known.memory):
                self._tree.clear(holder)
            del self._decisions[replica]

    def set_state(self, replica: str, state: ReplicaState) -> None:
        """Who may be chosen; load and what was learned stay as they are."""
        known = self._replicas.get(replica)
        if known is not None:
            known.goes(state)
            self._takers = None

    def choose(
        self, ask: Ask, now: float, *, exclude: frozenset[str] = frozenset()
    ) -> Decision | Overload | None:
        """The replica for a request, reserved; None if no replica can take it."""
        replicas = self._takers if self._takers and not exclude else self._among(exclude)
        if not replicas:
            return None
        path = self._tree.find(ask.blocks)
        depths = path.depths()
        shared = self._shared_tokens(ask, path, now)
        common = min(self._common.blocks, len(ask.blocks)) * ask.block_tokens
        estimates = appraise(
            ask, replicas, depths, shared, common, now, self.constants, self._answers.value
        )
        standings: Sequence[Standing] = ()
        if self.policy not in ESTIMATES_ALONE:
            standings = [
                each.standing(depths.get(each.memory, 0) * ask.block_tokens, now)
                for each in replicas
            ]
        scores = self._score(estimates, standings, ask.affinity, self._turn)
        best, second = least(scores, self._rng)
        if self.slo_seconds is not None:
            quickest = min(each.total_s for each in estimates)
            if quickest > self.slo_seconds:
                self._overloads += 1
                return Overload(quickest, quickest - self.slo_seconds)
        chosen, costs = replicas[best], estimates[best]
        if self.constants.is_load_gated and costs.spared_tokens and chosen.may_probe(now):
            costs = probe(chosen, costs, now, self._ungated)
        rival = None if second is None else replicas[second]
        theirs = None if second is None else estimates[second]
        return self._reserve(ask, path, depths, chosen, costs, rival, theirs, now)

    def _among(self, exclude: frozenset[str]) -> list[Replica]:
        """Those that take a request, none of the excluded."""
        known = self._replicas.values()
        takers = [each for each in known if each.takes_requests() and each.name not in exclude]
        if not exclude and all(each.state is not ReplicaState.HALF_OPEN for each in known):
            self._takers = takers
        return takers

    def _shared_tokens(self, ask: Ask, path: Path, now: float) -> float:
        """S: the catalog's word, or what the router has seen prefilled."""
        if not self.constants.has_shared_tier:
            return 0.0
        if ask.shared_tokens is not None:
            return ask.shared_tokens
        return path.depth_since(self._shared, now) * ask.block_tokens

    def _reserve(
        self,
        ask: Ask,
        path: Path,
        depths: dict[Holder, int],
        chosen: Replica,
        costs: Estimate,
        rival: Replica | None,
        theirs: Estimate | None,
        now: float,
    ) -> Decision:
        ticket = ticket_for(ask, chosen.name, costs, _held(chosen, depths), now)
        if rival is not None and theirs is not None:
            last = next(reversed(rival.load.pending), None)
            ticket.rival = Rival(last, theirs.local_s + theirs.shared_s, theirs.compute_s)
        self._placed(ticket, path, chosen, now)
        if self.listener is not None:
            self.listener.placed(ticket)
        self._turn += 1
        self._reservations += 1
        self._decisions[chosen.name] += 1
        return Decision(
            chosen.name,
            costs,
            None if rival is None else rival.name,
            None if theirs is None else theirs.total_s,
            int(costs.gpu_tokens),
            int(costs.host_tokens),
            int(costs.shared_tokens),
            costs.shared_tokens > 0,
            ticket,
        )

    def _placed(self, ticket: Ticket, path: Path, chosen: Replica, now: float) -> None:
        chosen.load.add(ticket, now)
        chosen.size(ticket.block_tokens, self._memory_tokens)
        holders = [chosen.gpu, chosen.host]
        if self._memory_tokens:
            holders.append(chosen.memory)
        ticket.edge = self._tree.touch(path, holders)
        self._common.saw(ticket.blocks)
        self._block_tokens = ticket.block_tokens

    def heard(self, ticket: Ticket, now: float) -> bool:
        """Another router chose a replica: its load and prefixes are what that makes them. False if
        the replica is not known here. The ticket is closed as one's own is, by `released`; nothing
        is learned from it."""
        chosen = self._replicas.get(ticket.replica)
        if chosen is None:
            return False
        path = self._tree.find(ticket.blocks)
        ticket.known_blocks = _held(chosen, path.depths())
        self._placed(ticket, path, chosen, now)
        return True

    def sent(self, ticket: Ticket, now: float) -> None:
        """The request has left for the replica."""
        if ticket.is_open and ticket.sent_at is None:
            ticket.sent_at = now

    def first_byte(self, ticket: Ticket, now: float) -> None:
        """The first token is here: its prefill is done, others can soon load what it made."""
        if not ticket.is_open or ticket.first_at is not None:
            return
        ticket.first_at = now
        if ticket.is_ours and self.listener is not None:
            self.listener.first(ticket)
        known = self._replicas.get(ticket.replica)
        if known is None:
            return
        known.load.first(ticket, now)
        regret_s = regret(ticket, now)
        if regret_s is not None:
            self._regrets += 1
            self._regret_seconds += regret_s
        if self.constants.has_shared_tier:
            path = self._tree.found(ticket.edge, ticket.blocks)
            self._tree.touch(path, [self._shared], now + self.constants.visibility_seconds)

    def ended(self, ticket: Ticket, now: float, usage: Usage | None) -> None:
        """Answered in full. Frees the reservation; learns from what was reported."""
        if not ticket.is_open:
            return
        if ticket.first_at is None:
            self.first_byte(ticket, now)
        elif ticket.is_streamed:
            self._answers.saw(now - ticket.first_at)
        self._close(ticket, now)
        known = self._replicas.get(ticket.replica)
        if known is not None:
            learn(known, ticket, usage, self.constants.decode_slowdown)

    def released(self, ticket: Ticket, now: float) -> None:
        """Failed or abandoned. Frees the reservation; nothing is learned from it."""
        if not ticket.is_open:
            return
        self._close(ticket, now)
        known = self._replicas.get(ticket.replica)
        if known is not None and ticket.first_at is None:
            for holder in (known.gpu, known.host):
                self._tree.cut(ticket.blocks, holder, ticket.known_blocks)

    def _close(self, ticket: Ticket, now: float) -> None:
        ticket.is_open, ticket.rival, ticket.edge = False, None, None
        if ticket.is_ours:
            self._reservations -= 1
            if self.listener is not None:
                self.listener.closed(ticket, now)
        known = self._replicas.get(ticket.replica)
        if known is not None:
            known.load.drop(ticket, now)

    def observe(self, replica: str, seen: Observation, now: float) -> None:
        """What the replica's metrics said just now."""
        known = self._replicas.get(replica)
        if known is not None:
            known.observe(seen, now)

    def resident(
        self, replica: str, stored: Iterable[int], removed: Iterable[int], cleared: bool
    ) -> None:
        """Exactly what the replica's GPU gained and lost, in blocks of `Ask.blocks`."""
        known = self._replicas.get(replica)
        if known is not None:
            known.resident(stored, removed, cleared)

    def view(self, now: float) -> FleetView:
        """The fleet as plain values."""
        return FleetView(
            policy=self.policy,
            replicas=tuple(view_of(each, now) for each in self._replicas.values()),
            reservations=self._reservations,
            decisions={(name, self.policy): count for name, count in self._decisions.items()},
            overloads=self._overloads,
            regret_seconds=self._regret_seconds,
            regrets=self._regrets,
            predicted_tokens=sum(each.trust.predicted for each in self._replicas.values()),
            reported_tokens=sum(each.trust.reported for each in self._replicas.values()),
            tree_blocks=self._tree.blocks,
            common_tokens=int(self._common.blocks * self._block_tokens),
        )


def _held(chosen: Replica, depths: dict[Holder, int]) -> int:
    """Blocks of a prompt it is thought to hold."""
    return max(depths.get(chosen.gpu, 0), depths.get(chosen.host, 0)) if depths else 0
