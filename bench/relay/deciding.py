"""What the whole product does for a request beside moving bytes: `begin` to `ended`, no sockets.

    python -m bench.relay.deciding 2048
    PYTHONSAFEPATH=1 PYTHONPATH=build/compiled:. python -m bench.relay.deciding 65536

Processor time of the thread for each streamed request, 32 in flight on four replicas, prompts that
differ from their first words on: the least and the median over slices of 100 requests. Garbage
collection is off, so that a slice has no share of another's.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections import deque

import router.fleet
from bench.relay.load import requests
from router.exchanges import Decided
from router.fleet import Fleet
from router.history import History
from router.members import Members
from router.relay.exchange import Reply, Request
from router.replicas import listed
from router.routes import Routes
from router.scores import Scores
from router.service import Rules, Service
from router.tally import Tally

REPLICAS = tuple(f"http://127.0.0.1:{port}" for port in (1, 2, 3, 4))
IN_FLIGHT, SLICE, SLICES = 32, 100, 60
LAST = b"data: [DONE]\n\n"


class NoPaths:
    """None of the paths is the router's own."""

    def answer(self, path: bytes, request: Request) -> Reply | None:
        return None


def service() -> Service:
    """A service over replicas that are well."""
    fleet = Fleet(rng=random.Random(1))
    members = Members(fleet)
    members.apply(listed(list(REPLICAS)))
    for member in list(members):
        members.probed(member.replica.id, "", 0.0)
    return Service(
        Rules(),
        fleet=fleet,
        members=members,
        routes=Routes(members, replica_key=None, first_byte_seconds_max=1800.0),
        scores=Scores(fleet, Tally(), History(), wall=time.time),
        own=NoPaths(),
        now=time.monotonic,
    )


def slices(body_bytes: int) -> list[float]:
    """Microseconds a request, one figure for each slice."""
    director, under_way, found = service(), deque[Decided](), []
    made = list(requests(1, body_bytes, 1, SLICE * SLICES))
    bodies = [each.partition(b"\r\n\r\n")[2] for each in made]
    asked = [
        Request(b"POST", b"/v1/chat/completions", ((b"host", b"a"),), [body], len(body))
        for body in bodies
    ]
    now = time.monotonic()
    for start in range(0, len(asked), SLICE):
        began = time.thread_time_ns()
        for request in asked[start : start + SLICE]:
            now += 2e-4
            exchange = director.begin(request)
            assert isinstance(exchange, Decided)
            exchange.sent(now)
            under_way.append(exchange)
            if len(under_way) >= IN_FLIGHT:
                done = under_way.popleft()
                done.head(200, (), now)
                done.first_byte(now)
                done.ended(now, LAST)
        found.append((time.thread_time_ns() - began) / SLICE / 1e3)
    return found


if __name__ == "__main__":
    gc.disable()
    figures = slices(int(sys.argv[1]))
    print(f"{router.fleet.__file__}")
    print(f"least {min(figures):.1f}, median {statistics.median(figures):.1f} us a request")
