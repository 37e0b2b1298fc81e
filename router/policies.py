"""Policies: each scores the replicas for one request; the least score is chosen, ties at random.

`ttft` is the product's; the others are what is in use elsewhere, for comparison and for sites that
want them. All see the same estimates and the same load, as fresh as the router has it, so none is
worse here than at home. State between requests is only a turn counter.

It must not know how estimates are made, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from router.estimate import Estimate


class Standing(NamedTuple):
    """A replica as policies see it."""

    replica: str
    place: int
    """A stable pseudo-random 64-bit number of the replica's name."""
    in_flight: int
    """Requests sent and not ended."""
    waiting: int
    """Requests whose prefill is not done."""
    kv_usage: float
    matched_tokens: float = 0.0
    """Of the request, in the long memory of what was sent there (the radix policy's tree)."""
    remembered: int = 0
    """Blocks in that memory."""


Policy = Callable[[Sequence[Estimate], Sequence[Standing], int, int], list[float]]
"""(estimates, standings, the request's affinity hash, how many requests came before) -> scores."""

RADIX_MATCH = 0.3
"""Share of the prompt matched above which the longest match decides (both routers' default)."""
RADIX_ABSOLUTE = 64
RADIX_RELATIVE = 1.5
RADIX_TOKENS = 1 << 24
"""In-flight difference and ratio that switch the tree off for the whole fleet, and how much of each
replica's history the tree keeps (their defaults; 2^26 characters)."""
BOUNDED_LOAD = 1.25
"""Most in flight on one replica, in means of the fleet (Mirrokni et al. 2018: c = 1.25)."""
RING_POINTS = 64
"""Points each replica has on the ring."""
MASK = (1 << 64) - 1


def round_robin(
    estimates: Sequence[Estimate], standings: Sequence[Standing], affinity: int, turn: int
) -> list[float]:
    """One after the other."""
    return [float((index - turn) % len(standings)) for index in range(len(standings))]


def at_random(
    estimates: Sequence[Estimate], standings: Sequence[Standing], affinity: int, turn: int
) -> list[float]:
    """All alike."""
    return [0.0] * len(estimates)


def least_requests(
    estimates: Sequence[Estimate], standings: Sequence[Standing], affinity: int, turn: int
) -> list[float]:
    """Fewest in flight."""
    return [float(each.in_flight) for each in standings]


def least_pending_seconds(
    estimates: Sequence[Estimate], standings: Sequence[Standing], affinity: int, turn: int
) -> list[float]:
    """Least prefill to wait for, in seconds; what the replica holds does not count."""
    return [each.queue_s for each in estimates]


def consistent_hash(
    estimates: Sequence[Estimate], standings: Sequence[Standing], affinity: int, turn: int
) -> list[float]:
    """The first replica on the ring after the request's hash that has room (bounded load)."""
    total = sum(each.in_flight for each in standings) + 1
    room = BOUNDED_LOAD * total / len(standings)
    key = _mixed(affinity)
    scores = []
    for each in standings:
        nearest = min((_mixed(each.place + point) - key) & MASK for point in range(RING_POINTS))
        scores.append(float(nearest) if each.in_flight + 1 <= room else float(MASK) + nearest)
    return scores


def radix(
    estimates: Sequence[Estimate], standings: Sequence[Standing], affinity: int, turn: int
) -> list[float]:
    """Longest match in a tree of what was sent where; fewest in flight once out of balance.

    With a match below the threshold, fewest in flight too.
    """
    loads = [float(each.in_flight) for each in standings]
    if _is_out_of_balance(standings):
        return loads
    return _longest(estimates, standings) or loads


def radix_smallest(
    estimates: Sequence[Estimate], standings: Sequence[Standing], affinity: int, turn: int
) -> list[float]:
    """The same, but with a match below the threshold the replica whose tree is smallest."""
    if _is_out_of_balance(standings):
        return [float(each.in_flight) for each in standings]
    longest = _longest(estimates, standings)
    return longest or [float(each.remembered) for each in standings]


def weighted_2_1(
    estimates: Sequence[Estimate], standings: Sequence[Standing], affinity: int, turn: int
) -> list[float]:
    """Two parts share of the prompt matched, one part requests in flight."""
    load = _spread([each.in_flight for each in standings])
    return [-(2 * prefix + one) for prefix, one in zip(_prefix(estimates), load, strict=True)]


def weighted_3_2_2(
    estimates: Sequence[Estimate], standings: Sequence[Standing], affinity: int, turn: int
) -> list[float]:
    """Three parts share of the prompt matched, two parts waiting requests, two parts free KV."""
    queue = _spread([each.waiting for each in standings])
    parts = zip(_prefix(estimates), queue, standings, strict=True)
    return [-(3 * prefix + 2 * one + 2 * (1 - each.kv_usage)) for prefix, one, each in parts]


def ttft(
    estimates: Sequence[Estimate], standings: Sequence[Standing], affinity: int, turn: int
) -> list[float]:
    """Least estimated cost."""
    return [each.cost_s for each in estimates]


POLICIES: dict[str, Policy] = {
    "round-robin": round_robin,
    "random": at_random,
    "least-requests": least_requests,
    "least-pending-seconds": least_pending_seconds,
    "consistent-hash": consistent_hash,
    "radix": radix,
    "radix-smallest": radix_smallest,
    "weighted-2-1": weighted_2_1,
    "weighted-3-2-2": weighted_3_2_2,
    "ttft": ttft,
}


ESTIMATES_ALONE = frozenset({"random", "least-pending-seconds", "ttft"})
"""Policies that look at no standings, which then need not be made."""


def _is_out_of_balance(standings: Sequence[Standing]) -> bool:
    loads = [each.in_flight for each in standings]
    high, low = max(loads), min(loads)
    return high - low > RADIX_ABSOLUTE and high > RADIX_RELATIVE * low


def _longest(estimates: Sequence[Estimate], standings: Sequence[Standing]) -> list[float] | None:
    matched = [each.matched_tokens for each in standings]
    if max(matched) <= RADIX_MATCH * estimates[0].prompt_tokens:
        return None
    return [-tokens for tokens in matched]


def _prefix(estimates: Sequence[Estimate]) -> list[float]:
    return [(each.gpu_tokens + each.host_tokens) / each.prompt_tokens for each in estimates]


def _spread(loads: Sequence[int]) -> list[float]:
    """1 for the least loaded, 0 for the most, 1 for all where they are equal."""
    high, low = max(loads), min(loads)
    return [(high - load) / (high - low) if high > low else 1.0 for load in loads]


def _mixed(value: int) -> int:
    """A 64-bit mix (the finalizer of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
