"""The relay alone: replicas take turns and nothing is decided, learned or counted.

What the data path costs by itself, beside the whole router: `python -m bench.relay.alone PORT
REPLICA_PORT...` serves until it is ended.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Sequence

import uvloop

from router.relay.exchange import Attempt, Failure, Header, Reply, Request
from router.relay.server import serve


class Passage:
    """An exchange that only knows where it goes."""

    __slots__ = ("attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt

    def sent(self, now: float) -> None: ...

    def head(self, status: int, headers: Sequence[Header], now: float) -> Attempt | None:
        return None

    def first_byte(self, now: float) -> None: ...

    def failed(self, failure: Failure, detail: str, now: float) -> Attempt | Reply:
        return Reply(502)

    def ended(self, now: float, tail: bytes) -> None: ...

    def broken(self, now: float) -> None: ...

    def abandoned(self, now: float) -> None: ...


class Turns:
    """A director that lets replicas take turns."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._attempts = itertools.cycle([Attempt("127.0.0.1", port) for port in ports])

    def admit(self, request: Request) -> Reply | None:
        return None

    def begin(self, request: Request) -> Passage:
        return Passage(next(self._attempts))


async def main(port: int, replicas: Sequence[int]) -> None:
    await serve(Turns(replicas), host="127.0.0.1", port=port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
