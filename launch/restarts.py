"""Restarts: when a part that ended may start again. Pure: time comes in, a time or "no" goes out.

A part that ends is started again after a pause that doubles with each end in the last hour; after
`most` ends within it there is something that restarting does not mend, and the answer is no. An
engine does not notice that its LMCache server was away for less than its heartbeat's patience, and
then misses for ever, so a server pauses longer, and its engines are started again with it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_SECONDS = 3600.0
ENGINE_PAUSE_SECONDS = 2.0
SERVER_PAUSE_SECONDS = 30.0
PAUSE_SECONDS_MAX = 300.0


@dataclass(slots=True)
class Restarts:
    """Of one part. `most`: ends in an hour that are answered by a restart."""

    most: int
    pause_seconds: float = ENGINE_PAUSE_SECONDS
    _ends: deque[float] = field(default_factory=deque)

    def after_end(self, now: float) -> float | None:
        """The part ended now: when it may start again, or None for never."""
        while self._ends and now - self._ends[0] > WINDOW_SECONDS:
            self._ends.popleft()
        self._ends.append(now)
        if len(self._ends) > self.most:
            return None
        pause = self.pause_seconds * float(2 ** (len(self._ends) - 1))
        return now + max(self.pause_seconds, min(pause, PAUSE_SECONDS_MAX))
