"""Identity of chunks and of packs: digests over canonical encodings.

Equal keys mean equal content as far as the cache engine can tell: its chunk hash commits to the
whole prefix. A pack's digest is a pure function of realm, layout fingerprint and ordered chunk
keys, so equal content has an equal address. The first item of every encoding says what is being
named, so a digest of one kind never equals one of another.

Must not know of files or of LMCache's classes. Serves I8: rank, object group and salt are part of
a key.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharedfs_backend.layout.canonical import encode
from sharedfs_backend.layout.seal import DIGEST_BYTES, Seal


def chunk_key(
    seal: Seal, chunk_hash: bytes, kv_rank: int, object_group: int, cache_salt: str
) -> bytes:
    """16 bytes naming one chunk. Ranks and groups are unsigned 64-bit integers."""
    return seal.digest(encode(["chunk", chunk_hash, kv_rank, object_group, cache_salt]))


def pack_digest(seal: Seal, realm: bytes, fingerprint: bytes, keys: Sequence[bytes]) -> bytes:
    """16 bytes naming the content of a pack: the ordered chunks of one realm and layout."""
    return pack_digest_of(seal, realm, fingerprint, b"".join(keys))


def pack_digest_of(seal: Seal, realm: bytes, fingerprint: bytes, keys: bytes | memoryview) -> bytes:
    """The same from the joined keys, as an `EntryTable` holds them."""
    if len(realm) != DIGEST_BYTES or len(fingerprint) != DIGEST_BYTES or len(keys) % DIGEST_BYTES:
        raise ValueError("realm, fingerprint and every key have 16 bytes")
    return seal.digest(encode(["pack", realm, fingerprint, bytes(keys)]))
