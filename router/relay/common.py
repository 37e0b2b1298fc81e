"""Common: what all connections of one relay share, and the view each side has of the other.

Plain state on one event loop's thread; nothing here does I/O. The protocols break the circle
between a client's connection, a request on its way and a replica's connection: each knows only
these few calls of its neighbour. Constructors are written out: see `compiling`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Protocol

from router.relay.exchange import Director, Header, Request
from router.relay.limits import Limits

if TYPE_CHECKING:
    from router.relay.client import Client
    from router.relay.pool import Pool
    from router.relay.upstream import Upstream

log = logging.getLogger("router.relay")


class Incoming:
    """A request together with what only this connection has to know about it."""

    __slots__ = ("expects_continue", "has_body", "is_http10", "keeps_alive", "request")

    def __init__(
        self,
        request: Request,
        is_http10: bool,
        keeps_alive: bool,
        expects_continue: bool = False,
        has_body: bool = False,
    ) -> None:
        self.request = request
        self.is_http10 = is_http10
        self.keeps_alive = keeps_alive
        self.expects_continue = expects_continue
        self.has_body = has_body


class ResponseSink(Protocol):
    """A request on its way, as the replica's connection sees it."""

    def head_came(self, status: int, headers: Sequence[Header]) -> bool:
        """Whether the response is wanted. If not, the connection has been let go of."""

    def body_came(self, upstream: Upstream) -> bytes:
        """The response is to be passed on: its body is beginning, or is empty. Returns the head
        for the client."""

    def body_began(self) -> None:
        """The first byte of the body has been written to the client."""

    def response_over(self, tail: bytes, is_clean: bool) -> None:
        """All was relayed. Not `is_clean`: only closing the client's connection ends it surely."""

    def response_broken(self) -> None:
        """The response stopped, or stopped making sense, after its head was passed on."""

    def lost(self, detail: str, is_malformed: bool, is_maybe_stale: bool) -> None:
        """The connection came to nothing before a head was passed on."""


class Common:
    """One relay's state."""

    def __init__(
        self,
        director: Director,
        limits: Limits,
        now: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
        pool: Pool,
    ) -> None:
        self.director = director
        self.limits = limits
        self.now = now
        self.loop = loop
        self.pool = pool
        self.clients: set[Client] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.bodies_bytes = 0
        self.is_draining = False
        self.nobody_left = asyncio.Event()
        """Set when the last client leaves; only `drain` waits for it."""

    def release(self, incoming: Incoming) -> None:
        """The body is needed no more: no attempt will follow."""
        request = incoming.request
        self.bodies_bytes -= request.body_bytes
        request.body, request.body_bytes = [], 0

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """A task that `close` cancels if it is still there."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task
