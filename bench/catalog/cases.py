"""The measurements. Each runs in a process of its own and returns plain numbers.

Names end in their unit. "hot": keys asked before; "first": never asked, their derivation included.
`load` goes through the ledger, which is what a starting process does with a snapshot.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from bench.catalog.data import LAYOUT, REALM, SEAL, Identifier, identifiers
from sharedfs_backend.catalog import Catalog, Found, PackBatch
from sharedfs_backend.facts import sort_key
from sharedfs_backend.keyring import KeyRing
from sharedfs_backend.layout import EntryTable, PackRows, chunk_key, decode_snapshot
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.rules import Rules

CHUNKS_MAX = 4_000_000
ASKED = 512
ROUNDS = 400
Numbers = dict[str, float]


def resident_bytes() -> int:
    gc.collect()
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


def quantiles(name: str, seconds: list[float]) -> Numbers:
    ordered = sorted(seconds)
    return {
        f"{name}_p50_us": ordered[len(ordered) // 2] * 1e6,
        f"{name}_p99_us": ordered[len(ordered) * 99 // 100] * 1e6,
    }


def timed(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def loaded(path: Path) -> tuple[Catalog, Ledger, Numbers]:
    """A catalog and ledger that adopted the snapshot, and what that took."""
    warm = decode_snapshot  # imported and compiled before the clock starts
    before = resident_bytes()
    start, processor = time.perf_counter(), time.process_time()
    snapshot = warm(path.read_bytes(), SEAL)
    decoded = time.perf_counter()
    catalog = Catalog(CHUNKS_MAX)
    ledger = Ledger(catalog, SEAL, Rules(), lease_seconds=600.0)
    ledger.adopt(snapshot, 0.0)
    end, processor = time.perf_counter(), time.process_time() - processor
    del snapshot
    numbers = {
        "load_decode_s": decoded - start,
        "load_adopt_s": end - decoded,
        "load_total_s": end - start,
        "load_processor_s": processor,
        "resident_with_ledger_bytes_per_chunk": (resident_bytes() - before) / len(catalog),
        "catalog_own_estimate_bytes_per_chunk": catalog.memory_bytes() / len(catalog),
    }
    return catalog, ledger, numbers


def load(path: Path) -> Numbers:
    """A snapshot adopted by a starting process: time, and memory with all pack records."""
    return loaded(path)[2]


def whole_batch(rows: PackRows, catalog: Catalog) -> PackBatch:
    """All packs of a snapshot, entered without a ledger."""
    space = catalog.space(REALM, LAYOUT.fingerprint(SEAL))
    return PackBatch(
        pack_ids=np.arange(len(rows)),
        sort_keys=b"".join(map(sort_key, rows.names())),
        spaces=np.full(len(rows), space, np.int32),
        versions=rows.versions.astype(np.uint32),
        first_rows=rows.starts(),
        counts=rows.counts,
        entries=rows.entries,
        first_seen=np.zeros(len(rows)),
        last_lookup=np.zeros(len(rows)),
    )


def catalog_alone(path: Path) -> Numbers:
    """The catalog without a ledger: bulk insert, memory, removal of half, single packs."""
    rows = decode_snapshot(path.read_bytes(), SEAL).packs
    before = resident_bytes()
    catalog = Catalog(CHUNKS_MAX)
    seconds = timed(partial(catalog.add_packs, whole_batch(rows, catalog)))
    sizes, chunks = rows.counts.tolist(), len(catalog)
    singles = [rows.entries.rows(int(at), sizes[0]) for at in rows.starts()[: len(rows) // 2 : 2]]
    numbers = {
        "insert_bulk_chunks_per_s": chunks / seconds,
        "resident_catalog_bytes_per_chunk": (resident_bytes() - before) / chunks,
    }
    removed = range(0, len(rows) // 2, 1)
    seconds = timed(lambda: deque(map(catalog.remove_pack, removed), maxlen=0))
    numbers["remove_chunks_per_s"] = sum(sizes[: len(removed)]) / seconds
    numbers["compaction_steps"] = catalog.compaction_steps
    seconds = timed(lambda: [_add_one(catalog, *pair) for pair in enumerate(singles)])
    numbers["insert_single_packs_per_s"] = len(singles) / seconds
    return numbers


def _add_one(catalog: Catalog, at: int, entries: EntryTable) -> bool:
    return catalog.add_pack(10_000_000 + at, at.to_bytes(32, "big"), 0, 1, entries, now=0.0)


def lookup(path: Path) -> Numbers:
    """512 consecutive chunks: keys and search, as each request does it."""
    catalog, ledger, _ = loaded(path)
    ring = KeyRing(SEAL, 262_144)
    space = catalog.space(REALM, LAYOUT.fingerprint(SEAL))
    rng = np.random.default_rng(3)
    first: list[float] = []
    hot: list[float] = []
    find: list[float] = []
    miss: list[float] = []
    for start in rng.integers(0, len(catalog) - ASKED, ROUNDS).tolist():
        for times in (first, hot):
            ids = identifiers(start, ASKED)
            times.append(timed(partial(_look_up, catalog, ring, ids, space)))
        keys, foreign = ring.joined(ids), rng.bytes(16 * ASKED)
        find.append(timed(partial(catalog.find, keys, space)))
        miss.append(timed(partial(catalog.find, foreign, space)))
        assert all(catalog.find(keys, space).hits)
    del ledger
    return {
        **quantiles("lookup_512_first", first),
        **quantiles("lookup_512_hot", hot),
        **quantiles("find_512_only", find),
        **quantiles("find_512_missing", miss),
    }


def _look_up(catalog: Catalog, ring: KeyRing, ids: list[Identifier], space: int) -> Found:
    return catalog.find(ring.joined(ids), space)


def plain_dict(path: Path) -> Numbers:
    """The baseline: a dict from key to (pack, offset, length, checksum); keys not remembered."""
    rows = decode_snapshot(path.read_bytes(), SEAL).packs
    before = resident_bytes()
    start = time.perf_counter()
    table: dict[bytes, tuple[int, int, int, bytes]] = {}
    keys, sums = bytes(rows.entries.keys), bytes(rows.entries.checksums)
    offsets, lengths = rows.entries.offset_array(), rows.entries.length_array()
    at = 0
    for pack_id, count in enumerate(rows.counts.tolist()):
        for offset, length in zip(
            offsets[at : at + count].tolist(), lengths[at : at + count].tolist(), strict=True
        ):
            place = 16 * at
            table[keys[place : place + 16]] = (pack_id, offset, length, sums[place : place + 16])
            at += 1
    seconds = time.perf_counter() - start
    del keys, sums, offsets, lengths, rows
    numbers: Numbers = {
        "dict_insert_chunks_per_s": len(table) / seconds,
        "dict_resident_bytes_per_chunk": (resident_bytes() - before) / len(table),
    }
    rng = np.random.default_rng(3)
    both: list[float] = []
    only: list[float] = []
    for first in rng.integers(0, len(table) - ASKED, ROUNDS).tolist():
        begin = time.perf_counter()
        ids = identifiers(first, ASKED)
        made = time.perf_counter()
        asked = [
            chunk_key(SEAL, i.chunk_hash, i.kv_rank, i.object_group_id, i.cache_salt) for i in ids
        ]
        derived = time.perf_counter()
        found = [table.get(key) for key in asked]
        both.append(time.perf_counter() - made)
        only.append(time.perf_counter() - derived)
        assert None not in found and made > begin
    return numbers | quantiles("dict_lookup_512", both) | quantiles("dict_get_512_only", only)


CASES: dict[str, Callable[[Path], Numbers]] = {
    "load": load,
    "catalog_alone": catalog_alone,
    "lookup": lookup,
    "plain_dict": plain_dict,
}
