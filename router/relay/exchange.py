"""Exchange: the contract between the relay, which moves bytes, and whoever decides where they go.

The relay calls a `Director` once for each request, when its body is complete, and then tells the
`Exchange` it got what happens, in the order of `Exchange`'s methods. Exactly one of `ended`,
`broken`, `abandoned`, or a `failed` that answers with a `Reply` is the last call. Times are seconds
of one monotonic clock. All calls come on the event loop's thread.

It must not know replicas' names for load, prefixes or policies, and does no I/O. Values made for
every request have written constructors: see `compiling`.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

Header = tuple[bytes, bytes]
"""Name and value as bytes; names of parsed requests are in lower case."""


@dataclass(init=False, slots=True)
class Request:
    """A request as it came. `body` holds the received pieces, in order, unjoined."""

    method: bytes
    target: bytes
    headers: Sequence[Header]
    body: list[bytes]
    body_bytes: int
    received_at: float
    client: str

    def __init__(
        self,
        method: bytes,
        target: bytes,
        headers: Sequence[Header],
        body: list[bytes] | None = None,
        body_bytes: int = 0,
        received_at: float = 0.0,
        client: str = "",
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = [] if body is None else body
        self.body_bytes = body_bytes
        self.received_at = received_at
        self.client = client

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by its name in lower case."""
        return next((value for known, value in self.headers if known == name), None)


Where = tuple[str, int, bool, bytes]
"""Host, port, whether by TLS, and the path put before requests: several may share a port."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer the router gives itself."""

    status: int
    body: bytes = b""
    headers: tuple[Header, ...] = ((b"content-type", b"application/json"),)


@dataclass(init=False, slots=True, unsafe_hash=True)
class Attempt:
    """Where to send the request, and what to add. Nobody assigns its fields."""

    host: str
    port: int
    is_tls: bool
    path_prefix: bytes
    """Put before the request's target (a replica's URL may have a path)."""
    request_headers: tuple[Header, ...]
    """Replace the request's own of the same name, or are added (the replicas' key)."""
    response_headers: tuple[Header, ...]
    """Replace the answer's own of the same name, or are added (why this replica)."""
    body: tuple[bytes, ...] | None
    """Sent instead of the request's body, where the decision had to change it."""
    first_byte_seconds_max: float | None
    """Without the answer's first body byte for this long the attempt has failed; None waits for
    ever. (An engine sends the head of a stream long before its first token.)"""
    is_repeatable: bool
    """False: goes out on a new connection. One kept from earlier may be closing, and whether the
    request was acted on before that cannot be told."""

    def __init__(
        self,
        host: str,
        port: int,
        is_tls: bool = False,
        path_prefix: bytes = b"",
        request_headers: tuple[Header, ...] = (),
        response_headers: tuple[Header, ...] = (),
        body: tuple[bytes, ...] | None = None,
        first_byte_seconds_max: float | None = None,
        is_repeatable: bool = True,
    ) -> None:
        self.host = host
        self.port = port
        self.is_tls = is_tls
        self.path_prefix = path_prefix
        self.request_headers = request_headers
        self.response_headers = response_headers
        self.body = body
        self.first_byte_seconds_max = first_byte_seconds_max
        self.is_repeatable = is_repeatable

    def is_at(self, where: Where) -> bool:
        return (self.host, self.port, self.is_tls, self.path_prefix) == where


class Failure(enum.Enum):
    """Why an attempt came to nothing before its first byte reached the client."""

    CONNECT = "connect"  # no connection
    CLOSED = "closed"  # closed or reset before a whole response head, or a body's first byte
    MALFORMED = "malformed"  # what came was not HTTP
    TIMEOUT = "timeout"  # first_byte_seconds_max passed


class Exchange(Protocol):
    """One request on its way. `attempt` is where it goes first."""

    attempt: Attempt

    def sent(self, now: float) -> None:
        """The request's last byte was handed to the connection of the current attempt."""

    def head(self, status: int, headers: Sequence[Header], now: float) -> Attempt | None:
        """A response head is here and nothing of it was passed on. Another attempt to make
        instead (this one's connection is dropped), or None: it is passed on with the body's first
        byte; a connection that dies before that is still a `failed`."""

    def first_byte(self, now: float) -> None:
        """The first byte of the response's body is on its way to the client. From here on there
        is no retry."""

    def failed(self, failure: Failure, detail: str, now: float) -> Attempt | Reply:
        """The attempt failed before anything was passed on: the next one, or the answer."""

    def ended(self, now: float, tail: bytes) -> None:
        """The whole response was relayed; `tail` is the last of its body, at most 4 KiB."""

    def broken(self, now: float) -> None:
        """The replica's stream broke off after the head was passed on; the client's connection
        is closed without a proper end, so that it can tell."""

    def abandoned(self, now: float) -> None:
        """The client is gone; the replica's connection has been closed."""


class Director(Protocol):
    """Decides. Must not block; `begin` may await (a tokenizer in a thread)."""

    def admit(self, request: Request) -> Reply | None:
        """Called with the head alone, before the body is read: a refusal (401), or None."""

    def begin(self, request: Request) -> Exchange | Reply | Awaitable[Exchange | Reply]:
        """The whole request is here: where it goes, or an answer of the router's own."""
