"""Mock replicas: several ports, one process; each answers a completion as a stream of chunks.

The request's own `max_tokens` says how many chunks, `--gap-ms` how far apart; the first goes out at
once. So a relay's cost for each request and for each chunk can be told apart. Prints its ports and
serves until its standard input closes. It must cost little: it shares the relay's two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from typing import cast

import uvloop
from httptools import HttpParserError, HttpRequestParser

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"server: mock\r\n\r\n"
)
EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"mock","choices":'
    b'[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
MODELS = b'{"object":"list","data":[{"id":"mock","object":"model"}]}'
INFO = b'{"model_path":"mock","is_generation":true,"tokenizer_path":"mock"}'
TOKENS = re.compile(rb'"max_tokens"\s*:\s*(\d+)')


class Replica(asyncio.Protocol):
    """One connection to a mock replica."""

    def __init__(self, gap_seconds: float) -> None:
        self._gap_seconds = gap_seconds
        self._parser = HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._left = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except HttpParserError:  # A router that tries HTTP/2 first.
            self._transport.abort()

    def on_url(self, url: bytes) -> None:
        self._url = url
        self._body.clear()

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._url.startswith(b"/v1/chat/completions"):
            # Wherever a router's own JSON writer has put it.
            found = TOKENS.search(b"".join(self._body))
            self._left = int(found[1]) if found else 1
            self._transport.write(HEAD)
            self._chunk()
        else:
            body = MODELS if b"models" in self._url else INFO
            self._transport.write(PLAIN % (len(body), body))

    def _chunk(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._timer = None
            self._transport.write(CHUNK + LAST)
            return
        self._transport.write(CHUNK)
        self._timer = asyncio.get_running_loop().call_later(self._gap_seconds, self._chunk)


async def main(replicas: int, gap_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    ports = []
    for _ in range(replicas):
        server = await loop.create_server(lambda: Replica(gap_seconds), "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
    print(*ports, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--gap-ms", type=float, default=5.0)
    options = parser.parse_args()
    uvloop.run(main(options.replicas, options.gap_ms / 1e3))
