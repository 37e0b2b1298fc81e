"""Client: one client's connection. Parses requests, keeps their order, notices when it is gone.

Requests of one connection are answered one after the other, however many came at once. A request
that two readers could read differently is refused and the connection closed; what came before it
is still answered first. It must not know replicas or decisions beyond asking the director to
admit a head.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from typing import cast

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from router.relay.common import Common, Incoming, log
from router.relay.exchange import Header, Reply, Request
from router.relay.heads import (
    CONTINUE,
    Refused,
    origin_target,
    refusal,
    reply_bytes,
    request_shape,
)
from router.relay.pool import KEEPALIVE_OPTIONS
from router.relay.transfer import Transfer

PIECES_MAX = 4096
"""Body pieces before small ones are joined: a body in one-byte chunks must not cost 50x."""
CHUNKING_FACTOR_MAX = 2
"""Bytes on the wire for each byte a chunked body may have, extensions and trailers included."""


class Phase(enum.IntEnum):
    """What the connection waits for."""

    IDLE = 0  # the next request
    HEAD = 1  # the rest of a head
    BODY = 2  # the rest of a body
    BUSY = 3  # an answer
    LEAVING = 4  # what is left to write, or to be thrown away


class Client(asyncio.Protocol):
    """Speaks HTTP/1.1 to one client."""

    def __init__(self, common: Common) -> None:
        self._common = common
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set by connection_made
        self.is_paused = False
        self._paused_since = 0.0
        self._phase = Phase.IDLE
        self._since = 0.0
        self._parser = HttpRequestParser(self)
        self._transfer: Transfer | None = None
        self._ready: deque[Incoming | Reply] = deque()
        self._incoming: Incoming | None = None
        self._url = b""
        self._headers: list[Header] = []
        self._is_in_head = False
        self._is_body_elsewhere = False
        self._is_synthetic = False
        self._wire_bytes = 0
        self._joined = 0
        self._is_deaf = False
        self._is_starting = False
        self._is_reading = True
        self._peer = ""

    # -- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses.
        self._since = self._common.now()
        common = self._common
        common.clients.add(self)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        sock = transport.get_extra_info("socket")
        for level, option, value in KEEPALIVE_OPTIONS:
            sock.setsockopt(level, option, value)
        if len(common.clients) > common.limits.connections_max or common.is_draining:
            self._is_deaf = True
            self._say_and_leave(refusal(503, "too many connections"), b"GET")

    def connection_lost(self, exc: Exception | None) -> None:
        common = self._common
        common.clients.discard(self)
        self._is_deaf = True
        for item in (*self._ready, self._incoming):
            if isinstance(item, Incoming):
                self.body_released(item)
        self._ready.clear()
        self._incoming = None
        if self._transfer is not None:
            transfer, self._transfer = self._transfer, None
            transfer.client_gone()
        if not common.clients:
            common.nobody_left.set()

    def eof_received(self) -> None:
        """An end of sending is an end of interest: a half-closed client looks like a dead one."""
        if self._transfer is not None:
            self.transport.abort()

    def pause_writing(self) -> None:
        self.is_paused = True
        self._paused_since = self._common.now()
        if self._transfer is not None and self._transfer.upstream is not None:
            self._transfer.upstream.pause()

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._transfer is not None and self._transfer.upstream is not None:
            self._transfer.upstream.resume()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        was_in_head, had_body = self._is_in_head, self._incoming is not None
        refused: Reply | None = None
        try:
            self._feed(data)
            if was_in_head and self._is_in_head:
                self._count_wire(len(data), self._common.limits.head_bytes_max, 431)
            elif had_body and self._incoming is not None:
                limit = CHUNKING_FACTOR_MAX * self._common.limits.body_bytes_max
                self._count_wire(len(data), limit, 413)
        except Refused as error:
            refused = error.reply
        except HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, Refused):
                refused = cause.reply
            else:
                log.error("reading a request failed", exc_info=cause)
                refused = refusal(500, "the router failed")
        except HttpParserError:
            refused = refusal(400, "not HTTP/1.1 as it is written")
        if refused is not None:
            self._is_deaf = True
            if self._incoming is not None:
                self.body_released(self._incoming)
                self._incoming = None
            self._ready.append(refused)
        if self._transfer is None:
            if self._ready:
                self._next()
            self._note_phase()
        if self._ready:
            self._pause_pipeline()

    # -- requests -------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except HttpParserUpgrade as stop:
                # An upgrade nobody here speaks is ignored, as HTTP allows. The parser has let go
                # of the body, if there is one: another one reads it behind an equivalent head.
                data = data[stop.args[0] :]
                self._parser = HttpRequestParser(self)
                if self._is_body_elsewhere and self._incoming is not None:
                    self._is_synthetic = True
                    length = self._incoming.request.header(b"content-length")
                    framing = b"transfer-encoding: chunked"
                    if length is not None:
                        framing = b"content-length: " + length
                    self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
                if not data:
                    return

    def _count_wire(self, size: int, limit: int, status: int) -> None:
        self._wire_bytes += size
        if self._wire_bytes > limit:
            raise Refused(status, "larger than allowed")

    def on_message_begin(self) -> None:
        if self._is_synthetic:
            return
        self._is_in_head = True
        self._url = b""
        self._headers = []
        self._wire_bytes = 0

    def on_url(self, url: bytes) -> None:
        if not self._is_synthetic:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # Else a trailer: dropped, since bodies leave with a length.
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._is_synthetic:
            return
        self._is_in_head = False
        self._wire_bytes = 0
        common, limits, headers = self._common, self._common.limits, self._headers
        if len(headers) > limits.headers_max or limits.head_bytes_max < len(self._url) + sum(
            len(name) + len(value) + 4 for name, value in headers
        ):
            raise Refused(431, "head too large")
        method = self._parser.get_method()
        if method == b"CONNECT":
            raise Refused(405, "no tunnels here")
        version = self._parser.get_http_version()
        shape = request_shape(version, headers)
        request = Request(
            method,
            origin_target(self._url),
            headers,
            received_at=common.now(),
            client=self._peer,
        )
        reply = common.director.admit(request)
        if reply is not None:
            refused = Refused(reply.status, "")
            refused.reply = reply
            raise refused
        if shape.content_length > limits.body_bytes_max:
            raise Refused(413, "body too large")
        if common.bodies_bytes + shape.content_length > limits.bodies_bytes_max:
            raise Refused(503, "too many bodies at once")
        is_http10 = version == "1.0"
        self._incoming = incoming = Incoming(
            request,
            is_http10,
            keeps_alive=not is_http10 and self._keeps_alive(headers),
            has_body=shape.is_chunked or shape.content_length > 0,
        )
        self._joined = 0
        if shape.expects_continue and incoming.has_body:
            if self._transfer is None and not self._ready:
                self.transport.write(CONTINUE)
            else:
                incoming.expects_continue = True

    @staticmethod
    def _keeps_alive(headers: list[Header]) -> bool:
        for name, value in headers:
            if name == b"connection" and b"close" in value.lower():
                return False
        return True

    def on_body(self, data: bytes) -> None:
        incoming = self._incoming
        assert incoming is not None
        request = incoming.request
        request.body.append(data)
        request.body_bytes += len(data)
        common = self._common
        common.bodies_bytes += len(data)
        if request.body_bytes > common.limits.body_bytes_max:
            raise Refused(413, "body too large")
        if common.bodies_bytes > common.limits.bodies_bytes_max:
            raise Refused(503, "too many bodies at once")
        if len(request.body) - self._joined > PIECES_MAX:
            request.body[self._joined :] = [b"".join(request.body[self._joined :])]
            self._joined = len(request.body)

    def on_message_complete(self) -> None:
        incoming = self._incoming
        assert incoming is not None
        if not self._is_synthetic and incoming.has_body and self._parser.should_upgrade():
            self._is_body_elsewhere = True
            return
        self._is_synthetic = self._is_body_elsewhere = False
        incoming.request.received_at = self._common.now()
        self._incoming = None
        self._ready.append(incoming)

    def _next(self) -> None:
        """Starts what is ready, in order, until something has to be waited for."""
        if self._is_starting:
            return
        self._is_starting = True
        try:
            while self._ready and self._transfer is None and self._phase != Phase.LEAVING:
                item = self._ready.popleft()
                if isinstance(item, Reply):
                    self._say_and_leave(item, b"GET")
                    break
                self._phase = Phase.BUSY
                self._transfer = Transfer(self._common, self, item)
                self._transfer.start()
        finally:
            self._is_starting = False
        incoming = self._incoming
        if self._transfer is None and incoming is not None and incoming.expects_continue:
            incoming.expects_continue = False
            self.transport.write(CONTINUE)

    def _pause_pipeline(self) -> None:
        """A client with too much waiting is not read on. Only then its leaving goes unnoticed."""
        limits = self._common.limits
        held = sum(item.request.body_bytes for item in self._ready if isinstance(item, Incoming))
        if self._is_reading and (
            len(self._ready) > limits.pipelined_max or held > limits.body_bytes_max
        ):
            self._is_reading = False
            self.transport.pause_reading()

    def _note_phase(self) -> None:
        if self._transfer is not None or self._phase == Phase.LEAVING:
            return
        phase = Phase.IDLE
        if self._incoming is not None:
            phase = Phase.BODY
        elif self._is_in_head:
            phase = Phase.HEAD
        if phase != self._phase:
            self._phase = phase
            self._since = self._common.now()

    # -- answers --------------------------------------------------------------------------------

    def body_released(self, incoming: Incoming) -> None:
        """The body is needed no more: no attempt will follow."""
        request = incoming.request
        self._common.bodies_bytes -= request.body_bytes
        request.body, request.body_bytes = [], 0

    def answer(self, reply: Reply, incoming: Incoming, *, keeps_alive: bool) -> None:
        """The request ends in an answer of the router's own."""
        keeps_alive = keeps_alive and not self._common.is_draining
        method = incoming.request.method
        self.transport.write(reply_bytes(reply, method, is_closing=not keeps_alive))
        self.finished(keeps_alive=keeps_alive)

    def finished(self, *, keeps_alive: bool) -> None:
        """The answer is complete: the next request, or the end."""
        self._transfer = None
        if not keeps_alive or self.transport.is_closing():
            self._leave()
            return
        if self._common.is_draining and not self._ready and self._incoming is None:
            self._leave()
            return
        self._next()
        self._note_phase()
        if not self._is_reading and len(self._ready) <= self._common.limits.pipelined_max // 2:
            self._is_reading = True
            self.transport.resume_reading()

    def cut(self, *, with_reset: bool) -> None:
        """The answer broke off. What was relayed still goes out, unless the end of the connection
        would look like the end of the answer."""
        self._transfer = None
        if with_reset:
            self._reset()
        else:
            self._leave()

    def _reset(self) -> None:
        self._is_deaf = True
        self._phase = Phase.LEAVING
        self.transport.abort()

    def _say_and_leave(self, reply: Reply, method: bytes) -> None:
        """A refusal. The client may still be sending: what comes is thrown away for a while, since
        closing now would reset the connection before the refusal is read."""
        self.transport.write(reply_bytes(reply, method, is_closing=True))
        self._is_deaf = True
        self._phase = Phase.LEAVING
        self._since = self._common.now()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _leave(self) -> None:
        self._is_deaf = True
        self._phase = Phase.LEAVING
        self._since = self._common.now()
        self.transport.close()

    # -- deadlines ------------------------------------------------------------------------------

    def close_if_idle(self) -> None:
        """For draining: a connection between two requests has nothing to lose."""
        if self._phase == Phase.IDLE and not self._ready:
            self._leave()

    def sweep(self, now: float) -> None:
        """Ends what has waited longer than its limit."""
        limits = self._common.limits
        phase, waited = self._phase, now - self._since
        if self.is_paused and now - self._paused_since >= limits.stall_seconds:
            self.transport.abort()
        elif phase == Phase.IDLE and waited >= limits.idle_seconds:
            self._leave()
        elif phase == Phase.HEAD and waited >= limits.head_seconds:
            self._say_and_leave(refusal(408, "the head took too long"), b"GET")
        elif phase == Phase.BODY and self._incoming is not None:
            received = self._incoming.request.body_bytes
            if waited >= limits.body_seconds + received / limits.body_bytes_per_second_min:
                self.body_released(self._incoming)
                self._incoming = None
                self._say_and_leave(refusal(408, "the body took too long"), b"POST")
        elif phase == Phase.LEAVING:
            is_writing = self.transport.get_write_buffer_size() > 0
            if waited >= (limits.stall_seconds if is_writing else limits.linger_seconds):
                self.transport.abort()
