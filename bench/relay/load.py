"""Load: clients in a closed loop that send chat requests and read streams to their end.

No two requests share a prefix beyond the system prompt, a few words. Times are seconds from just
before a request is written to the first byte of the stream's body. It must cost little: it
shares the relay's two cores.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

LAST = b"0\r\n\r\n"
WORDS = [f"word{number}" for number in range(1000)]


def requests(seed: int, size: int, chunks: int, count: int) -> Iterator[bytes]:
    """`count` chat requests with bodies of about `size` bytes, different from their first word."""
    rng = random.Random(seed)
    text = " ".join(rng.choices(WORDS, k=max(1, (size - 280) // 8)))
    value = {
        "model": "mock",
        "stream": True,
        "max_tokens": chunks,
        "messages": [
            {"role": "system", "content": "You are a careful assistant. Answer in few words."},
            {"role": "user", "content": f"UNIQUE {text}"},
        ],
    }
    before, _, after = json.dumps(value).encode().partition(b"UNIQUE")
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\naccept: */*\r\n"
        "authorization: Bearer none\r\ncontent-type: application/json\r\n"
        f"user-agent: bench\r\ncontent-length: {len(before) + 16 + len(after)}\r\n\r\n"
    ).encode()
    for _ in range(count):
        yield b"%b%b%016x%b" % (head, before, rng.getrandbits(64), after)


@dataclass(slots=True)
class Tally:
    """What clients saw."""

    first_seconds: list[float] = field(default_factory=list)
    bad: int = 0


class Client(asyncio.Protocol):
    """One connection; takes the next request when the last one has ended."""

    def __init__(self, source: Iterator[bytes], tally: Tally) -> None:
        self._source = source
        self._tally = tally
        self._begun = 0.0
        self._got = b""
        self._is_first_seen = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def _next(self) -> None:
        data = next(self._source, None)
        if data is None:
            self._transport.close()
            return
        self._got = b""
        self._is_first_seen = False
        self._begun = time.perf_counter()
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if not self._is_first_seen:
            self._got += data
            if b"\r\n\r\n" not in self._got:
                return
            if not self._got.startswith(b"HTTP/1.1 200"):
                self._tally.bad += 1
                self._transport.close()
                return
            if b"data:" not in self._got:
                return
            self._is_first_seen = True
            self._tally.first_seconds.append(time.perf_counter() - self._begun)
        if data.endswith(LAST) or data == LAST[-len(data) :]:
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._tally.bad += 1
        if not self.done.done():
            self.done.set_result(None)


async def drive(port: int, connections: int, source: Iterator[bytes]) -> Tally:
    """Sends everything in `source` over so many connections, each one request at a time."""
    tally = Tally()
    loop = asyncio.get_running_loop()
    clients = [
        (await loop.create_connection(lambda: Client(source, tally), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    await asyncio.gather(*(client.done for client in clients))
    return tally
