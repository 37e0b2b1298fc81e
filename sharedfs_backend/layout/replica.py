"""Replica files: how a replica says where it listens and that it is alive.

One file for each announcer, of one block, rewritten in place in one write with a higher counter: no
rename, no second name, no time of a file (I3). Whoever reads a mixture of two writes finds a wrong
checksum and keeps what it knew. A replica is dead when an observer saw no change of the counter for
the lease the file names, on its own clock.

Must not know who routes what. With a secret nobody without it can announce a replica.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from sharedfs_backend.layout.canonical import take, take_uint
from sharedfs_backend.layout.errors import BadValue
from sharedfs_backend.layout.head import BLOCK_BYTES, SIZE_MAX
from sharedfs_backend.layout.jsonfile import decode_json, encode_json
from sharedfs_backend.layout.names import COUNTER_MAX, is_writer_id
from sharedfs_backend.layout.seal import Buffer, Seal

REPLICA_BYTES = BLOCK_BYTES
"""Every write has this length, so that no write leaves the end of an older one behind."""
TEXT_CHARS_MAX = 512
LEASE_SECONDS_MIN, LEASE_SECONDS_MAX = 4, 86_400
WORLD_SIZE_MAX = 255
"""LMCache packs ranks into eight bits."""

_URL = re.compile(r"https?://[!-~]+")
_REALM = re.compile(r"(?:[0-9a-f]{32})?")
_ALGORITHM = re.compile(r"[a-z0-9_]{0,32}")


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """What a replica says about itself. Zero or empty: not said."""

    announcer: str
    """16 hex digits, as in the file's name; never used twice."""
    url: str
    """Where it listens, without a trailing slash."""
    counter: int = 0
    """Heartbeat: higher with each write."""
    lease_seconds: int = 120
    """The counter changes at least every quarter of it."""
    model: str = ""
    """The model as LMCache's keys name it: vLLM's `--model`, to the letter."""
    realm: str = ""
    """32 hex digits of the realm it shares in."""
    chunk_tokens: int = 0
    hash_algorithm: str = ""
    kv_bytes_per_token: int = 0
    """Of all ranks together."""
    kv_world_size: int = 1
    """Ranks whose chunks together are the KV of a token."""
    object_groups: int = 1
    """LMCache's object groups: more than one where layers attend differently."""
    kv_events_port: int = 0
    """Where vLLM publishes its KV events, on the URL's host."""


def encode_replica(record: ReplicaRecord, seal: Seal) -> bytes:
    """The file's block. ValueError for what no reader would accept."""
    data = encode_json("replica", asdict(record), seal)
    if len(data) > REPLICA_BYTES:
        raise ValueError(f"a replica file of {len(data)} bytes exceeds {REPLICA_BYTES}")
    data = data[:-1].ljust(REPLICA_BYTES - 1) + b"\n"
    try:
        same = decode_replica(data, seal) == record
    except BadValue as error:
        raise ValueError(f"an impossible replica: {error}") from None
    if not same:
        raise ValueError("a replica that does not survive its own encoding")
    return data


def decode_replica(data: Buffer, seal: Seal) -> ReplicaRecord:
    """The record. The announcer must still be compared with the file's name."""
    fields = decode_json("replica", data, seal)
    announcer = take(fields, "announcer", str)
    if not is_writer_id(announcer):
        raise BadValue(f"not an announcer's id: {announcer!r}")
    lease = take_uint(fields, "lease_seconds", LEASE_SECONDS_MAX)
    if lease < LEASE_SECONDS_MIN:
        raise BadValue(f"a lease of {lease} s is shorter than {LEASE_SECONDS_MIN} s")
    return ReplicaRecord(
        announcer=announcer,
        url=_matching(fields, "url", _URL),
        counter=take_uint(fields, "counter", COUNTER_MAX),
        lease_seconds=lease,
        model=_text(fields, "model"),
        realm=_matching(fields, "realm", _REALM),
        chunk_tokens=take_uint(fields, "chunk_tokens", 1 << 20),
        hash_algorithm=_matching(fields, "hash_algorithm", _ALGORITHM),
        kv_bytes_per_token=take_uint(fields, "kv_bytes_per_token", SIZE_MAX),
        kv_world_size=take_uint(fields, "kv_world_size", WORLD_SIZE_MAX),
        object_groups=take_uint(fields, "object_groups", 255),
        kv_events_port=take_uint(fields, "kv_events_port", 65_535),
    )


def _text(fields: dict[str, Any], key: str) -> str:
    text = take(fields, key, str)
    if len(text) > TEXT_CHARS_MAX:
        raise BadValue(f"field {key!r} has {len(text)} characters")
    return text


def _matching(fields: dict[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    text = _text(fields, key)
    if pattern.fullmatch(text) is None:
        raise BadValue(f"field {key!r} is {text!r}")
    return text
