"""Retention policies to compare with: LRU, and Belady's optimum. Pure, over chains of blocks.

Each holds at most so many blocks and counts, request by request, the leading blocks it has. LRU is
given what a file tier's LRU has: every block used is moved to the front, a prefix's end first, so
that a prefix loses its end before its beginning. Belady's evicts the block whose next use is
farthest (the later in its prefix among equals) and keeps nothing that will be used later than all
it has: no policy that must leave prefixes whole hits more.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container, Sequence

Prompt = tuple[int, ...]


def lru_hits(prompts: Sequence[Prompt], blocks_max: int) -> list[int]:
    """Leading blocks found, by request."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = []
    for prompt in prompts:
        hits.append(_leading(prompt, held))
        for block in reversed(prompt):
            held[block] = None
            held.move_to_end(block)
        while len(held) > blocks_max:
            held.popitem(last=False)
    return hits


def belady_hits(prompts: Sequence[Prompt], blocks_max: int) -> list[int]:
    """Leading blocks found, by request, knowing the future."""
    following = _next_uses(prompts)
    held: dict[int, tuple[int, int]] = {}
    """Block -> (next use, place in its prefix)."""
    heap: list[tuple[int, int, int]] = []
    hits = []
    for number, prompt in enumerate(prompts):
        hits.append(_leading(prompt, held))
        for place, block in enumerate(prompt):
            held[block] = (following[number][place], place)
            heapq.heappush(heap, (-following[number][place], -place, block))
        while len(held) > blocks_max:
            use, place, block = heapq.heappop(heap)
            if held.get(block) == (-use, -place):
                del held[block]
    return hits


def unlimited_hits(prompts: Sequence[Prompt]) -> list[int]:
    """Leading blocks seen before."""
    seen: set[int] = set()
    hits = []
    for prompt in prompts:
        hits.append(_leading(prompt, seen))
        seen.update(prompt)
    return hits


def _leading(prompt: Prompt, held: Container[int]) -> int:
    depth = 0
    while depth < len(prompt) and prompt[depth] in held:
        depth += 1
    return depth


def _next_uses(prompts: Sequence[Prompt]) -> list[list[int]]:
    """For each block of each request, the number of the request that uses it next."""
    never = len(prompts)
    soonest: dict[int, int] = {}
    found: list[list[int]] = [[] for _ in prompts]
    for number in range(len(prompts) - 1, -1, -1):
        found[number] = [soonest.get(block, never) for block in prompts[number]]
        soonest.update(dict.fromkeys(prompts[number], number))
    return found
