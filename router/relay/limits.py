"""Limits: every bound of the data path, with its unit, its default and its reason.

Values only. A site changes few of them; the rest are named here because each is a promise that
some list, buffer or wait cannot grow without end.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
CONNECTIONS_MAX = 16_384
DESCRIPTORS_KEPT = 128
"""For probes, metrics, peers and files, whatever clients do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the relay takes from clients and waits for. Seconds are of the server's clock."""

    body_bytes_max: int = 64 * MIB
    """One request's body. Larger ones get 413 before the rest is read."""
    bodies_bytes_max: int = 4096 * MIB
    """All bodies held at once, until their answer's head. Past it new bodies get 503."""
    head_bytes_max: int = 64 << 10
    """One head, request's or response's: past it 431, or a malformed response."""
    headers_max: int = 200
    """Fields in one head. Browsers and SDKs send 10 to 30."""
    connections_max: int = CONNECTIONS_MAX
    """Open clients. One more gets 503 and is closed."""
    refused_max: int = 32
    """Refused for being too many and not gone yet. One more is cut without a word: those that wait
    for a refusal to be read must not take the descriptors probes and replicas need."""
    pipelined_max: int = 64
    """Requests of one client waiting for their turn; past it reading pauses."""
    idle_seconds: float = 75.0
    """A client between two requests; nginx's default."""
    head_seconds: float = 20.0
    """From a head's first byte to its last: a client that drips gets 408."""
    body_seconds: float = 30.0
    """A body's time, plus one second for each `body_bytes_per_second_min` received."""
    body_bytes_per_second_min: int = 16 << 10
    stall_seconds: float = 300.0
    """A client that takes nothing of a waiting answer for so long is cut off."""
    linger_seconds: float = 2.0
    """After a refusal: how long what the client still sends is thrown away, so that it gets to
    read the refusal before a reset."""
    connect_seconds: float = 5.0
    """For a connection to a replica, name resolution and TLS included."""
    upstream_idle_seconds: float = 4.0
    """Less than uvicorn's keep-alive of 5 s: a replica closes fewer connections under us."""
    upstream_idle_max: int = 1024
    """Unused connections kept for each replica."""
    stale_seconds: float = 1.0
    """A reused connection that dies within this time of the request, without a byte of answer, was
    in all likelihood closed by the replica before it saw it: the request goes out once more on a
    new one. (One that must not be repeated is sent on no reused connection.)"""
    attempts_max: int = 16
    """Attempts for one request, whatever the director asks for."""
    sweep_seconds: float = 0.5
    """How often deadlines are looked at: all of them may be missed by so much."""


def connections_within(descriptors: int) -> int:
    """Clients that may be connected to a process that may have so many descriptors open: each of
    them may need a replica's connection too. Without any left replicas would seem to be down."""
    return max(1, min(CONNECTIONS_MAX, (descriptors - DESCRIPTORS_KEPT) // 2))
