"""Simulate: one trace, one world, one policy, one seed: what each request's first token took.

Every decision is `Fleet.choose`; the fleet hears of dispatch, first token and end, gets each
request's usage at its end, and a scrape of every replica once a second: what a proxy can see. The
bound is not a policy: one queue for all replicas, all earlier blocks local to all of them.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from bench.routing.engine import Engine, Tier, Work, World
from bench.routing.traces import BLOCK_TOKENS, Request
from router.asks import Ask, Usage
from router.constants import Constants
from router.fleet import Decision, Fleet, FleetView, Observation
from router.tickets import Ticket
from router.tidings import Heard, Teller

WARM_UP = 0.1
"""Share of the requests, from the first, that are not counted."""
SCRAPE_SECONDS = 1.0
TOLD_SECONDS = 0.025
"""Until the processes on one port know what another of them did: `router.telling` waits 20 ms."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All in the order of the counted requests' first tokens."""

    ttft_seconds: list[float]
    local_hit: float
    """Share of prompt tokens found in the replica's GPU or host memory."""
    shared_hit: float
    utilisation: float
    """Share of the time a GPU was prefilling, mean over replicas."""
    busiest: float
    """Share of the requests the busiest replica got."""
    view: FleetView | None

    @property
    def mean(self) -> float:
        return sum(self.ttft_seconds) / len(self.ttft_seconds)

    def percentile(self, share: float) -> float:
        ranked = sorted(self.ttft_seconds)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


START, FIRST, END, TOLD = range(4)


def simulate(
    requests: Sequence[Request],
    world: World,
    constants: Constants,
    *,
    policy: str,
    replicas: int,
    seed: int,
    routers: int = 1,
    tell: bool = False,
    tiers: Sequence[Tier] = (),
) -> Outcome:
    """Requests in order of arrival, through the product's decisions; of several routers each gets
    a random share, and knows of the rest only what the replicas' metrics say, or, if they `tell`,
    what processes on one port tell each other. `tiers`: one for each replica; else all share a
    simulated one."""
    tiers = tiers or [Tier(world)] * replicas
    engines = {
        f"http://replica-{place}:8000": Engine(world, tier) for place, tier in enumerate(tiers)
    }
    fleets = []
    for number in range(routers):
        fleet = Fleet(constants=constants, policy=policy, rng=random.Random(seed + 1000 * number))
        for name in engines:
            fleet.join(name)
        fleets.append(fleet)
    told = [_Told(fleet, fleets) for fleet in fleets] if tell else []
    shares = random.Random(seed)
    counts = dict.fromkeys(engines, 0)
    tickets: dict[Work, tuple[Fleet, Ticket]] = {}
    done: list[Work] = []
    works: list[Work] = []
    scrape_at = 0.0
    is_fresh = policy.startswith("weighted")

    events: list[tuple[float, int, int, str, Work | _Message | None]] = []
    numbers = iter(range(1 << 60))

    def push(at: float, kind: int, name: str, subject: Work | _Message | None = None) -> None:
        heapq.heappush(events, (at, next(numbers), kind, name, subject))

    def tell_others(now: float) -> None:
        for each in told:
            if (message := each.taken()) is not None:
                push(now + TOLD_SECONDS, TOLD, "", message)

    def next_prefill(name: str, now: float) -> None:
        engine = engines[name]
        if not engine.is_busy and engine.waiting:
            engine.is_busy = True
            push(max(now, engine.waiting[0].ready_at), START, name)

    def scrape(now: float) -> None:
        for name, engine in engines.items():
            running = engine.decodes + engine.is_busy
            waiting = len(engine.waiting) - engine.is_busy
            for fleet in fleets:
                fleet.observe(name, Observation(waiting, running, engine.kv_usage), now)

    arrivals = iter(requests)
    arriving = next(arrivals, None)
    now = 0.0
    while arriving is not None or events:
        if arriving is not None and (not events or arriving.at <= events[0][0]):
            request, now = arriving, arriving.at
            arriving = next(arrivals, None)
            if is_fresh or now >= scrape_at:
                scrape(now)
                scrape_at = now + SCRAPE_SECONDS
            fleet = fleets[shares.randrange(routers)]
            decision = fleet.choose(ask_of(request), now)
            assert isinstance(decision, Decision)
            fleet.sent(decision.ticket, now)
            name = decision.replica
            counts[name] += 1
            work = engines[name].take(request, decision.loads_shared, now)
            tickets[work] = fleet, decision.ticket
            works.append(work)
            next_prefill(name, now)
            tell_others(now)
            continue
        now, _, kind, name, subject = heapq.heappop(events)
        if isinstance(subject, _Message):
            subject.arrives(now)
            continue
        engine = engines[name]
        if kind == START:
            push(now + engine.start(), FIRST, name)
        elif kind == FIRST:
            work = engine.first(now)
            fleet, ticket = tickets[work]
            fleet.first_byte(ticket, now)
            done.append(work)
            push(now + work.request.output_tokens * world.output_token_seconds, END, name, work)
            next_prefill(name, now)
        else:
            assert subject is not None
            engine.end(subject)
            usage = Usage(
                subject.request.prompt_tokens, subject.cached_tokens, subject.request.output_tokens
            )
            fleet, ticket = tickets.pop(subject)
            fleet.ended(ticket, now, usage)
        tell_others(now)
    assert not any(fleet.reservations for fleet in fleets)
    counted = works[int(WARM_UP * len(works)) :]
    tokens = sum(each.request.prompt_tokens for each in counted)
    span = max(each.first_at for each in done)
    return Outcome(
        [each.first_at - each.request.at for each in counted],
        sum(each.gpu_tokens + each.host_tokens for each in counted) / tokens,
        sum(each.shared_tokens for each in counted) / tokens,
        sum(each.busy_seconds for each in engines.values()) / span / replicas,
        max(counts.values()) / len(requests),
        fleets[0].view(now),
    )


