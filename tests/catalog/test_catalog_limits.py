"""The catalog's bounds: memory, steps, probes, and what happens when one is reached."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from sharedfs_backend.catalog import ANY_SPACE, NO_SPACE, Catalog, PackBatch
from sharedfs_backend.columns import give_back, reserve
from sharedfs_backend.fairlock import FairLock
from sharedfs_backend.keytable import KeyTable, hash_keys
from sharedfs_backend.layout import ChunkEntry, EntryTable
from tests.catalog.reference import entry

REALM, FINGERPRINT = b"r" * 16, b"f" * 16


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")


def chunks(rng: random.Random, count: int) -> tuple[ChunkEntry, ...]:
    return tuple(entry(rng, rng.randbytes(16)) for _ in range(count))


def add(catalog: Catalog, pack_id: int, entries: tuple[ChunkEntry, ...], version: int = 1) -> bool:
    space = catalog.space(REALM, FINGERPRINT)
    table = EntryTable.from_entries(entries)
    return catalog.add_pack(pack_id, name(pack_id), space, version, table, now=float(pack_id))


def find(catalog: Catalog, *entries: ChunkEntry) -> list[int]:
    found = catalog.find(b"".join(row.key for row in entries), 0)
    ids: list[int] = found.pack_ids.tolist()
    return ids


def test_an_empty_catalog_misses() -> None:
    catalog = Catalog(1024)
    assert catalog.find(bytes(32), ANY_SPACE, realm=REALM).hits == [False, False]
    assert catalog.find(b"", 0).hits == []


def test_a_full_catalog_refuses_whole_packs_and_counts_their_chunks() -> None:  # I9
    rng, catalog = random.Random(1), Catalog(1024)
    packs = [chunks(rng, 100) for _ in range(12)]
    assert [add(catalog, at, pack) for at, pack in enumerate(packs)] == [True] * 10 + [False] * 2
    assert (catalog.refused_chunks, catalog.row_count, catalog.pack_count) == (200, 1000, 10)
    assert find(catalog, *packs[9]) == [9] * 100
    assert find(catalog, *packs[10]) == [-1] * 100


def test_a_bulk_load_beyond_the_limit_takes_what_fits() -> None:  # I9
    rng, catalog = random.Random(2), Catalog(1024)
    packs = [chunks(rng, count) for count in (600, 500, 424)]
    counts = np.array([len(pack) for pack in packs])
    batch = PackBatch(
        pack_ids=np.arange(3),
        sort_keys=b"".join(map(name, range(3))),
        spaces=np.full(3, catalog.space(REALM, FINGERPRINT), np.int32),
        versions=np.ones(3, np.uint32),
        first_rows=counts.cumsum() - counts,
        counts=counts,
        entries=EntryTable.from_entries([row for pack in packs for row in pack]),
        first_seen=np.zeros(3),
        last_lookup=np.zeros(3),
    )
    assert catalog.add_packs(batch).tolist() == [True, False, True]
    assert catalog.refused_chunks == 500
    assert find(catalog, packs[2][-1]) == [2]


def test_room_that_removals_made_is_used_again_without_end() -> None:  # I9
    rng, catalog = random.Random(3), Catalog(1024)
    packs = {at: chunks(rng, 250) for at in range(4)}
    for at, pack in packs.items():
        assert add(catalog, at, pack)
    for at in range(4, 400):
        catalog.remove_pack(at - 4)
        del packs[at - 4]
        packs[at] = chunks(rng, 250)
        assert add(catalog, at, packs[at])
    assert catalog.refused_chunks == 0
    for at, pack in packs.items():
        assert find(catalog, *pack) == [at] * 250


def test_an_impossible_length_is_refused_not_cut() -> None:
    catalog = Catalog(1024)
    assert not add(catalog, 0, (ChunkEntry(b"k" * 16, 0, 1 << 32, bytes(16)),))
    assert catalog.refused_chunks == 1 and len(catalog) == 0


def test_too_many_spaces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:  # I9
    monkeypatch.setattr("sharedfs_backend.catalog.SPACES_MAX", 2)
    catalog = Catalog(1024)
    spaces = [catalog.space(REALM, bytes([n]) * 16) for n in range(3)]
    assert spaces == [0, 1, NO_SPACE]
    row = ChunkEntry(b"k" * 16, 0, 1, bytes(16))
    table = EntryTable.from_entries([row])
    assert not catalog.add_pack(0, name(0), NO_SPACE, 1, table, now=0.0)
    assert catalog.find(row.key, NO_SPACE).hits == [False]
    assert catalog.known_space(REALM, bytes([2]) * 16) is None


def test_churn_keeps_searches_short() -> None:
    rng = np.random.default_rng(4)
    table, live = KeyTable(16384), 4000
    keys = rng.integers(0, 2**64, size=(200_000, 2), dtype=np.uint64)
    shares: list[float] = []
    for start in range(0, len(keys), 500):
        hashes = hash_keys(keys[start : start + 500])
        while len((crowded := table.crowded(hashes))[0]):
            table.rebuild(int(crowded[0][0]), keys, int(crowded[1][0]))
        assert table.place(hashes, np.arange(start, start + 500)).all()
        if start >= live:
            old = np.arange(start - live, start - live + 500)
            index, slots = table.candidates(hash_keys(keys[old]))
            own = table.slots[slots] == old[index]
            assert np.array_equal(np.sort(index[own]), np.arange(500))
            table.clear(slots[own])
        shares.append(np.count_nonzero(table._passed) / (table.resident_bytes() / 41))
    assert len(table) == live
    assert 0 < max(shares) < 0.4  # of the buckets, 41 bytes each


def test_a_table_that_is_full_refuses_and_still_finds_the_rest() -> None:  # I9
    rng = np.random.default_rng(5)
    table = KeyTable(1024)
    keys = rng.integers(0, 2**64, size=(6000, 2), dtype=np.uint64)
    hashes = hash_keys(keys)
    table.rebuild(0, keys, 6000)
    placed = table.place(hashes, np.arange(6000))
    assert 1024 <= placed.sum() < 6000
    index, slots = table.candidates(hashes)
    found = index[table.slots[slots] == index]
    assert np.array_equal(np.sort(found), np.flatnonzero(placed))


def test_reserved_columns_are_resident_only_where_written() -> None:
    column = reserve(1 << 24, np.uint64, 2)
    before = resident_bytes()
    column[: 1 << 20] = 1
    grown = resident_bytes() - before
    give_back(column, 1 << 10)
    assert 15 << 20 < grown < 24 << 20
    assert resident_bytes() - before < 4 << 20
    assert column[(1 << 10) - 1].tolist() == [1, 1] and column[1 << 19].tolist() == [0, 0]


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


def test_memory_said_to_be_resident_follows_what_is_held() -> None:
    rng, catalog = random.Random(6), Catalog(100_000)
    for at in range(40):
        add(catalog, at, chunks(rng, 1000))
    full = catalog.memory_bytes()
    for at in range(36):
        catalog.remove_pack(at)
    assert 40_000 * 49 < full < 40_000 * 90
    assert catalog.memory_bytes() < full * 0.6
    behind = catalog._rows.checksums[catalog._rows.used + 4096 // 16 :]
    assert not behind.any(), "pages given back read as zeros"


def test_a_waiting_thread_gets_its_turn_between_two_steps_of_another() -> None:  # I6
    lock, order = FairLock(), list[str]()
    waiting = threading.Event()

    def wait_for_turn() -> None:
        waiting.set()
        with lock:
            order.append("waiter")

    with lock:
        waiter = threading.Thread(target=wait_for_turn)
        waiter.start()
        waiting.wait(10)
        while lock._turnstile.acquire(blocking=False):  # until the waiter stands in it
            lock._turnstile.release()
    with lock:
        order.append("stepper")
    waiter.join(10)
    assert order == ["waiter", "stepper"]


def test_lookups_stay_right_while_others_add_remove_and_compact() -> None:
    rng, catalog = random.Random(7), Catalog(60_000)
    kept = chunks(rng, 2000)
    assert add(catalog, 0, chunks(rng, 3000)) and add(catalog, 1, kept)
    wrong: list[object] = []

    def churn(start: int) -> None:
        own = random.Random(start)
        for pack_id in range(start, start + 60):
            add(catalog, pack_id, chunks(own, 800))
            if pack_id >= start + 3:
                catalog.remove_pack(pack_id - 3)

    threads = [threading.Thread(target=churn, args=(start,)) for start in (1000, 2000)]
    for thread in threads:
        thread.start()
    keys = b"".join(row.key for row in kept)
    while any(thread.is_alive() for thread in threads):
        located = catalog.locate(keys, 0)
        if located.pack_ids.tolist() != [1] * len(kept):
            wrong.append(located.pack_ids)
        if located.checksum(5) != kept[5].checksum or catalog.entries_of(0) is None:
            wrong.append("columns")
    assert wrong == [] and catalog.compaction_steps > 0
