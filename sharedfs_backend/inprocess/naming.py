"""From LMCache's CacheEngineKey to what the store derives a chunk key from (I8).

Model name and dtype are left out: the realm stands for the weights, the layout for the dtype. Rank
and world size go in, and the layer where a chunk is kept layer by layer (object group 0 is a whole
chunk, n + 1 is layer n). A request's `lmcache.tag.*` values are its salt, in an order of their own
so that two clients who list them differently still agree.

Pure. Memoised by the store, not here.
"""

from __future__ import annotations

import json
from typing import Any

from sharedfs_backend.exceptions import ConfigError
from sharedfs_backend.store import ChunkId

RANKS_MAX = 1 << 16
"""World size and rank share a 32-bit field of the pack header."""


def kv_rank(world_size: int, worker_id: int) -> int:
    """One number for (world size, rank). Raises ConfigError beyond 65,535 ranks."""
    if not 0 <= worker_id < RANKS_MAX or not 0 < world_size < RANKS_MAX:
        raise ConfigError(f"rank {worker_id} of {world_size}: at most {RANKS_MAX - 1} ranks")
    return world_size << 16 | worker_id


def chunk_id(key: Any) -> ChunkId:
    """The identity of the chunk that a CacheEngineKey or LayerCacheEngineKey names."""
    layer = layer_of(key)
    return ChunkId(
        chunk_hash=hash_bytes(key.chunk_hash),
        kv_rank=kv_rank(key.world_size, key.worker_id),
        object_group=0 if layer is None else layer + 1,
        cache_salt=salt_of(key.tags),
    )


def hash_bytes(chunk_hash: int | bytes) -> bytes:
    """LMCache's 64-bit hash (negative with the builtin function) or digest, as bytes."""
    if isinstance(chunk_hash, bytes):
        return chunk_hash
    return (chunk_hash & (1 << 64) - 1).to_bytes(8, "big")


def salt_of(tags: Any) -> str:
    """Canonical text of a key's tags; "" for none, as in MP mode."""
    if not tags:
        return ""
    pairs = sorted((str(name), str(value)) for name, value in tags)
    return json.dumps(pairs, separators=(",", ":"))


def layer_of(key: Any) -> int | None:
    """The layer a key names, None for a key of whole chunks."""
    layer = getattr(key, "layer_id", None)
    return None if layer is None else int(layer)
