"""Reader: requests out of a client's bytes, or the refusal that ends them.

Fed with what came; puts complete requests into `ready`, in order, and at most one refusal, last.
A request that two readers could read differently is refused. It writes nothing, so it cannot know
whose turn it is; it asks the director to admit a head and holds bodies within the limits.
"""

from __future__ import annotations

from collections import deque

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from router.relay.common import Common, Incoming, log
from router.relay.exchange import Header, Reply, Request
from router.relay.heads import Refused, origin_target, refusal, request_shape

PIECES_MAX = 4096
"""Body pieces before small ones are joined: a body in one-byte chunks must not cost 50x."""
CHUNKING_FACTOR_MAX = 2
"""Bytes on the wire for each byte a chunked body may have, extensions and trailers included."""


class Reader:
    """Reads one client's requests. Methods named `on_...` are the parser's."""

    __slots__ = (
        "_common",
        "_headers",
        "_is_body_elsewhere",
        "_is_synthetic",
        "_joined",
        "_parser",
        "_peer",
        "_url",
        "_wire_bytes",
        "incoming",
        "is_in_head",
        "is_refused",
        "ready",
    )

    def __init__(self, common: Common, peer: str) -> None:
        self._common = common
        self._peer = peer
        self.ready: deque[Incoming | Reply] = deque()
        self.incoming: Incoming | None = None
        """The request whose body is being read."""
        self.is_in_head = False
        self.is_refused = False
        self._parser = HttpRequestParser(self)
        self._url = b""
        self._headers: list[Header] = []
        self._is_body_elsewhere = False
        self._is_synthetic = False
        self._wire_bytes = 0
        self._joined = 0

    @property
    def method(self) -> bytes:
        """Of the request being read or refused, GET where that is not known: HEAD's answer has no
        body."""
        if self.incoming is not None:
            return self.incoming.request.method
        return self._parser.get_method() if self._url else b"GET"

    def feed(self, data: bytes) -> None:
        """Reads on. After a refusal nothing more is to be fed."""
        was_in_head, had_body = self.is_in_head, self.incoming is not None
        headers = self._headers
        try:
            self._feed(data)
            if was_in_head and self.is_in_head and self._headers is headers:  # still the same head
                self._count_wire(len(data), self._common.limits.head_bytes_max, 431)
            elif had_body and self.incoming is not None:
                limit = CHUNKING_FACTOR_MAX * self._common.limits.body_bytes_max
                self._count_wire(len(data), limit, 413)
        except Refused as refused:
            self._refuse(refused.reply)
        except HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, Refused):
                self._refuse(cause.reply)
            else:
                log.error("reading a request failed", exc_info=cause)
                self._refuse(refusal(500, "the router failed"))
        except HttpParserError:
            self._refuse(refusal(400, "not well-formed HTTP"))

    def _refuse(self, reply: Reply) -> None:
        self.is_refused = True
        self.forget_body()
        self.ready.append(reply)

    def forget_body(self) -> None:
        """Drops the request whose body is being read."""
        if self.incoming is not None:
            self._common.release(self.incoming)
            self.incoming = None

    def close(self) -> None:
        """Drops everything: the client is gone."""
        self.is_refused = True
        self.forget_body()
        for item in self.ready:
            if isinstance(item, Incoming):
                self._common.release(item)
        self.ready.clear()

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
                if self._is_body_elsewhere and self.incoming is not None:
                    self._is_synthetic = True
                    length = self.incoming.request.header(b"content-length")
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
        self.is_in_head = True
        self._url = b""
        self._headers = []
        self._wire_bytes = 0

    def on_url(self, url: bytes) -> None:
        if not self._is_synthetic:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_in_head:  # Else a trailer: dropped, since bodies leave with a length.
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._is_synthetic:
            return
        self.is_in_head = False
        self._wire_bytes = 0
        common, limits, headers = self._common, self._common.limits, self._headers
        size = len(self._url)
        for name, value in headers:
            size += len(name) + len(value) + 4
        if len(headers) > limits.headers_max or size > limits.head_bytes_max:
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
        self.incoming = Incoming(
            request,
            is_http10,
            keeps_alive=not is_http10 and self._keeps_alive(headers),
            expects_continue=shape.expects_continue,
            has_body=shape.is_chunked or shape.content_length > 0,
        )
        self._joined = 0

    @staticmethod
    def _keeps_alive(headers: list[Header]) -> bool:
        for name, value in headers:
            if name == b"connection" and b"close" in value.lower():
                return False
        return True

    def on_body(self, data: bytes) -> None:
        incoming = self.incoming
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
        incoming = self.incoming
        assert incoming is not None
        if not self._is_synthetic and incoming.has_body and self._parser.should_upgrade():
            self._is_body_elsewhere = True
            return
        self._is_synthetic = self._is_body_elsewhere = False
        incoming.request.received_at = self._common.now()
        self.incoming = None
        self.ready.append(incoming)
