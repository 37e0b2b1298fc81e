"""The store in virtual time behaves as in production, and keeps files full of holes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from bench.engine.retention import belady_hits, lru_hits, unlimited_hits
from bench.engine.virtual import VirtualStore, key_of

MIB = 1 << 20


@pytest.fixture
def stores() -> Iterator[list[VirtualStore]]:
    made: list[VirtualStore] = []
    yield made
    for store in made:
        store.close()


def test_what_one_replica_stored_another_finds_after_a_refresh(
    tmp_path: Path, stores: list[VirtualStore]
) -> None:
    stores += [VirtualStore(tmp_path / "kv", MIB, seed=seed) for seed in (1, 2)]
    for store in stores:
        store.advance(5.0)
    stores[0].put(range(4))
    assert (stores[0].depth(range(6)), stores[1].depth(range(6))) == (4, 0)
    for store in stores:
        store.advance(7.0)
    assert stores[1].depth(range(6)) == 4
    assert stores[0].chunks_written == 4


def test_packs_are_holes_but_for_their_ends(tmp_path: Path, stores: list[VirtualStore]) -> None:
    stores.append(VirtualStore(tmp_path / "kv", MIB, seed=1))
    stores[0].advance(5.0)
    stores[0].put(range(16))
    packs = [path.stat() for path in (tmp_path / "kv" / "packs").rglob("*") if path.is_file()]
    assert sum(each.st_size for each in packs) > 16 * MIB
    assert 0 < sum(each.st_blocks * 512 for each in packs) < MIB


def test_a_sweep_makes_room_and_the_cap_holds(tmp_path: Path, stores: list[VirtualStore]) -> None:
    stores.append(VirtualStore(tmp_path / "kv", MIB, seed=1, cap_bytes=256 * MIB))
    store, peak = stores[0], 0
    for number in range(200):
        store.advance(10.0 + 30.0 * number)
        store.put(range(3 * number, 3 * number + 3))
        peak = max(peak, store.total_bytes)
    assert store.chunks_written > 500 and store.chunks_refused < 20
    assert 150 * MIB < peak <= 256 * MIB
    assert store.depth(range(597, 600)) == 3 and store.depth(range(3)) == 0


def test_what_finds_no_room_is_refused_and_counted(
    tmp_path: Path, stores: list[VirtualStore]
) -> None:
    stores.append(VirtualStore(tmp_path / "kv", 2 * MIB, seed=1, cap_bytes=64 * MIB))
    stores[0].advance(5.0)
    stores[0].put(range(2))  # a chunk is more than a writer may have in flight
    stores[0].advance(400.0)
    assert (stores[0].chunks_written, stores[0].chunks_refused) == (0, 2)


def test_keys_of_blocks_are_distinct() -> None:
    assert len({key_of(block) for block in range(10_000)}) == 10_000
    assert all(a != b for a, b in pairwise(map(key_of, range(100))))


CYCLE = [(number,) for number in range(6)] * 4


def test_lru_falls_off_a_cliff_and_belady_does_not() -> None:
    assert sum(lru_hits(CYCLE, 5)) == 0
    assert sum(lru_hits(CYCLE, 6)) == 18
    assert sum(belady_hits(CYCLE, 5)) == 3 * (6 - 1)


def test_lru_keeps_beginnings_longer_than_ends() -> None:
    assert lru_hits([(1, 2, 3), (9,), (1, 2, 3)], 3) == [0, 0, 2]


@pytest.mark.parametrize("blocks_max", [1, 2, 3, 4, 6, 9])
def test_nobody_beats_belady(blocks_max: int) -> None:
    import random

    rng = random.Random(blocks_max)
    roots = {name: tuple(range(name * 10, name * 10 + 3)) for name in range(5)}
    prompts = [roots[rng.randrange(5)][: rng.randint(1, 3)] for _ in range(300)]
    best = sum(belady_hits(prompts, blocks_max))
    assert sum(lru_hits(prompts, blocks_max)) <= best <= sum(unlimited_hits(prompts))
