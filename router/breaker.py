"""Breaker: whether one replica is to be trusted with requests, from how the last ones went.

Closed: requests go there. `failures_max` failures in a row, of requests or of probes, open it:
none go there. A probe answered after the pause closes it again if only probes had failed (a replica
that starts up is no risk); after failed requests it half-opens: one request at a time, until one is
answered. A failure then opens it again, for twice as long.

An answer with a 4xx status is an answer: the request was wrong, not the replica. Pure: the time is
an argument. It knows no load, and nothing here can change a count of requests in flight.
"""

from __future__ import annotations

import enum

FAILURES_MAX = 3  # one may be bad luck, a restart behind a proxy often costs two
PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 30.0


class Position(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Of one replica. Belongs to the event loop's thread. Starts open: the first good probe
    closes it."""

    __slots__ = ("_failures", "_needs_trial", "_open_until", "_pause", "_probes", "position")

    def __init__(self) -> None:
        self.position = Position.OPEN
        self._failures = 0
        self._probes = 0
        self._needs_trial = False
        self._open_until = float("-inf")
        self._pause = PAUSE_SECONDS

    def failed(self, now: float) -> None:
        """A request failed by the replica's fault."""
        self._failures += 1
        if self.position is Position.HALF_OPEN:
            self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
            self._open(now, needs_trial=True)
        elif self.position is Position.CLOSED and self._failures >= FAILURES_MAX:
            self._open(now, needs_trial=True)

    def answered(self) -> None:
        """A request was answered, whatever the answer said."""
        if self.position is Position.OPEN:
            return  # sent before it opened: only a probe or a trial tells how it is now
        self._failures = 0
        self._pause = PAUSE_SECONDS
        self.position = Position.CLOSED

    def probed(self, is_well: bool, now: float) -> None:
        """A probe came back, or did not in time."""
        if not is_well:
            self._probes += 1
            if self._probes >= FAILURES_MAX and self.position is not Position.OPEN:
                self._open(now, needs_trial=False)
            return
        self._probes = 0
        if self.position is Position.OPEN and now >= self._open_until:
            self._failures = 0
            self.position = Position.HALF_OPEN if self._needs_trial else Position.CLOSED

    def _open(self, now: float, *, needs_trial: bool) -> None:
        self.position = Position.OPEN
        self._needs_trial = needs_trial
        self._open_until = now + self._pause
