"""ReadDepth: how many reads to keep in flight, from what the last ones took. Pure.

On a page cache a read is a memory copy: more threads than cores only fight for the cores. On a
mount with latency a small pool turns latency into waiting: measured, 2 GiB at 10 ms an operation
took 3.5 s with 8 threads and 0.9 s with 128. So the depth follows (Little's law) the ratio of time
spent waiting for a read to time spent verifying and copying what it brought, per core.

It must not know clocks, threads or files: seconds in, a number out, within fixed bounds (I9).
Not thread-safe; the reader guards it.
"""

from __future__ import annotations

MEMORY_COPY_SHARE = 2.0
"""A read that takes no longer than this many times verify-and-copy came from a page cache: the
kernel's copy costs about as much as ours. Only what goes beyond is waiting."""

SLACK = 2.0
"""Twice the depth that would just keep the cores busy: latencies vary, and a dry core is lost."""

MEMORY = 1 / 8
"""Weight of the newest piece: a mount that turns cold is noticed within a few pieces."""


class ReadDepth:
    """`value` is the depth to use now; `observe` a finished piece."""

    __slots__ = ("_cores", "_ratio", "_ratio_max", "depth_max", "value")

    def __init__(self, cores: int, depth_max: int) -> None:
        self._cores = max(1, cores)
        self.depth_max = max(1, depth_max)
        self._ratio = 0.0
        self._ratio_max = self.depth_max / (SLACK * self._cores)
        self.value = min(self.depth_max, 4 * self._cores)
        """Before anything is known: enough that a slow mount answers a few times at once."""

    def observe(self, read_seconds: float, busy_seconds: float) -> int:
        """The new depth, a piece's reads having taken `read_seconds` and the rest of its work
        `busy_seconds`. One that took for ever counts no more than the deepest useful depth asks."""
        waiting = read_seconds - MEMORY_COPY_SHARE * busy_seconds
        ratio = 0.0
        if waiting > 0.0:
            ratio = min(self._ratio_max, waiting / max(busy_seconds, 1e-9))
        self._ratio += MEMORY * (ratio - self._ratio)
        wanted = self._cores * (1.0 + SLACK * self._ratio)
        self.value = max(1, min(self.depth_max, round(wanted)))
        return self.value
