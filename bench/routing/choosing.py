"""Choosing: what one decision costs: `Fleet.choose`, which also reserves, hashing not counted.

Thirty-two replicas with full shadows and work in flight, prompts of 128k tokens in 1,000 blocks of
which a part is known, and one system prompt common to all. A garbage collection that falls into a
choice is counted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from router.asks import Ask
from router.fleet import Decision, Fleet

REPLICAS = 32
BLOCKS = 1000
BLOCK_TOKENS = 128.0


def choosing(
    choices: int = 2000, clock: Callable[[], float] = time.perf_counter, policy: str = "ttft"
) -> list[float]:
    """Seconds of each choice, sorted."""
    rng = random.Random(1)
    fleet = Fleet(rng=rng, policy=policy)
    for number in range(REPLICAS):
        fleet.join(f"http://replica-{number}:8000")
    system = _fresh(rng, 50)
    sessions = [system + _fresh(rng, BLOCKS - 50) for _ in range(400)]
    taken, now, open_decisions = [], 0.0, []
    for number in range(choices + 1000):
        now += 0.05
        blocks = rng.choice(sessions)
        known = rng.randrange(50, BLOCKS)
        blocks = blocks[:known] + _fresh(rng, BLOCKS - known)
        ask = Ask(blocks, BLOCK_TOKENS, int(BLOCKS * BLOCK_TOKENS))
        began_at = clock()
        decision = fleet.choose(ask, now)
        took = clock() - began_at
        if number >= 1000:
            taken.append(took)
        assert isinstance(decision, Decision)
        fleet.sent(decision.ticket, now)
        open_decisions.append(decision)
        if len(open_decisions) > 200:
            ended = open_decisions.pop(0)
            fleet.first_byte(ended.ticket, now)
            fleet.ended(ended.ticket, now, None)
    return sorted(taken)


def _fresh(rng: random.Random, count: int) -> list[int]:
    return [rng.getrandbits(64) for _ in range(count)]
