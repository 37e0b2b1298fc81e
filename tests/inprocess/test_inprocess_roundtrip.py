"""Two engines of one fleet on a real namespace: what one stores the other loads (I2, I4, I7)."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharedfs_backend.inprocess.shared import SharedStores
from sharedfs_backend.store import Store
from tests.inprocess.engine import LAYERS, TOKENS, Engine, fill_of, key, start


@pytest.fixture(autouse=True)
def no_hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)


def joined(root: Path, **values: Any) -> Engine:
    """An engine with a store of its own, as in a process of its own."""
    stores = SharedStores(lambda settings: Store(settings=settings))
    extra = {
        "sharedfs.root": str(root / "kv"),
        "sharedfs.refresh_seconds": 0.05,
        "sharedfs.linger_seconds": 0.0,
        **values.pop("extra", {}),
    }
    return start(stores=stores, extra=extra, **values)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Engine, Engine]]:
    engines = joined(tmp_path), joined(tmp_path)
    yield engines
    for engine in engines:
        engine.backend.close()
        left = engine.objects_in_use
        engine.close()
        assert left == 0, f"{left} memory objects were not given back"


def current(engine: Engine) -> None:
    """Wait until the engine's store has read everything published so far."""
    assert engine.backend._store.wait_current(30.0)


def fills(objects: list[Any]) -> list[int | None]:
    found = [None if obj is None else fill_of(obj) for obj in objects]
    for obj in objects:
        if obj is not None:
            obj.ref_count_down()
    return found


def test_what_one_stores_the_other_loads(pair: tuple[Engine, Engine]) -> None:
    writer, reader = pair
    keys = [key(number) for number in range(20)]
    writer.put(keys, [writer.chunk(number + 1) for number in range(20)])
    current(reader)
    assert reader.backend.batched_contains([*keys, key(99)], pin=True) == 20
    expected = [number + 1 for number in range(20)]
    assert fills(reader.backend.batched_get_blocking(keys)) == expected
    assert fills(asyncio.run(reader.backend.batched_get_non_blocking("id", keys))) == expected


def test_lookups_pins_and_unpins_are_no_file_operations(tmp_path: Path) -> None:
    engine = joined(tmp_path, extra={"sharedfs.refresh_seconds": 10.0})
    engine.put([key(1)], [engine.chunk(1)])
    assert fills([engine.backend.get_blocking(key(1))]) == [1]
    current(engine)
    before = operations(engine)
    for _ in range(10):
        assert engine.backend.batched_contains([key(1)], pin=True) == 1
        assert engine.backend.unpin(key(1))
    assert operations(engine) == before
    assert before["operations_open"] > 0
    engine.close()


def operations(engine: Engine) -> dict[str, float]:
    """The store's file operations by name, so far."""
    stats = engine.backend._store.stats()
    return {name: count for name, count in stats.items() if name.startswith("operations_")}


def test_layers_make_the_round_trip(tmp_path: Path) -> None:
    writer, reader = (joined(tmp_path, use_layerwise=True, local_cpu=False) for _ in range(2))
    keys = key(7).split_layers(LAYERS)
    writer.put(keys, writer.layers(40))
    current(reader)
    assert reader.backend.batched_contains(keys, pin=True) == LAYERS
    layers = [
        asyncio.run(reader.backend.batched_get_non_blocking("fake_lookup_id", [layer]))
        for layer in keys
    ]
    assert [fills(objects) for objects in layers] == [[40 + n] for n in range(LAYERS)]
    for layer in keys:
        reader.backend.unpin(layer)
    assert reader.objects_in_use == 0
    writer.close()
    reader.close()


def test_short_chunks_make_the_round_trip(tmp_path: Path) -> None:
    writer, reader = (joined(tmp_path, save_unfull_chunk=True) for _ in range(2))
    writer.put([key(1), key(2)], [writer.chunk(1), writer.chunk(2, tokens=TOKENS // 2)])
    current(reader)
    assert reader.backend.batched_contains([key(1), key(2)]) == 2
    assert fills(reader.backend.batched_get_blocking([key(1), key(2)])) == [1, 2]
    writer.close()
    reader.close()


def test_other_shards_do_not_share(tmp_path: Path) -> None:
    east = joined(tmp_path, extra={"sharedfs.shard": "east"})
    west = joined(tmp_path, extra={"sharedfs.shard": "west"})
    east.put([key(1)], [east.chunk(1)])
    current(west)
    assert east.backend.contains(key(1))
    assert not west.backend.contains(key(1))
    east.close()
    west.close()


def test_a_restarted_engine_finds_what_it_stored(tmp_path: Path) -> None:
    first = joined(tmp_path)
    first.put([key(1)], [first.chunk(9)])
    first.close()
    again = joined(tmp_path)
    current(again)
    assert fills([again.backend.get_blocking(key(1))]) == [9]
    again.close()


def test_every_reference_comes_back_under_load(pair: tuple[Engine, Engine]) -> None:
    """Stores, loads, cancelled loads and removals at once: no chunk is wrong, none is leaked."""
    writer, reader = pair
    wrong: list[Any] = []

    def store(seed: int) -> None:
        choice = random.Random(seed)
        for _ in range(30):
            numbers = [choice.randrange(40) for _ in range(4)]
            writer.put([key(n) for n in numbers], [writer.chunk(n + 1) for n in numbers])

    async def load_some(numbers: list[int], patience: float) -> None:
        keys = [key(n) for n in numbers]
        load = reader.backend.batched_get_non_blocking(f"{numbers}", keys)
        try:
            objects = await asyncio.wait_for(load, patience)
        except TimeoutError:
            return
        found = fills(objects)
        wrong.extend(pair for pair in zip(numbers, found, strict=False) if pair[1] != pair[0] + 1)

    def load(seed: int) -> None:
        choice = random.Random(seed)
        for _ in range(60):
            start_at = choice.randrange(36)
            patience = choice.choice([0.0, 0.0005, 10.0])
            asyncio.run(load_some(list(range(start_at, start_at + 4)), patience))
            reader.backend.batched_contains([key(start_at)], pin=choice.random() < 0.5)
            reader.backend.unpin(key(start_at))
            if choice.random() < 0.1:
                reader.backend.remove(key(start_at))

    threads = [threading.Thread(target=store, args=(n,)) for n in range(2)]
    threads += [threading.Thread(target=load, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []
