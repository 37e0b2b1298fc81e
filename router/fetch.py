"""Fetch: one small HTTP request of the router's own, for probes, models and numbers.

Returns the status and the body, or raises FetchError: whatever goes wrong on the network is
translated here. Every fetch has a deadline and a limit on what it accepts. A connection serves one
fetch: probes must notice a replica that takes no new connections. Clients' requests never come this
way (`relay` moves them), so nothing here can touch a count of load.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httptools

from router.download import tls_context
from router.relay.resolver import Resolver
from router.replicas import Replica

BYTES_MAX = 8 << 20  # a busy vLLM's /metrics has a few hundred kB
PIECE_BYTES = 64 << 10
FRAMING = frozenset((b"content-length", b"transfer-encoding"))
"""An answer without either ends with its connection."""


class FetchError(Exception):
    """No usable answer: no connection, none in time, too long, or not HTTP."""


@dataclass(frozen=True, slots=True)
class Fetched:
    status: int
    body: bytes


class _Answer:
    """What httptools' parser calls."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.has_head = False
        self.tells_its_end = False
        self.is_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in FRAMING:
            self.tells_its_end = True

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self.is_complete = True


async def fetch(
    replica: Replica,
    path: str,
    *,
    resolver: Resolver,
    deadline_seconds: float,
    key: str | None = None,
    body: bytes | None = None,
    header: str = "",
) -> Fetched:
    """GET `path` from a replica, or POST a JSON body. `key` goes along as a bearer token, and one
    more `header`."""
    try:
        async with asyncio.timeout(deadline_seconds):
            return await _fetch(replica, path, resolver, key, body, header)
    except TimeoutError as error:
        raise FetchError(f"no answer within {deadline_seconds:g} s") from error
    except (OSError, ValueError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        # ValueError: a host name that cannot be one, to TLS.
        raise FetchError(str(error) or type(error).__name__) from error


async def _fetch(
    replica: Replica,
    path: str,
    resolver: Resolver,
    key: str | None,
    body: bytes | None,
    header: str,
) -> Fetched:
    tls = tls_context() if replica.is_tls else None
    name = replica.host if tls else None
    reader, writer = await resolver.connected(
        replica.host,
        lambda address: asyncio.open_connection(
            address, replica.port, ssl=tls, server_hostname=name
        ),
    )
    try:
        method = "GET" if body is None else "POST"
        host = replica.id.removesuffix(replica.path)
        head = f"{method} {replica.path}{path} HTTP/1.1\r\nhost: {host}\r\n"
        if body is not None:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        if key:
            head += f"authorization: Bearer {key}\r\n"
        if header:
            head += f"{header}\r\n"
        writer.write(f"{head}accept: */*\r\nconnection: close\r\n\r\n".encode() + (body or b""))
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        received = 0
        while not answer.is_complete:
            piece = await reader.read(PIECE_BYTES)
            if not piece:
                break
            received += len(piece)
            if received > BYTES_MAX:
                raise FetchError(f"an answer of more than {BYTES_MAX} bytes")
            parser.feed_data(piece)
        if not answer.has_head:
            raise FetchError("the connection closed before an answer")
        if answer.tells_its_end and not answer.is_complete:
            raise FetchError("the answer ended early")
        return Fetched(parser.get_status_code(), b"".join(answer.pieces))
    finally:
        writer.transport.abort()  # nothing is left to send, and waiting could hang
