"""Choice: the least of several scores, ties at random, and the runner-up. Pure.

Randomness is an argument. It must not know what the scores mean.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def least(scores: Sequence[float], rng: random.Random) -> tuple[int, int | None]:
    """Places of the least score and of the next one (None of a single score); not empty."""
    if len(scores) == 1:
        return 0, None
    best = _least(scores, -1, rng)
    return best, _least(scores, best, rng)


def _least(scores: Sequence[float], without: int, rng: random.Random) -> int:
    value, place, ties = float("inf"), -1, 0
    for index, score in enumerate(scores):
        if index == without:
            continue
        if score < value:
            value, place, ties = score, index, 1
        elif score == value:
            ties += 1
            if rng.random() * ties < 1.0:  # each of the tied is as likely
                place = index
    if place < 0:  # no score is a number
        place = 0 if without != 0 else 1
    return place
