"""Health: is the file system answering? A circuit breaker as pure state; time comes in as argument.

    WELL --(failures in a row, over more than one file, or a call that hangs)--> SICK
    SICK --(a probe is due: one call is let through)--> PROBING
    PROBING --(it was answered)--> WELL          PROBING --(it failed or hangs)--> SICK

While it is not WELL everything is refused at once, so that a request pays for a dead server once
and not once for each call (I6). An answer is an answer: MISSING, EXISTS, NO_SPACE and DENIED come
from a living server. One unreadable file does not sicken the rest. Probes back off, and those that
never return are bounded (I9). Not thread-safe: WatchedFiles holds its lock around it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from sharedfs_backend.files.failure import FailureKind

SICKENING = frozenset({FailureKind.IO, FailureKind.TIMEOUT, FailureKind.STALE})
"""Failures that may mean that nobody answers. STALE: a server that came back without our files."""


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """When to call a file system sick, and how to ask again."""

    failures_to_open: int = 8  # in a row, without one answer between them
    hang_seconds: float = 15.0  # below a load deadline; a slow write of some MiB is quicker
    probe_seconds: float = 1.0  # first wait; doubles with each failed probe
    probe_seconds_max: float = 30.0
    steady_seconds: float = 60.0  # well for so long: the next wait starts at probe_seconds again
    lost_probes_max: int = 8  # threads we are ready to lose to probes that never return


class State(enum.Enum):
    """Whether calls are let through."""

    WELL = "well"
    SICK = "sick"
    PROBING = "probing"


@dataclass(slots=True)
class Health:
    """The breaker's state. Every method takes the current monotonic time in seconds."""

    policy: HealthPolicy = field(default_factory=HealthPolicy)
    state: State = State.WELL
    times_sick: int = 0
    lost_probes: int = 0
    reason: str = ""
    _failures: int = 0
    _failed_paths: set[str] = field(default_factory=set)
    _wait_seconds: float = 0.0
    _changed_at: float = 0.0
    _probe_at: float = 0.0

    def allows(self, now: float) -> bool:
        """Whether an ordinary call may go ahead."""
        del now
        return self.state is State.WELL

    @property
    def steady(self) -> bool:
        """Whether one more success would change nothing."""
        return self.state is State.WELL and not self._failures

    def probe_due(self, now: float) -> bool:
        """Whether one call may go ahead to ask whether the file system is well again."""
        return (
            self.state is State.SICK
            and now >= self._probe_at
            and self.lost_probes < self.policy.lost_probes_max
        )

    def begin_probe(self, now: float) -> bool:
        """True if the caller's next call is the probe. At most one is waited for at a time."""
        if not self.probe_due(now):
            return False
        self.state, self._changed_at = State.PROBING, now
        return True

    def observe(
        self, kind: FailureKind | None, now: float, *, path: str = "", probe: bool = False
    ) -> None:
        """Take in how a call ended: `kind` is None for success."""
        if kind not in SICKENING:
            self._answered(now, probe)
            return
        if probe and self.state is State.PROBING:
            self._sicken(now)
        elif self.state is State.WELL:
            self._failures += 1
            if len(self._failed_paths) < 2:
                self._failed_paths.add(path)
            if self._failures >= self.policy.failures_to_open and len(self._failed_paths) > 1:
                assert kind is not None
                self._open(f"{self._failures} calls in a row failed, last: {kind.value}", now)

    def observe_hang(self, now: float, *, path: str = "", probe: bool = False) -> None:
        """Take in that a call has been in flight for longer than `hang_seconds`: said once each."""
        self.lost_probes += probe
        if self.state is State.WELL:
            self._open(f"a call on {path or '.'} does not return", now)
        elif probe and self.state is State.PROBING:
            self._sicken(now)

    def observe_return(self, *, probe: bool) -> None:
        """Take in that a call reported as hanging came back after all."""
        self.lost_probes -= probe

    def _answered(self, now: float, probe: bool) -> None:
        self._failures = 0
        self._failed_paths.clear()
        if self.state is State.WELL:
            return
        if probe:
            self.state, self._changed_at = State.WELL, now
        elif self.state is State.SICK:  # a call that had hung came back: ask at once
            self._probe_at = min(self._probe_at, now)

    def _open(self, reason: str, now: float) -> None:
        if now - self._changed_at >= self.policy.steady_seconds:
            self._wait_seconds = 0.0
        self.reason = reason
        self.times_sick += 1
        self._failures = 0
        self._failed_paths.clear()
        self._sicken(now)

    def _sicken(self, now: float) -> None:
        doubled = max(self.policy.probe_seconds, 2 * self._wait_seconds)
        self._wait_seconds = min(doubled, self.policy.probe_seconds_max)
        self.state, self._changed_at = State.SICK, now
        self._probe_at = now + self._wait_seconds
