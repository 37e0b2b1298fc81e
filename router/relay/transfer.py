"""Transfer: one request on its way, over as many attempts as its exchange wants.

Between a client's connection and the pool; the only caller of an `Exchange`, in the order its
contract promises. A retry happens only before a response was passed on, that is before its body's
first byte. It must not know why a replica was chosen, nor parse a byte.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, cast

from router.relay.common import Common, Incoming, log
from router.relay.exchange import Attempt, Exchange, Failure, Header, Reply, Where
from router.relay.heads import Ending, led_back, refusal, request_head, response_head
from router.relay.upstream import Upstream

if TYPE_CHECKING:
    from router.relay.client import Client

MISTAKE = "an exchange failed"
"""Whoever decides and counts may be wrong; the client gets its answer all the same."""


class Transfer:
    """Made for one complete request; `client` hears `answer`, `finished` or `cut` exactly once."""

    __slots__ = (
        "_attempt",
        "_attempts",
        "_body_bytes",
        "_client",
        "_common",
        "_deadline",
        "_exchange",
        "_incoming",
        "_is_over",
        "_keeps_alive",
        "_sent_at",
        "_task",
        "upstream",
    )

    def __init__(self, common: Common, client: Client, incoming: Incoming) -> None:
        self._common = common
        self._client = client
        self._incoming = incoming
        self._body_bytes = incoming.request.body_bytes
        self._exchange: Exchange | None = None
        self._attempt: Attempt | None = None
        self._attempts = 0
        self._is_over = False
        self._keeps_alive = incoming.keeps_alive
        self._sent_at = 0.0
        self._deadline = math.inf
        self._task: asyncio.Task[None] | None = None
        self.upstream: Upstream | None = None

    # -- deciding -------------------------------------------------------------------------------

    def start(self) -> None:
        """Asks the director. May have answered before it returns."""
        try:
            outcome = self._common.director.begin(self._incoming.request)
        except Exception:
            log.exception("the director failed")
            outcome = refusal(500, "the router failed")
        if isinstance(outcome, Reply):
            self._answer(outcome)
        elif hasattr(outcome, "attempt"):  # An exchange; asking for an `Awaitable` takes longer.
            self._begin(cast(Any, outcome))
        else:
            self._task = self._common.spawn(self._decided(cast(Any, outcome)))

    async def _decided(self, pending: Awaitable[Exchange | Reply]) -> None:
        try:
            outcome = await pending
        except Exception:
            log.exception("the director failed")
            outcome = refusal(500, "the router failed")
        self._task = None
        if isinstance(outcome, Reply):
            if not self._is_over:
                self._answer(outcome)
        elif self._is_over:
            outcome.abandoned(self._common.now())
        else:
            self._begin(outcome)

    def _begin(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._go(exchange.attempt, is_fresh=False)

    # -- attempts -------------------------------------------------------------------------------

    def _go(self, attempt: Attempt, *, is_fresh: bool) -> None:
        self._attempts += 1
        if self._attempts > self._common.limits.attempts_max:
            self._exhausted()
            return
        self._attempt = attempt
        key = (attempt.host, attempt.port, attempt.is_tls)
        is_fresh = is_fresh or not attempt.is_repeatable
        upstream = None if is_fresh else self._common.pool.take(key)
        if upstream is None:
            self._task = self._common.spawn(self._connect(attempt))
        else:
            self._send(attempt, upstream)

    async def _connect(self, attempt: Attempt) -> None:
        try:
            upstream = await self._common.pool.connect((attempt.host, attempt.port, attempt.is_tls))
        except (OSError, TimeoutError, ValueError) as error:
            # ValueError: a host name that cannot be one.
            self._task = None
            if not self._is_over:
                self._failed(Failure.CONNECT, str(error) or type(error).__name__)
            return
        self._task = None
        if self._is_over:
            upstream.drop()
        else:
            self._send(attempt, upstream)

    def _send(self, attempt: Attempt, upstream: Upstream) -> None:
        request = self._incoming.request
        body = request.body if attempt.body is None else attempt.body
        size = self._body_bytes if attempt.body is None else sum(map(len, attempt.body))
        head = request_head(request, attempt, size)
        self.upstream = upstream
        is_unchunked = self._incoming.is_http10
        upstream.begin(self, [head, *body], request.method, is_unchunked=is_unchunked)
        if self._client.is_paused:
            upstream.pause()
        self._sent_at = now = self._common.now()
        assert self._exchange is not None
        self._exchange.sent(now)
        if attempt.first_byte_seconds_max is not None:
            self._deadline = now + attempt.first_byte_seconds_max

    def sweep(self, now: float) -> None:
        """Gives up on a replica that has been silent for too long."""
        if now < self._deadline or self.upstream is None:
            return
        self._deadline = math.inf
        self.upstream.drop()
        self.upstream = None
        self._failed(Failure.TIMEOUT, "no answer in time")

    def waits(self, where: Where) -> bool:
        """Whether nothing was passed on yet of what is asked for there."""
        attempt = self._attempt
        if self._is_over or attempt is None or not attempt.is_at(where):
            return False
        return self.upstream is None or not self.upstream.is_passing

    def give_up(self, where: Where, detail: str) -> bool:
        """Ends an attempt there as failed, unless bytes of its body were passed on. False: there
        was none."""
        attempt = self._attempt
        if self._is_over or attempt is None or not attempt.is_at(where):
            return False
        self._deadline = math.inf
        if self._task is not None:  # still connecting
            self._task.cancel()
            self._task = None
            self._failed(Failure.CONNECT, detail)
            return True
        if self.upstream is None or self.upstream.is_passing:
            return False
        self.upstream.drop()
        self.upstream = None
        self._failed(Failure.TIMEOUT, detail)
        return True

    def _failed(self, failure: Failure, detail: str) -> None:
        assert self._exchange is not None
        following: Attempt | Reply
        try:
            following = self._exchange.failed(failure, detail, self._common.now())
        except Exception:
            log.exception(MISTAKE)
            following = refusal(500, "the router failed")
        if isinstance(following, Reply):
            self._answer(following)
        else:
            self._go(following, is_fresh=False)

    def _exhausted(self) -> None:
        """More attempts than anybody may ask for: the exchange ends as if the client had left."""
        assert self._exchange is not None
        self._exchange.abandoned(self._common.now())
        self._answer(refusal(502, "no replica answered"))

    # -- what the replica's connection says (ResponseSink) --------------------------------------

    def head_came(self, status: int, headers: Sequence[Header]) -> bool:
        assert self._exchange is not None and self.upstream is not None
        try:
            following = self._exchange.head(status, headers, self._common.now())
        except Exception:
            log.exception(MISTAKE)
            return True
        if following is None:
            return True
        self._deadline = math.inf
        self.upstream.drop()
        self.upstream = None
        self._go(following, is_fresh=False)
        return False

    def body_came(self, upstream: Upstream) -> bytes:
        assert self._attempt is not None
        self._deadline = math.inf
        common, incoming = self._common, self._incoming
        common.release(incoming)
        is_unchunked = incoming.is_http10 and upstream.ending == Ending.CHUNKED
        if upstream.ending == Ending.CLOSED or is_unchunked or common.is_draining:
            self._keeps_alive = False
        headers = upstream.headers
        if 300 <= upstream.status < 400:
            headers = led_back(headers, self._attempt)
        upstream.pass_to(self._client.transport)
        return response_head(
            upstream.status,
            upstream.reason,
            headers,
            self._attempt.response_headers,
            is_closing=not self._keeps_alive,
            drops_chunking=incoming.is_http10,
        )

    def body_began(self) -> None:
        assert self._exchange is not None
        try:
            self._exchange.first_byte(self._common.now())
        except Exception:
            log.exception(MISTAKE)

    def response_over(self, tail: bytes, is_clean: bool) -> None:
        assert self._exchange is not None
        self.upstream = None
        self._is_over = True
        try:
            self._exchange.ended(self._common.now(), tail)
        except Exception:
            log.exception(MISTAKE)
        self._client.finished(keeps_alive=self._keeps_alive and is_clean)

    def response_broken(self) -> None:
        assert self._exchange is not None and self.upstream is not None
        is_told_by_close = self.upstream.ending == Ending.CLOSED or self._incoming.is_http10
        self.upstream = None
        self._is_over = True
        try:
            self._exchange.broken(self._common.now())
        except Exception:
            log.exception(MISTAKE)
        self._client.cut(with_reset=is_told_by_close)

    def lost(self, detail: str, is_malformed: bool, is_maybe_stale: bool) -> None:
        self._deadline = math.inf
        self.upstream = None
        elapsed = self._common.now() - self._sent_at
        if is_maybe_stale and elapsed < self._common.limits.stale_seconds:
            assert self._attempt is not None
            self._go(self._attempt, is_fresh=True)
            return
        self._failed(Failure.MALFORMED if is_malformed else Failure.CLOSED, detail)

    # -- what the client's connection says ------------------------------------------------------

    def client_gone(self) -> None:
        """Cancels whatever is under way, at once."""
        if self._is_over:
            return
        self._is_over = True
        self._deadline = math.inf
        self._common.release(self._incoming)
        if self.upstream is not None:
            self.upstream.drop()
            self.upstream = None
        if self._task is not None:
            self._task.cancel()
        if self._exchange is not None:
            try:
                self._exchange.abandoned(self._common.now())
            except Exception:
                log.exception(MISTAKE)

    def _answer(self, reply: Reply) -> None:
        self._is_over = True
        self._common.release(self._incoming)
        self._client.answer(reply, self._incoming, keeps_alive=self._keeps_alive)
