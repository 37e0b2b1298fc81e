"""Upstream: one connection to a replica. Reads responses only for where they end.

A head is told as soon as it is here, but passed on together with the body's first byte: an engine
sends the head of a stream long before its first token, and until then another replica may still
answer. Then the body's bytes go to the client as they came, chunk framing included. Nothing behind
a response's end ever reaches a client: what cannot be cut off exactly breaks the response off
instead. It must not know attempts, retries or directors; it tells its `ResponseSink`. Clients that
cannot read chunks get the payload alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from router.relay.common import ResponseSink
from router.relay.exchange import Header
from router.relay.heads import Ending, response_ending

if TYPE_CHECKING:
    from router.relay.pool import Key, Pool

TAIL_BYTES = 4096
TAIL_PIECES = 8
"""Body pieces remembered for the tail. An SSE stream ends in the usage's event and [DONE]."""
LAST_CHUNK = b"0\r\n\r\n"
JOINED_BYTES_MAX = 8192
"""Bodies up to here are copied behind their head: cheaper than a write of two pieces."""


class Upstream:
    """Serves one response at a time; between two it rests in the pool. An `asyncio.Protocol`, but
    not by descent: see `compiling`."""

    def __init__(self, pool: Pool, key: Key) -> None:
        self.pool = pool
        self.key = key
        self.idle_since = 0.0
        self.is_reused = False
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set by connection_made
        self.sink: ResponseSink | None = None
        self.tail: deque[bytes] = deque(maxlen=TAIL_PIECES)
        self.on_body: Callable[[bytes], None] = self.tail.append
        self._is_paused = False
        self._is_given_up = False
        self._is_parser_kept = False

    # -- one response ---------------------------------------------------------------------------

    def begin(
        self, sink: ResponseSink, pieces: Sequence[bytes], method: bytes, *, is_unchunked: bool
    ) -> None:
        """Sends a request (its head and body in pieces) and gets ready for the response."""
        self.sink = sink
        self.method = method
        self.raw = b""
        self.status = 0
        self.reason = b""
        self.headers: list[Header] = []
        self.interim = 0
        self.body_at = 0
        self.remaining = 0
        self.ending = Ending.EMPTY
        self.has_head = self.is_passing = self.is_complete = self.has_excess = False
        self.has_body = False
        self.payload: list[bytes] | None = [] if is_unchunked else None
        self.last = b""  # The last chunk may come in pieces.
        self.tail.clear()
        self.on_body = self.tail.append if self.payload is None else self.payload.append
        if not self._is_parser_kept or is_unchunked:  # A parser looks `on_body` up but once.
            self.parser = HttpResponseParser(self)
        self._is_parser_kept = False
        if len(pieces) == 2 and len(pieces[1]) <= JOINED_BYTES_MAX:
            self.transport.write(pieces[0] + pieces[1])
        else:
            self.transport.writelines(pieces)

    def pass_to(self, client: asyncio.Transport) -> None:
        """From here on body bytes go to `client`."""
        self.client = client
        self.write = client.write
        self.is_passing = True

    def drop(self) -> None:
        """Cuts the connection at once; the sink hears nothing more."""
        self.sink = None
        self.transport.abort()

    def give_up(self) -> None:
        """Nobody waits any more for this connection to be made."""
        self._is_given_up = True
        if self.transport is not None:
            self.transport.abort()

    def pause(self) -> None:
        """The client takes no more for now."""
        if not self._is_paused and not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    # -- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses.
        if self._is_given_up:
            self.transport.abort()
        else:
            self.pool.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.forget(self)
        sink, self.sink = self.sink, None
        if sink is None:
            return
        if self.has_head and self.ending == Ending.CLOSED and exc is None:
            if not self.is_passing:
                head = sink.body_came(self)  # only now it is known to whom: see `pass_to`
                self.write(head)
            sink.response_over(self._tail(), False)
        elif not self.is_passing:
            sink.lost(str(exc or "closed"), False, self.is_reused and not self.raw)
        else:
            sink.response_broken()

    def eof_received(self) -> None:
        """A replica that ends its sending has nothing more to say: the connection closes."""

    def pause_writing(self) -> None:
        """A request's body fills the socket. All of it is in memory: there is nobody to slow."""

    def resume_writing(self) -> None:
        """It drains again."""

    def data_received(self, data: bytes) -> None:
        if self.is_passing and self.sink is not None:
            if self.ending == Ending.CHUNKED:
                try:
                    self.parser.feed_data(data)
                except (HttpParserError, HttpParserUpgrade):
                    self._break()
                    return
            self._pass(data)
        elif self.sink is None:
            self.transport.abort()  # Nobody asked.
        else:
            self._head_came(data, self.sink)

    def _head_came(self, data: bytes, sink: ResponseSink) -> None:
        self.raw = raw = self.raw + data if self.raw else data
        try:
            self.parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self.is_complete or self.status == 101:
                self._malformed(sink, str(error))
                return
            self.has_excess = True
        if not self.has_head:
            if len(raw) > self.pool.limits.head_bytes_max:
                self._malformed(sink, "head too large")
            return
        if not self.body_at:
            if not self._is_fit(sink):
                return
            if self.ending != Ending.CHUNKED:
                self.payload = None
                self.tail.clear()
            if not sink.head_came(self.status, self.headers):
                return
        if self.has_excess and self.ending == Ending.CHUNKED:
            self._malformed(sink, "more than one response")
        elif self._is_body_here():
            self.raw = b""
            head = sink.body_came(self)
            self._pass(raw[self.body_at :], head)
        elif len(raw) - self.body_at > self.pool.limits.head_bytes_max:
            self._malformed(sink, "a chunk's head too large")

    def _is_fit(self, sink: ResponseSink) -> bool:
        """Whether the head can be trusted; where its body begins and how it ends is then known."""
        raw, start = self.raw, 0
        for _ in range(self.interim + 1):
            if not raw.startswith(b"HTTP/1.", start):
                self._malformed(sink, "stray bytes before a head")
                return False
            start = raw.index(b"\r\n\r\n", start) + 4
        ending = response_ending(self.method, self.status, self.headers)
        if ending is None or self.status < 200 or start > self.pool.limits.head_bytes_max:
            self._malformed(sink, "contradictory head")
            return False
        self.body_at = start
        self.ending, self.remaining = ending
        return True

    def _is_body_here(self) -> bool:
        """Whether the body has begun, or is known to be empty."""
        if self.ending == Ending.CHUNKED:
            return bool(self.tail or self.payload) or self.is_complete
        return len(self.raw) > self.body_at or (self.ending != Ending.CLOSED and not self.remaining)

    def _pass(self, data: bytes, head: bytes = b"") -> None:
        """Writes body bytes on, and sees whether they were the last."""
        is_over, is_clean = False, True
        if self.ending == Ending.CHUNKED:
            if self.has_excess:
                self._break()
                return
            if len(data) < len(LAST_CHUNK):
                self.last = self.last[-len(LAST_CHUNK) :] + data
            else:
                self.last = data
            if self.is_complete:
                is_over, is_clean = True, self.last.endswith(LAST_CHUNK)
            if self.payload is not None:
                data = b"".join(self.payload)
                self.payload.clear()
                self.tail.append(data)
            has_body = bool(self.tail)
        else:
            if self.ending != Ending.CLOSED:
                if len(data) > self.remaining:
                    data, self.has_excess = data[: self.remaining], True
                self.remaining -= len(data)
                is_over = self.remaining == 0
            self.tail.append(data)
            has_body = bool(data)
        if head:  # One packet, not two.
            if len(data) <= JOINED_BYTES_MAX:
                self.write(head + data)
            else:
                self.client.writelines((head, data))
        elif data:
            self.write(data)
        if has_body and not self.has_body:
            self.has_body = True
            if self.sink is not None:
                self.sink.body_began()
        if is_over:
            self._over(is_clean)

    def _over(self, is_clean: bool) -> None:
        sink, self.sink = self.sink, None
        tail = self._tail()
        self.tail.clear()
        self.last = b""
        self.is_passing = False
        keeps = self.keeps_alive and is_clean and not self.has_excess
        if keeps and not self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.resume()
            # Its parser has seen this response's end, and can read the next one. Others have not.
            self._is_parser_kept = self.is_complete and self.payload is None
            self.pool.give_back(self)
        else:
            self.transport.abort()
        if sink is not None:
            sink.response_over(tail, is_clean)

    def _break(self) -> None:
        sink = self.sink
        self.drop()
        if sink is not None:
            sink.response_broken()

    def _malformed(self, sink: ResponseSink, detail: str) -> None:
        self.drop()
        sink.lost(detail, True, False)

    def _tail(self) -> bytes:
        kept: list[bytes] = []
        missing = TAIL_BYTES
        for piece in reversed(self.tail):
            kept.append(piece[-missing:])
            missing -= len(kept[-1])
            if missing <= 0:
                break
        return b"".join(reversed(kept))

    # -- httptools ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.has_excess = True

    def on_status(self, reason: bytes) -> None:
        if not self.has_head:
            self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:  # Else a trailer, which goes on with the raw bytes.
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.has_head:
            return
        self.status = self.parser.get_status_code()
        if 100 <= self.status < 200 and self.status != 101:
            self.interim += 1
            self.headers = []
            self.reason = b""
            return
        self.keeps_alive = self.parser.should_keep_alive()
        self.has_head = True

    def on_message_complete(self) -> None:
        if self.has_head:
            self.is_complete = True
