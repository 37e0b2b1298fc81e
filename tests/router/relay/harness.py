"""Harness for the relay's tests: a director with a script, replicas with a script, raw clients.

Everything runs over real loopback sockets on one uvloop. `relaying` starts a relay and, when the
test is done, requires that nothing is left: connections, tasks, held bodies, open exchanges.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

import uvloop

from router.relay.exchange import Attempt, Exchange, Failure, Header, Reply, Request
from router.relay.limits import Limits
from router.relay.resolver import Resolver
from router.relay.server import RelayServer, serve

P = ParamSpec("P")
SECONDS_MAX = 60.0
"""Only a hanging test reaches it."""
POST = b"POST /v1/completions HTTP/1.1\r\nhost: router\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nhost: router\r\n\r\n"
HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def post(body: bytes, *fields: bytes) -> bytes:
    """A request with a body, as bytes."""
    lines = b"".join(line + b"\r\n" for line in fields)
    return POST + lines + b"content-length: %d\r\n\r\n" % len(body) + body


def over_sockets(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs an async test on a uvloop of its own, and requires its descriptors back."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        uvloop.run(asyncio.sleep(0))  # The first loop of a process opens a few for good.
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        uvloop.run(asyncio.wait_for(test(*args, **kwargs), SECONDS_MAX))
        assert len(os.listdir("/proc/self/fd")) <= before, "a descriptor leaked"

    return run


async def until(condition: Callable[[], bool]) -> None:
    """Returns when a condition holds; the test's own deadline is the only other way out."""
    while not condition():
        await asyncio.sleep(0.001)


# -- replicas -----------------------------------------------------------------------------------


