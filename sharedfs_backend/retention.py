"""Which packs to drop: the least valuable first. A pure plan from facts to victims.

Order of value, least first: packs whose every chunk is found elsewhere; then by recency of
*lookup* (what a replica's own memory serves must not look cold here), in steps of a quarter lease
because that is how precisely others report it; within a step children before parents, since a
chunk without its prefix is worth nothing; then the larger, then the cheaper to recompute. Nothing
younger than the drop delay and nothing locked is touched. Ages are this observer's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sharedfs_backend.layout import PackName

DEPTH_MAX = 4096
"""Longest chain of parents followed: 128k tokens in packs of one chunk; also ends a cycle."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live pack as the planner sees it. Times in seconds on the observer's clock."""

    name: PackName
    pack_id: int
    parent_id: int
    total_bytes: int
    chunks: int
    last_lookup: float
    first_seen: float
    duplicate: bool = False
    locked: bool = False


def depths(parents: Mapping[int, int]) -> dict[int, int]:
    """Number of known ancestors of each pack id; a parent of -1 is unknown."""
    known: dict[int, int] = {}
    for start in parents:
        chain: list[int] = []
        at = start
        while at not in known and at in parents and len(chain) < DEPTH_MAX:
            known[at] = 0  # ends a cycle
            chain.append(at)
            at = parents[at]
        depth = known[at] + 1 if at in known else 0
        for pack_id in reversed(chain):
            known[pack_id] = depth
            depth += 1
    return known


def plan(
    candidates: Iterable[Candidate],
    bytes_to_free: int,
    now: float,
    drop_delay_seconds: float,
    recency_step_seconds: float,
) -> list[Candidate]:
    """Victims in order, together at least `bytes_to_free` if there are enough."""
    pool = [
        candidate
        for candidate in candidates
        if not candidate.locked and now - candidate.first_seen >= drop_delay_seconds
    ]
    victims: list[Candidate] = []
    freed_bytes = 0
    for candidate in by_value(pool, now, recency_step_seconds):
        if freed_bytes >= bytes_to_free:
            break
        victims.append(candidate)
        freed_bytes += candidate.total_bytes
    return victims


def by_value(pool: Sequence[Candidate], now: float, recency_step_seconds: float) -> list[Candidate]:
    """All of them, the least valuable first."""
    depth = depths({candidate.pack_id: candidate.parent_id for candidate in pool})

    def value(candidate: Candidate) -> tuple[bool, int, int, int, int, PackName]:
        age_steps = int((now - candidate.last_lookup) / recency_step_seconds)
        level = depth[candidate.pack_id]
        rebuild = candidate.chunks * (level + 1)
        return (
            not candidate.duplicate,
            -age_steps,
            -level,
            -candidate.total_bytes,
            rebuild,
            candidate.name,
        )

    return sorted(pool, key=value)
