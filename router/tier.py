"""Tier: how much of a prompt's prefix the shared tier holds, from the read-only catalog.

Chunk hashes (LMCache's) become the store's chunk keys for every rank and object group, and the
prefix held is as long as all of them are there: so long a prefix any replica can load. A model
whose layers attend over a window needs less than that; the answer is then an underestimate.

A lookup is memory only. It must not know requests, tokenizers or replicas' load. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from sharedfs_backend.catalogview import CatalogView


@dataclass(frozen=True, slots=True)
class Keyspace:
    """What turns a chunk hash into the store's keys; the same for all replicas of a model."""

    realm: bytes
    chunk_tokens: int
    kv_ranks: tuple[int, ...]
    object_groups: int = 1


class _ChunkId(NamedTuple):
    chunk_hash: bytes
    kv_rank: int
    object_group: int
    cache_salt: str


def kv_ranks(world_size: int) -> tuple[int, ...]:
    """LMCache's rank numbers for a lookup: world size, rank, world size, rank, a byte each."""
    return tuple(
        world_size << 24 | rank << 16 | world_size << 8 | rank for rank in range(world_size)
    )


class Tier:
    """See the module."""

    def __init__(self, view: CatalogView) -> None:
        self._view = view

    @property
    def is_current(self) -> bool:
        """Whether an answer can be had."""
        return self._view.is_current

    def held_tokens(
        self, chunk_hashes: Sequence[bytes], space: Keyspace, cache_salt: str = ""
    ) -> int | None:
        """Tokens of the prefix that the tier holds; None while nothing is known of it."""
        if not self._view.is_current:
            return None
        if not chunk_hashes or not space.kv_ranks:
            return 0
        ids = [
            _ChunkId(chunk_hash, rank, group, cache_salt)
            for chunk_hash in chunk_hashes
            for rank in space.kv_ranks
            for group in range(space.object_groups)
        ]
        held = self._view.held(space.realm, self._view.keys(ids))
        return sum(1 for _ in takewhile(bool, held)) // self._parts(space) * space.chunk_tokens

    @staticmethod
    def _parts(space: Keyspace) -> int:
        return len(space.kv_ranks) * space.object_groups

    def chunk_tokens(self, realm: bytes) -> set[int]:
        """Chunk sizes of what the realm holds, as far as its layouts tell: for a comparison with
        what replicas announce."""
        return {layout.chunk_tokens for layout in self._view.layouts(realm)} - {0}
