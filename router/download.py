"""Download: one text by HTTP that is here by a deadline, however slowly its server sends.

Returns the body, or raises DownloadError. `urllib`'s own timeout begins anew with every byte; here
every wait, for the connection, the head and each piece, redirects included, ends at one time (but
the look-up of a name, which takes what the system's resolver does).
Proxies are taken from the environment unless told not to. Blocks; any thread. It needs the standard
library alone: the announcing command has no more beside an engine.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

NO_HEADERS: Mapping[str, str] = {}


class DownloadError(Exception):
    """No whole body of the size allowed; the text says why."""


@cache
def tls_context() -> ssl.SSLContext:
    """The system's certificates; made once, reading them takes tens of milliseconds."""
    return ssl.create_default_context()


def download(
    url: str,
    *,
    bytes_max: int,
    deadline_seconds: float,
    headers: Mapping[str, str] = NO_HEADERS,
    uses_proxies: bool = True,
) -> bytes:
    """GET `url`; nothing but http and https, also where it redirects."""
    left = _left_until(time.monotonic() + deadline_seconds)
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(None if uses_proxies else {}),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Http(left),
        _Https(left),
    ):
        opener.add_handler(handler)
    try:
        request = urllib.request.Request(url, headers=dict(headers))
        with opener.open(request, timeout=deadline_seconds) as answer:
            data: bytes = answer.read(bytes_max + 1)
            is_torn = bool(answer.length) and len(data) <= bytes_max
    except TimeoutError as error:
        raise DownloadError(f"not here within {deadline_seconds:g} s") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise DownloadError(f"not here within {deadline_seconds:g} s") from error
        raise DownloadError(str(error.reason)) from error
    except (http.client.HTTPException, OSError, ValueError) as error:  # no HTTP, or no URL
        raise DownloadError(repr(error)) from error
    if len(data) > bytes_max:
        raise DownloadError(f"more than {bytes_max} bytes")
    if is_torn:
        raise DownloadError("it ended early")
    return data


def _left_until(end: float) -> Callable[[], float]:
    """Seconds left; TimeoutError when there are none."""

    def left() -> float:
        seconds = end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("timed out")
        return seconds

    return left


class _Http(urllib.request.HTTPHandler):
    def __init__(self, left: Callable[[], float]) -> None:
        super().__init__()
        self._left = left

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_hurried(http.client.HTTPConnection, self._left), request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, left: Callable[[], float]) -> None:
        super().__init__()
        self._left = left

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(
            _hurried(http.client.HTTPSConnection, self._left), request, context=tls_context()
        )


def _hurried(kind: type[http.client.HTTPConnection], left: Callable[[], float]) -> Any:
    """That kind of connection, each of whose waits takes at most what is `left`."""

    class Response(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, *arguments: Any, **more: Any) -> None:
            super().__init__(sock, *arguments, **more)
            self.fp = io.BufferedReader(_Hurried(sock, self.fp, left))

    class Connection(kind):  # type: ignore[misc, valid-type]  # one of two classes
        response_class = Response

        def connect(self) -> None:
            self._create_connection = partial(_connected, left)
            super().connect()

    return Connection


def _connected(
    left: Callable[[], float], address: tuple[str, int], *_unused: object
) -> socket.socket:
    """To the first of a name's addresses that answers. `socket.create_connection` gives each all
    of the time; here one that is silent leaves the others their share."""
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    trouble: OSError = OSError("the name has no address")
    for number, (family, kind, protocol, _, place) in enumerate(found):
        try:
            line = socket.socket(family, kind, protocol)
        except OSError as error:  # a kind of address this machine has not
            trouble = error
            continue
        try:
            line.settimeout(left() / (len(found) - number))
            line.connect(place)
            line.settimeout(left())  # for what is sent, and for agreeing on TLS
            return line
        except OSError as error:
            line.close()
            trouble = error
    raise trouble


class _Hurried(io.RawIOBase):
    """What a socket receives."""

    def __init__(
        self, sock: socket.socket, file: io.BufferedIOBase, left: Callable[[], float]
    ) -> None:
        self._sock = sock
        self._file = file  # holds the socket open
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._left())
        return self._sock.recv_into(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()