class Line:
    """One connection to a mock replica, as its script sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.requests: list[tuple[bytes, bytes]] = []
        self.seen = bytearray()
        """All that `request` took, torn ends included."""

    async def request(self) -> tuple[bytes, bytes]:
        """The next request's head and body; IncompleteReadError when there is none."""
        try:
            return await self._request()
        except asyncio.IncompleteReadError as error:
            self.seen += error.partial
            raise

    async def _request(self) -> tuple[bytes, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        self.seen += head
        size = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                size = int(line.partition(b":")[2])
        body = await self.reader.readexactly(size)
        self.seen += body
        self.requests.append((head, body))
        return head, body

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def reset(self) -> None:
        """Closes with a RST, as a killed process with unread data does."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Returns when the relay has left."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass


Script = Callable[[Line], Awaitable[None]]


async def polite(line: Line) -> None:
    """Answers every request with hello."""
    while True:
        await line.request()
        line.send(HELLO)


def answering(*answers: bytes, then_close: bool = False) -> Script:
    """Answers requests in turn; the last answer goes on for ever, or the connection is closed."""

    async def script(line: Line) -> None:
        index = 0
        while not (then_close and index == len(answers)):
            await line.request()
            line.send(answers[min(index, len(answers) - 1)])
            index += 1

    return script


class Replica:
    """A listening mock replica; `lines` are the connections it got."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.lines: list[Line] = []
        self.open = 0
        self.port = 0

    @property
    def accepted(self) -> int:
        return len(self.lines)

    @property
    def requests(self) -> list[tuple[bytes, bytes]]:
        """The heads and bodies that reached it, connection by connection."""
        return [request for line in self.lines for request in line.requests]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        line = Line(reader, writer)
        self.lines.append(line)
        try:
            await self.script(line)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The relay hung up: for most scripts the end.
        finally:
            self.open -= 1
            writer.close()

    def attempt(self, **fields: Any) -> Attempt:
        return Attempt("127.0.0.1", self.port, **fields)


@asynccontextmanager
async def replica(script: Script = polite) -> AsyncIterator[Replica]:
    """A replica for the block's time."""
    made = Replica(script)
    server = await asyncio.start_server(made._serve, "127.0.0.1", 0, limit=1 << 20)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
        await until(lambda: made.open == 0)
    finally:
        server.close()  # Its wait_closed() may wait for ever for a client that was reset early.


def nowhere() -> Attempt:
    """An attempt at a port where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return Attempt("127.0.0.1", sock.getsockname()[1])


# -- the director -------------------------------------------------------------------------------


class ScriptedExchange:
    """Goes through its steps; writes down what it is told and insists on the contract's order."""

    def __init__(self, director: ScriptedDirector, steps: Sequence[Attempt | Reply]) -> None:
        assert isinstance(steps[0], Attempt)
        self.attempt = steps[0]
        self.director = director
        self.steps = list(steps[1:])
        self.calls: list[str] = []
        self.is_over = False

    def _note(self, call: str, *, is_last: bool = False) -> None:
        assert not self.is_over, f"{call} after {self.calls}"
        self.calls.append(call)
        if is_last:
            self.is_over = True
            self.director.open -= 1

    def sent(self, now: float) -> None:
        self._note("sent")

    def head(self, status: int, headers: Sequence[Header], now: float) -> Attempt | None:
        self._note(f"head {status}")
        self.director.heads.append(list(headers))
        if status in self.director.retried and self.steps:
            step = self.steps.pop(0)
            assert isinstance(step, Attempt)
            return step
        return None

    def first_byte(self, now: float) -> None:
        self._note("first_byte")

    def failed(self, failure: Failure, detail: str, now: float) -> Attempt | Reply:
        self._note(f"failed {failure.value}")
        step: Attempt | Reply = self.steps.pop(0) if self.steps else Reply(502, b"no more")
        if isinstance(step, Reply):
            self.is_over = True
            self.director.open -= 1
        return step

    def ended(self, now: float, tail: bytes) -> None:
        self.director.tails.append(tail)
        self._note("ended", is_last=True)

    def broken(self, now: float) -> None:
        self._note("broken", is_last=True)

    def abandoned(self, now: float) -> None:
        self._note("abandoned", is_last=True)


class ScriptedDirector:
    """Sends every request through the same steps. `transcripts` has each exchange's calls."""

    def __init__(self, *steps: Attempt | Reply, retried: Sequence[int] = ()) -> None:
        self.steps = steps
        self.retried = frozenset(retried)
        self.requests: list[Request] = []
        self.bodies: list[bytes] = []
        self.pieces: list[int] = []
        self.exchanges: list[ScriptedExchange] = []
        self.heads: list[list[Header]] = []
        self.tails: list[bytes] = []
        self.refusal: Reply | None = None
        self.gate: asyncio.Event | None = None
        self.open = 0

    @property
    def transcripts(self) -> list[list[str]]:
        return [exchange.calls for exchange in self.exchanges]

    def admit(self, request: Request) -> Reply | None:
        return self.refusal

    def begin(self, request: Request) -> Exchange | Reply | Awaitable[Exchange | Reply]:
        self.requests.append(request)
        self.bodies.append(b"".join(request.body))
        self.pieces.append(len(request.body))
        if self.gate is not None:
            return self._later()
        return self._outcome()

    async def _later(self) -> Exchange | Reply:
        assert self.gate is not None
        await self.gate.wait()
        return self._outcome()

    def _outcome(self) -> Exchange | Reply:
        first = self.steps[0]
        if isinstance(first, Reply):
            return first
        exchange = ScriptedExchange(self, self.steps)
        self.exchanges.append(exchange)
        self.open += 1
        return exchange


# -- the relay and its clients ------------------------------------------------------------------


@asynccontextmanager
async def relaying(
    director: ScriptedDirector,
    limits: Limits | None = None,
    resolver: Resolver | None = None,
) -> AsyncIterator[RelayServer]:
    """A relay for the block's time; afterwards nothing of it may be left."""
    before = len(asyncio.all_tasks())
    relay = await serve(director, host="127.0.0.1", port=0, limits=limits, resolver=resolver)
    try:
        yield relay
        await until(lambda: director.open == 0)
        await until(lambda: relay.connections == 0)
        await until(lambda: relay.tasks <= 1)  # The sweeper's.
        assert relay.bodies_bytes == 0
    finally:
        await relay.close()
    assert (relay.connections, relay.upstream_connections, relay.tasks) == (0, 0, 0)
    await until(lambda: len(asyncio.all_tasks()) <= before + director_tasks())


def director_tasks() -> int:
    """Tasks of mock replicas that have not yet seen their connection close."""
    return sum("Replica._serve" in repr(task) for task in asyncio.all_tasks())


class Caller:
    """A raw client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def response(self) -> tuple[bytes, bytes]:
        """The next response's head and its raw body, by content-length or last chunk."""
        head = await self.head()
        if b"transfer-encoding: chunked" in head:
            return head, await self.reader.readuntil(b"0\r\n\r\n")
        size = next(
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        return head, await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """All up to the end of the connection; ConnectionResetError if it is no proper end."""
        return await self.reader.read()

    def reset(self) -> None:
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@asynccontextmanager
async def calling(relay: RelayServer) -> AsyncIterator[Caller]:
    """A client's connection for the block's time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port, limit=1 << 27)
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()


async def ask(relay: RelayServer, data: bytes) -> bytes:
    """All that comes back for some bytes on a new connection that the relay is to close."""
    async with calling(relay) as caller:
        caller.send(data)
        return await caller.rest()
