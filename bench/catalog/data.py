"""The snapshot that is measured: packs of consecutive chunks, keys derived as in production.

Everything follows from the chunk's number, so a measuring process can ask for chunk 123,456 without
being told its key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sharedfs_backend.layout import (
    EntryTable,
    LayoutDescriptor,
    PackRows,
    Seal,
    Snapshot,
    chunk_key,
    encode_snapshot,
)

SEAL = Seal(None)
REALM = b"bench-of-catalog"
LAYOUT = LayoutDescriptor(("bfloat16",), ((2, 32, 256, 1024),), "KV_2LTD", 256)
CHUNK_BYTES = 4 << 20
WRITER = "00000000000000aa"


@dataclass(frozen=True)
class Identifier:
    """What LMCache's `ObjectKey` has of interest here."""

    chunk_hash: bytes
    kv_rank: int = 0
    object_group_id: int = 0
    cache_salt: str = ""


def identifiers(first: int, count: int) -> list[Identifier]:
    """Of consecutive chunks. Made anew each time, as each request's are."""
    numbers = range(first, first + count)
    return [Identifier(hashlib.blake2b(b"%d" % n, digest_size=32).digest()) for n in numbers]


def write_snapshot(path: Path, chunks: int, pack_chunks: int) -> None:
    """A snapshot of `chunks` chunks in packs of `pack_chunks`."""
    packs = chunks // pack_chunks
    within = np.arange(packs * pack_chunks) % pack_chunks
    entries = EntryTable(
        keys=b"".join(
            chunk_key(SEAL, i.chunk_hash, i.kv_rank, i.object_group_id, i.cache_salt)
            for i in identifiers(0, packs * pack_chunks)
        ),
        offsets=(8192 + within * CHUNK_BYTES).astype("<u8").tobytes(),
        lengths=np.full(len(within), CHUNK_BYTES, "<u8").tobytes(),
        checksums=np.random.default_rng(1).bytes(16 * len(within)),
    )
    rows = PackRows(
        realms=(REALM,),
        layouts=(LAYOUT,),
        digests=np.random.default_rng(2).bytes(16 * packs),
        writers=bytes.fromhex(WRITER) * packs,
        seqs=np.arange(packs, dtype="<u8"),
        realm_index=np.zeros(packs, "<i4"),
        layout_index=np.zeros(packs, "<i4"),
        ranks=np.zeros(packs, "<u4"),
        versions=np.ones(packs, "<u8"),
        total_bytes=np.full(packs, 16384 + pack_chunks * CHUNK_BYTES, "<u8"),
        states=np.zeros(packs, "u1"),
        touch_ms=np.full(packs, 1000, "<i8"),
        age_ms=np.full(packs, 2000, "<i8"),
        counts=np.full(packs, pack_chunks, "<i8"),
        entries=entries,
    )
    path.write_bytes(encode_snapshot(Snapshot(1, WRITER, (), {}, rows), SEAL))