@dataclass(frozen=True, slots=True)
class _Message:
    """On its way from one router to the others."""

    text: bytes
    listeners: Sequence[Heard]

    def arrives(self, now: float) -> None:
        for each in self.listeners:
            each.hear(self.text, now)


class _Told:
    """What one of several routers tells, and who hears it."""

    def __init__(self, fleet: Fleet, fleets: Sequence[Fleet]) -> None:
        fleet.listener = self._teller = Teller()
        self._listeners = [Heard(each) for each in fleets if each is not fleet]

    def taken(self) -> _Message | None:
        return _Message(self._teller.take(), self._listeners) if len(self._teller) else None


def ask_of(request: Request) -> Ask:
    """What the router would make of it; the blocks' numbers stand for their hashes."""
    return Ask(
        request.blocks,
        float(BLOCK_TOKENS),
        request.prompt_tokens,
        affinity=request.blocks[0] if request.blocks else 0,
    )


def bound(requests: Sequence[Request], world: World, replicas: int) -> Outcome:
    """One queue for all, every earlier block local everywhere, loads free. Not reachable."""
    seen: set[int] = set()
    free = [(0.0, place) for place in range(replicas)]
    decoding: list[list[float]] = [[] for _ in range(replicas)]
    taken, found, tokens, busy = [], 0, 0, 0.0
    skip = int(WARM_UP * len(requests))
    for index, request in enumerate(requests):
        depth = 0
        while depth < len(request.blocks) and request.blocks[depth] in seen:
            depth += 1
        seen.update(request.blocks)
        cached = min(depth * BLOCK_TOKENS, request.prompt_tokens - 1)
        free_at, place = heapq.heappop(free)
        begins_at = max(free_at, request.at)
        ends = decoding[place]
        while ends and ends[0] <= begins_at:
            heapq.heappop(ends)
        slow = 1.0 + world.decode_slowdown * len(ends)
        computed = request.prompt_tokens - cached
        seconds = slow * world.prefill.seconds(computed, request.prompt_tokens)
        busy += seconds
        first_at = begins_at + seconds
        heapq.heappush(free, (first_at, place))
        heapq.heappush(ends, first_at + request.output_tokens * world.output_token_seconds)
        if index >= skip:
            taken.append(first_at - request.at)
            found += cached
            tokens += request.prompt_tokens
    span = max(at for at, _ in free)
    return Outcome(taken, found / tokens, 0.0, busy / span / replicas, 1 / replicas, None)
