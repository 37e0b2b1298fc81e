"""Which packs are staged, and in which order: the reverse of retention's. Pure.

What a sweep would take last is worth most and goes first. Packs whose every chunk is found in
another one are left out: their chunks travel with that one. With a limit, packs are taken as long
as they fit; a big one that does not fit does not keep smaller ones out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sharedfs_backend.layout import PackName
from sharedfs_backend.retention import Candidate, by_value


@dataclass(frozen=True, slots=True)
class Choice:
    """A pack to be staged, and how long ago it was last wanted."""

    name: PackName
    total_bytes: int
    age_seconds: float


def choose(
    candidates: Sequence[Candidate],
    ages: Mapping[PackName, float],
    now: float,
    *,
    recency_step_seconds: float,
    bytes_max: int | None = None,
) -> list[Choice]:
    """Most valuable first. `ages` (seconds) go before what a candidate says of its last lookup."""
    pool = [
        replace(candidate, last_lookup=now - ages[candidate.name])
        if candidate.name in ages
        else candidate
        for candidate in candidates
        if not candidate.duplicate
    ]
    chosen: list[Choice] = []
    left = bytes_max
    for candidate in reversed(by_value(pool, now, recency_step_seconds)):
        if left is not None:
            if candidate.total_bytes > left:
                continue
            left -= candidate.total_bytes
        age_seconds = max(0.0, now - candidate.last_lookup)
        chosen.append(Choice(candidate.name, candidate.total_bytes, age_seconds))
    return chosen
