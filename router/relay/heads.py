"""Heads: message heads as bytes. What may be passed on, how a body's end is told, what is refused.

Pure functions over parsed headers (names in lower case). Both kinds of head are written anew from
what was parsed, never copied, so what this side understood is what the other side gets: a request
always leaves with one content-length or none. It must not know sockets or decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from router.relay.exchange import Attempt, Header, Reply, Request

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection te trailer upgrade http2-settings".split()
)
REQUEST_DROPPED = HOP_BY_HOP | frozenset(b"host content-length transfer-encoding expect".split())
RESPONSE_DROPPED = HOP_BY_HOP - {b"trailer"}
TELLING = frozenset(b"host content-length transfer-encoding expect connection".split())
"""Request headers this module looks at."""
FRAMING = frozenset(b"content-length transfer-encoding".split())
"""Never dropped because a connection header names them: the body's end hangs on them."""
NO_NAMES: frozenset[bytes] = frozenset()
PLAIN_CONNECTION = frozenset((b"keep-alive", b"close"))
BODY_METHODS = frozenset((b"POST", b"PUT", b"PATCH"))
"""Methods whose empty body is announced as such."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}


_AUTHORITIES_MAX = 4096  # replicas come and go
_authorities: dict[tuple[str, int, bool], bytes] = {}


class Refused(Exception):
    """A request this relay does not take; `reply` says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why)
        self.reply = refusal(status, why)


def refusal(status: int, why: str, *headers: Header) -> Reply:
    """An error in the shape OpenAI's clients read. `why` is one of our own sentences."""
    body = f'{{"error":{{"message":"{why}","type":"router","code":{status}}}}}'
    return Reply(status, body.encode(), ((b"content-type", b"application/json"), *headers))


class RequestShape:
    """What a request's head says about what follows it."""

    __slots__ = ("content_length", "expects_continue", "is_chunked")

    def __init__(
        self, content_length: int = 0, is_chunked: bool = False, expects_continue: bool = False
    ) -> None:
        self.content_length = content_length
        self.is_chunked = is_chunked
        self.expects_continue = expects_continue


NO_BODY = RequestShape()


def request_shape(version: str, headers: Sequence[Header]) -> RequestShape:
    """Checks a request's head; raises `Refused` for whatever two readers could read differently."""
    length: bytes | None = None
    hosts = 0
    is_chunked = expects = False
    for name, value in headers:
        if name not in TELLING:
            continue
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            if length is not None:
                raise Refused(400, "more than one content-length")
            length = value.strip(b" \t")
        elif name == b"transfer-encoding":
            if is_chunked or value.strip(b" \t").lower() != b"chunked" or version != "1.1":
                raise Refused(400, "transfer-encoding other than one chunked")
            is_chunked = True
        elif name == b"expect":
            if value.strip(b" \t").lower() != b"100-continue":
                raise Refused(417, "unknown expectation")
            expects = version == "1.1"
    if version not in ("1.1", "1.0"):
        raise Refused(505, "an unknown version of HTTP")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise Refused(400, "not exactly one host")
    if length is not None and (is_chunked or not length.isdigit() or len(length) > 18):
        raise Refused(400, "a content-length that does not tell the length")
    if length is None and not is_chunked:
        return NO_BODY
    return RequestShape(int(length or 0), is_chunked, expects)


def origin_target(target: bytes) -> bytes:
    """A request's target as path and query; raises `Refused` for other forms."""
    if target.startswith(b"/") or target == b"*":
        return target
    scheme, colon, rest = target.partition(b"://")
    if colon and scheme.lower() in (b"http", b"https"):
        authority, slash, path = rest.partition(b"/")
        authority, mark, query = authority.partition(b"?")
        return b"/" + (mark + query + slash if mark else b"") + path
    raise Refused(400, "a target that is no path")


def named_by_connection(headers: Sequence[Header]) -> frozenset[bytes]:
    """Headers the sender calls hop-by-hop beyond the usual ones."""
    names: set[bytes] | None = None
    for name, value in headers:
        if name == b"connection" and value.lower() not in PLAIN_CONNECTION:
            named = {part.strip(b" \t").lower() for part in value.split(b",")}
            names = named if names is None else names | named
    return NO_NAMES if names is None else frozenset(names - FRAMING)


def authority(host: str, port: int, is_tls: bool) -> bytes:
    """A host header's value."""
    place = (host, port, is_tls)
    known = _authorities.get(place)
    if known is None:
        name = f"[{host}]" if ":" in host else host
        known = (name if port == (443 if is_tls else 80) else f"{name}:{port}").encode()
        if len(_authorities) >= _AUTHORITIES_MAX:
            _authorities.clear()
        _authorities[place] = known
    return known


