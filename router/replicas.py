"""Replicas: which ones there are, and how a list of them is written down.

A replica is named by its URL; its id is the part a person would say: `host:port`, and the path if
there is one. A list file holds one URL a line; `#` starts a comment. What the replica said about
itself in a namespace comes along. Values and text only: reading a list again while the router runs
is `sources`, what happens to requests when one leaves is `members`.

A list that cannot be understood is an error and never an empty list: a half-written file must not
send every replica away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from router.registry import AnnouncedReplica

REPLICAS_MAX = 1024
"""More in one list is a mistake, not a fleet; every table of the router is bounded by it."""
CHUNK_TOKENS = 256


class ReplicaError(ValueError):
    """A replica's URL, or a list of them, that makes no sense; the text says what would."""


@dataclass(frozen=True, slots=True)
class Replica:
    """Where one replica listens, and what it announced (None: it did not)."""

    id: str
    host: str
    port: int
    is_tls: bool = False
    path: str = ""
    """Comes before every request's own path; empty or begins with a slash."""
    announced: AnnouncedReplica | None = None
    """Without its heartbeat: the same replica stays equal to itself."""

    @property
    def kv_bytes_per_token(self) -> int | None:
        return (self.announced.kv_bytes_per_token or None) if self.announced else None

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a chunk, LMCache's default where it did not say."""
        return (self.announced.chunk_tokens if self.announced else 0) or CHUNK_TOKENS

    @property
    def where(self) -> tuple[str, int, bool, bytes]:
        """As `relay.exchange.Where`."""
        return self.host, self.port, self.is_tls, self.path.encode()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.path}"


def replica_at(url: str) -> Replica:
    """The replica a URL names. Raises ReplicaError. Without a scheme, http is meant."""
    text = url.strip()
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        port = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise ReplicaError(f"{url!r} is no URL of a replica ({error})") from error
    if port == 0:
        raise ReplicaError(f"{url!r}: nobody listens on port 0")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ReplicaError(f"{url!r} is no URL of a replica; write it like http://host:8000")
    if parts.query or parts.fragment or parts.username or parts.password:
        raise ReplicaError(f"{url!r}: a replica's URL has a host, a port and perhaps a path")
    if any(character <= " " or character >= "\x7f" for character in text):
        raise ReplicaError(f"{url!r}: a replica's URL holds printable ASCII only")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ReplicaError(f"{url!r}: leave /v1 off, it is part of each request's own path")
    is_tls = parts.scheme == "https"
    port = port or (443 if is_tls else 80)
    path = parts.path.rstrip("/")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Replica(f"{host}:{port}{path}", parts.hostname, port, is_tls, path)


def listed(lines: list[str]) -> dict[str, Replica]:
    """The replicas of a list, by id, in its order. Raises ReplicaError for any line it cannot
    read, and for a list without replicas."""
    texts = [line.split("#", 1)[0].strip() for line in lines]
    found = [replica_at(text) for text in texts if text]
    if not found:
        raise ReplicaError("the list names no replica; write one URL a line")
    return bounded({replica.id: replica for replica in found})


def bounded(replicas: dict[str, Replica]) -> dict[str, Replica]:
    if len(replicas) > REPLICAS_MAX:
        raise ReplicaError(f"{len(replicas)} replicas; the most is {REPLICAS_MAX}")
    return replicas
