"""Exchanges: what becomes of one request, told to the fleet, the breakers and the counts.

`Decided` is a request that is prefilled: the fleet chose its replica and holds a reservation, which
is closed exactly once however the request ends. What has no prompt is a `passages.Passage`.

A request moves to another replica at once, and only while nothing of an answer has reached the
client. Who is to blame: a broken connection counts against the replica; a 5xx only once another
replica has answered the same request (what fails everywhere says nothing about one of them); a
4xx never. It must not know sockets; times are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from router import answers
from router.asks import Ask, Usage
from router.members import NOBODY, Members
from router.outcome import Decision, Overload
from router.relay.exchange import Attempt, Failure, Header, Reply
from router.reports import usage_of
from router.routes import Routes
from router.scores import Scores
from router.steering import Steering

RETRIED = frozenset({429, 500, 502, 503, 504, 508})
"""Answers another replica may improve on."""


class Chooser(Protocol):
    """What an exchange needs of the service: the next replica, and where to report to."""

    members: Members
    routes: Routes
    scores: Scores
    retries_max: int
    steering: Steering | None

    def choose(
        self, ask: Ask, now: float, exclude: frozenset[str]
    ) -> Decision | Overload | None: ...


class Decided:
    """A request with a reservation. Implements `relay.exchange.Exchange`."""

    __slots__ = (
        "_ask", "_blamed", "_decision", "_is_passed", "_is_stream", "_kind", "_on_usage",
        "_received_at", "_row", "_scores", "_sent_at", "_service", "_status", "_steer", "_tried",
        "attempt",
    )  # fmt: skip

    def __init__(
        self,
        service: Chooser,
        ask: Ask,
        decision: Decision,
        kind: str,
        is_stream: bool,
        received_at: float,
        now: float,
        on_usage: Callable[[Usage], None] | None = None,
        steer: Callable[[], tuple[bytes, ...]] | None = None,
    ) -> None:
        """`steer` makes the body that asks an engine not to load, where a site knows how to."""
        self._service = service
        self._steer = steer
        self._scores = service.scores
        self._on_usage = on_usage
        self._ask = ask
        self._kind = kind
        self._is_stream = is_stream
        self._received_at = received_at
        self._sent_at = now
        self._tried = NOBODY
        self._blamed: tuple[tuple[str, str], ...] = ()
        self._status = 0
        self._is_passed = False
        self.attempt = self._take(decision, now)

    def sent(self, now: float) -> None:
        self._sent_at = now
        self._scores.fleet.sent(self._decision.ticket, now)

    def head(self, status: int, headers: Sequence[Header], now: float) -> Attempt | None:
        replica = self._decision.replica
        if status in RETRIED:
            other = self._another(f"status {status}", now)
            if other is not None:
                if status != 429:
                    self._blamed += ((replica, f"answered {status}"),)
                return other
        self._status = status
        return None

    def first_byte(self, now: float) -> None:
        self._passed_on(now)
        if not (self._is_stream and self._status < 400):
            return  # otherwise the first byte is not the first token
        scores = self._scores
        scores.fleet.first_byte(self._decision.ticket, now)
        scores.first_token(self._decision, now - self._received_at, now - self._sent_at)
        self._row.ttft_seconds = now - self._received_at

    def _passed_on(self, now: float) -> None:
        """This replica's answer is the client's: there is no other attempt."""
        if self._is_passed:
            return
        self._is_passed = True
        self._steer = None  # it holds the request's fields
        service = self._service
        if self._status < 500:
            for name, why in self._blamed:
                service.members.failed(name, why, now)
            service.members.answered(self._decision.replica)
        self._scores.answered(self._kind, self._status)
        if self._status >= 400:
            self._scores.fleet.released(self._decision.ticket, now)
            self._row.outcome = str(self._status)

    def failed(self, failure: Failure, detail: str, now: float) -> Attempt | Reply:
        self._service.members.failed(self._decision.replica, f"{failure.value}: {detail}", now)
        other = self._another(failure.value, now)
        if other is not None:
            return other
        self._scores.fleet.released(self._decision.ticket, now)
        status = 504 if failure is Failure.TIMEOUT else 502
        self._scores.answered(self._kind, status)
        self._row.outcome = failure.value
        return answers.error(
            status,
            f"{self._decision.replica} did not answer ({failure.value}), and no other replica"
            " can take the request",
            "replica_failed",
            *self.attempt.response_headers,
        )

    def ended(self, now: float, tail: bytes) -> None:
        self._passed_on(now)
        if self._status >= 400:
            return  # its reservation is closed
        usage = usage_of(tail)
        self._scores.ended(self._ask, self._decision, usage, now)
        if usage is not None and self.attempt.body is not None:
            self._report_steered(usage)
        if self._on_usage is not None and usage is not None:
            self._on_usage(usage)
        self._row.outcome = "answered"
        self._row.reported_tokens = None if usage is None else usage.cached_tokens

    def broken(self, now: float) -> None:
        self._service.members.failed(self._decision.replica, "its stream broke off", now)
        self._close("broken", now)

    def abandoned(self, now: float) -> None:
        self._close("abandoned", now)

    def _close(self, outcome: str, now: float) -> None:
        self._scores.fleet.released(self._decision.ticket, now)
        self._scores.cut(self._decision.replica, outcome)
        self._row.outcome = outcome

    def _another(self, why: str, now: float) -> Attempt | None:
        """The next replica's attempt, its reservation made and the last one's closed."""
        if len(self._tried) >= self._service.retries_max:
            return None
        last = self._decision
        self._tried |= {last.replica}
        self._scores.fleet.released(last.ticket, now)
        decision = self._service.choose(self._ask, now, self._tried)
        if not isinstance(decision, Decision):
            return None
        self._scores.retried(last.replica, why)
        return self._take(decision, now)

    def _take(self, decision: Decision, now: float) -> Attempt:
        """Goes to the decision's replica."""
        service = self._service
        self._decision = decision
        self._sent_at = now
        text = answers.reason(decision, len(self._tried))
        self._row = self._scores.decided(self._ask, decision, self._kind, text)
        body = None if self._steer is None else self._steered(self._steer)
        self.attempt = service.routes.attempt(decision.replica, text, body)
        return self.attempt

    def _steered(self, steer: Callable[[], tuple[bytes, ...]]) -> tuple[bytes, ...] | None:
        """The body for a replica that computes sooner than it loads, if it takes the hint."""
        steering, decision = self._service.steering, self._decision
        if not decision.costs.spared_tokens or steering is None:
            return None
        return steer() if steering.can(decision.replica) else None

    def _report_steered(self, usage: Usage) -> None:
        """Was it left out, as asked?"""
        decision, steering = self._decision, self._service.steering
        member = self._service.members.get(decision.replica)
        if steering is not None and member is not None:
            local = decision.local_tokens + decision.dram_tokens
            steering.answered(decision.replica, usage, local, member.replica.chunk_tokens)