def request_head(request: Request, attempt: Attempt, body_bytes: int) -> bytes:
    """The head a replica gets."""
    named = named_by_connection(request.headers)
    ours = attempt.request_headers
    replaced = frozenset(name for name, _ in ours) if ours else NO_NAMES
    parts = [
        b"%b %b%b HTTP/1.1\r\nhost: %b\r\n"
        % (
            request.method,
            attempt.path_prefix,
            request.target,
            authority(attempt.host, attempt.port, attempt.is_tls),
        )
    ]
    parts += [
        b"%b: %b\r\n" % (name, value)
        for name, value in request.headers
        if name not in REQUEST_DROPPED and name not in replaced and name not in named
    ]
    parts += [b"%b: %b\r\n" % pair for pair in ours]
    if body_bytes or request.method in BODY_METHODS:
        parts.append(b"content-length: %d\r\n" % body_bytes)
    parts.append(b"\r\n")
    return b"".join(parts)


class Ending:
    """How the end of a response's body is told. Plain integers: compared once for each piece."""

    EMPTY: Final = 0  # no body at all
    COUNTED: Final = 1  # content-length
    CHUNKED: Final = 2
    CLOSED: Final = 3  # when the connection ends


def response_ending(
    method: bytes, status: int, headers: Sequence[Header]
) -> tuple[int, int] | None:
    """(one of `Ending`, bytes where counted), or None for a head that contradicts itself."""
    length: bytes | None = None
    is_chunked = False
    for name, value in headers:
        if name == b"content-length":
            if length is not None:
                return None
            length = value.strip(b" \t")
            if not length.isdigit() or len(length) > 18:
                return None
        elif name == b"transfer-encoding":
            if is_chunked or value.strip(b" \t").lower() != b"chunked":
                return None
            is_chunked = True
    if is_chunked and length is not None:
        return None
    if method == b"HEAD" or status in (204, 304):
        return Ending.EMPTY, 0
    if is_chunked:
        return Ending.CHUNKED, 0
    if length is not None:
        return Ending.COUNTED, int(length)
    return Ending.CLOSED, 0


def led_back(headers: Sequence[Header], attempt: Attempt) -> list[Header]:
    """A redirect's headers. One to the replica itself leads to the same path here: clients need not
    reach replicas, and shall not pass by. Engines redirect a path with a slash too many."""
    return [
        (name, _led_back(value, attempt) if name == b"location" else value)
        for name, value in headers
    ]


def _led_back(location: bytes, attempt: Attempt) -> bytes:
    scheme, _, rest = location.partition(b"://")
    there, slash, path = rest.partition(b"/")
    own = authority(attempt.host, attempt.port, attempt.is_tls)
    is_there = scheme.lower() in (b"http", b"https") and there.lower() == own
    target = slash + path if is_there else location
    led = target.removeprefix(attempt.path_prefix)
    is_below = target.startswith(attempt.path_prefix + b"/")
    return led if is_below and not led.startswith(b"//") else location  # else another host's


def response_head(
    status: int,
    reason: bytes,
    headers: Sequence[Header],
    added: Sequence[Header],
    *,
    is_closing: bool,
    drops_chunking: bool,
) -> bytes:
    """The head a client gets: the replica's, less what is hop-by-hop, and what was `added`, which
    replaces the replica's own of the same name."""
    named = named_by_connection(headers)
    replaced = [name for name, _ in added]
    line = STATUS_LINES.get(status) if not reason else None
    parts = [line or b"HTTP/1.1 %d %b\r\n" % (status, reason)]
    parts += [
        b"%b: %b\r\n" % (name, value)
        for name, value in headers
        if name not in RESPONSE_DROPPED
        and name not in replaced
        and name not in named
        and not (drops_chunking and name == b"transfer-encoding")
    ]
    parts += [b"%b: %b\r\n" % pair for pair in added]
    parts.append(b"connection: close\r\n\r\n" if is_closing else b"\r\n")
    return b"".join(parts)


def reply_bytes(reply: Reply, method: bytes, *, is_closing: bool) -> bytes:
    """A whole answer of the router's own."""
    line = STATUS_LINES.get(reply.status) or b"HTTP/1.1 %d \r\n" % reply.status
    parts = [line, *(b"%b: %b\r\n" % pair for pair in reply.headers)]
    if reply.status not in (204, 304):
        parts.append(b"content-length: %d\r\n" % len(reply.body))
    parts.append(b"connection: close\r\n\r\n" if is_closing else b"\r\n")
    if method != b"HEAD" and reply.status not in (204, 304):
        parts.append(reply.body)
    return b"".join(parts)
