"""Chunk hashes as LMCache's multi-process server computes them, for its algorithm `blake3`. Pure.

The chain starts from the hash of (0, (0,)); each chunk's hash is BLAKE3 over the hash before it and
the chunk's token ids as big-endian u32, 32 bytes. Only whole chunks have one. The other algorithms
LMCache offers hash Python objects in ways of the engine's own and are not imitated.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from blake3 import blake3

ALGORITHM = "blake3"
"""LMCache's default, and the only one computed here."""

_NONE_HASH = blake3(bytes(8) + bytes(4)).digest()


def chunk_hashes(token_ids: Sequence[int], chunk_tokens: int) -> list[bytes]:
    """The hash of each whole chunk, first to last. OverflowError for ids outside u32."""
    ids = array("I", token_ids)
    if sys.byteorder == "little":
        ids.byteswap()
    data = memoryview(ids.tobytes())
    size = 4 * chunk_tokens
    hashes, previous = [], _NONE_HASH
    for start in range(0, len(data) - size + 1, size):
        previous = blake3(previous).update(data[start : start + size]).digest()
        hashes.append(previous)
    return hashes
