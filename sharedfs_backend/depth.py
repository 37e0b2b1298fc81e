"""ReadDepth: how many reads to keep in flight, from what the last ones took. Pure.

On a page cache a read is a memory copy: more threads than cores only fight for the cores. On a
mount with latency a small pool turns latency into waiting: measured, 2 GiB at 10 ms an operation
took 3.5 s with 8 threads and 0.9 s with 128. So the depth follows (Little's law) the ratio of time
spent waiting for a read to time spent verifying and copying what it brought, per core.

Waiting in a queue, for cores or for a saturated server, looks the same, and more reads only make it
longer. But in a queue now and then a read is served at once, while no read is faster than the
latency. So beyond a few for each core it is the quickest of the last reads that counts. Measured at
0 ms on a FUSE mount whose daemon shares two cores with us: depth 32 took 86 ms for 256 MiB, 8 took
66.

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

BOLD = 4
"""Reads for each core that any waiting justifies: a slow mount answers a few times at once."""

WINDOW = 8
"""The quickest read is that of the last 8 to 16 pieces."""


class ReadDepth:
    """`value` is the depth to use now; `observe` a finished piece."""

    __slots__ = (
        "_bold",
        "_busy",
        "_cores",
        "_pieces",
        "_quickest",
        "_quickest_before",
        "_ratio",
        "_ratio_max",
        "depth_max",
        "value",
    )

    def __init__(self, cores: int, depth_max: int) -> None:
        self._cores = max(1, cores)
        self.depth_max = max(1, depth_max)
        self._ratio = 0.0
        self._ratio_max = self.depth_max / (SLACK * self._cores)
        self._busy = 0.0
        self._pieces = 0
        self._quickest = self._quickest_before = float("inf")
        self._bold = min(self.depth_max, BOLD * self._cores)
        self.value = self._bold

    def observe(
        self, read_seconds: float, busy_seconds: float, *, reads: int, quickest_seconds: float
    ) -> int:
        """The new depth, a piece's `reads` reads having taken `read_seconds` and the rest of its
        work `busy_seconds`; the quickest of them took `quickest_seconds`, infinite where none
        was the mount's: what comes from memory tells nothing about latency. One that took for ever
        counts no more than the deepest useful depth asks."""
        self._ratio += MEMORY * (self._waiting(read_seconds, busy_seconds) - self._ratio)
        wanted = self._depth(self._ratio)
        busy = busy_seconds / max(1, reads)
        self._busy += MEMORY * (busy - self._busy) if self._busy else busy
        self._note_quickest(quickest_seconds)
        if wanted > self._bold:
            quickest = min(self._quickest, self._quickest_before)
            sure = self._depth(self._waiting(quickest, self._busy))
            wanted = max(self._bold, min(wanted, sure))
        self.value = wanted
        return self.value

    def _waiting(self, read_seconds: float, busy_seconds: float) -> float:
        """Seconds of waiting for each of working."""
        waiting = read_seconds - MEMORY_COPY_SHARE * busy_seconds
        return min(self._ratio_max, waiting / max(busy_seconds, 1e-9)) if waiting > 0.0 else 0.0

    def _depth(self, ratio: float) -> int:
        wanted = round(self._cores * (1.0 + SLACK * ratio))
        return max(1, min(self.depth_max, wanted))

    def _note_quickest(self, seconds: float) -> None:
        if self._pieces == WINDOW:
            self._quickest_before, self._quickest, self._pieces = self._quickest, seconds, 0
        self._quickest = min(self._quickest, seconds)
        self._pieces += 1
