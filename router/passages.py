"""Passages: requests without a prompt, passed to any replica that takes requests, in turn.

Nothing is estimated or reserved for them. One that may be sent twice moves to another replica like
any other; what may change something there goes out on a new connection, and moves only if none was
made. Who is to blame is as in `exchanges`. It must not know sockets; times are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from router import answers
from router.exchanges import RETRIED, Chooser
from router.members import NOBODY, Member
from router.relay.exchange import Attempt, Failure, Header, Reply

SAFE_METHODS = frozenset({b"GET", b"HEAD", b"OPTIONS"})
SAFE_PATHS = frozenset({b"/tokenize", b"/detokenize", b"/score", b"/v1/score", b"/rerank"})
"""POSTs that change nothing: may be sent twice."""


class Passage:
    """A request without a prompt. Implements `relay.exchange.Exchange`."""

    __slots__ = (
        "_is_passed", "_is_safe", "_lacking", "_member", "_service", "_status", "_tried",
        "attempt",
    )  # fmt: skip

    def __init__(
        self, service: Chooser, member: Member, is_safe: bool, lacking: frozenset[str] = NOBODY
    ) -> None:
        """`lacking`: replicas that do not serve the model it names."""
        self._service = service
        self._lacking = lacking
        self._is_safe = is_safe
        self._is_passed = False
        self._status = 0
        self._tried: frozenset[str] = frozenset()
        self.attempt = self._take(member)

    def sent(self, now: float) -> None:
        """Nothing waits for it."""

    def head(self, status: int, headers: Sequence[Header], now: float) -> Attempt | None:
        if self._is_safe and status in RETRIED and (other := self._another(f"status {status}")):
            return other
        self._status = status
        return None

    def first_byte(self, now: float) -> None:
        self._passed_on()

    def _passed_on(self) -> None:
        if not self._is_passed:
            self._is_passed = True
            if self._status < 500:
                self._service.members.answered(self._member.replica.id)
            self._service.scores.answered("other", self._status)

    def failed(self, failure: Failure, detail: str, now: float) -> Attempt | Reply:
        name = self._member.replica.id
        self._service.members.failed(name, f"{failure.value}: {detail}", now)
        if self._is_safe or failure is Failure.CONNECT:
            other = self._another(failure.value)
            if other is not None:
                return other
        status = 504 if failure is Failure.TIMEOUT else 502
        self._service.scores.answered("other", status)
        return answers.error(
            status,
            f"{name} did not answer ({failure.value})",
            "replica_failed",
            *self.attempt.response_headers,
        )

    def ended(self, now: float, tail: bytes) -> None:
        self._passed_on()

    def broken(self, now: float) -> None:
        self._service.members.failed(self._member.replica.id, "its answer broke off", now)
        self._service.scores.cut(self._member.replica.id, "broken")

    def abandoned(self, now: float) -> None:
        self._service.scores.cut(self._member.replica.id, "abandoned")

    def _another(self, why: str) -> Attempt | None:
        if len(self._tried) > self._service.retries_max:
            return None
        member = self._service.members.next_ready(self._tried | self._lacking)
        if member is None:
            return None
        self._service.scores.retried(self._member.replica.id, why)
        return self._take(member)

    def _take(self, member: Member) -> Attempt:
        self._member = member
        self._tried |= {member.replica.id}
        self.attempt = self._service.routes.attempt(
            member.replica.id, b"any-ready", is_repeatable=self._is_safe
        )
        return self.attempt
