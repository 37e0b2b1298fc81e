"""Common: how much of a prompt most recent requests share. Bounded state.

Each request is compared with the one before it; the median of the last shared runs is the answer.
A system prompt of everybody's is found, one among many is not: then neighbours rarely share it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

from router.shadow import shared_run

REMEMBERED = 65
"""Odd, so that there is a middle one."""


class Common:
    """`blocks` is the median length of runs shared by neighbouring requests."""

    def __init__(self) -> None:
        self.blocks = 0
        self._last: Sequence[int] = ()
        self._order: deque[int] = deque()
        self._sorted: list[int] = []

    def saw(self, blocks: Sequence[int]) -> None:
        """One more request."""
        run = shared_run(self._last, blocks) if self._last else 0
        self._last = blocks
        self._order.append(run)
        insort(self._sorted, run)
        if len(self._order) > REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self.blocks = self._sorted[(len(self._sorted) - 1) // 2]
