"""Layerwise retrieval, which LMCache cannot take back: what a lookup reports is there to stay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from sharedfs_backend.inprocess.backend import LayerLost
from sharedfs_backend.inprocess.layers import STAY_SECONDS, LayerStage
from tests.inprocess.engine import LAYERS, Engine, fill_of, key, start


@pytest.fixture
def layered() -> Iterator[Engine]:
    running = start(use_layerwise=True, local_cpu=False)
    yield running
    running.backend.close()
    left = running.objects_in_use
    running.close()
    assert left == 0, f"{left} memory objects were not given back"


def filled(engine: Engine, count: int) -> list[list[Any]]:
    """Layer keys of `count` chunks; layer n of chunk c is filled with 10 * c + n."""
    chunks = [key(number).split_layers(LAYERS) for number in range(count)]
    for number, keys in enumerate(chunks):
        engine.put(keys, engine.layers(10 * number))
    return chunks


def lose(engine: Engine, lost: Any) -> None:
    engine.store.fail_loads.add(engine.backend._chunks.digests([lost])[0])


def get_layer(engine: Engine, chunks: list[list[Any]], layer: int) -> list[int]:
    """One layer of several chunks, as LMCache retrieves them."""
    keys = [keys[layer] for keys in chunks]
    objects = asyncio.run(engine.backend.batched_get_non_blocking("fake_lookup_id", keys))
    found = [fill_of(obj) for obj in objects]
    for obj in objects:
        obj.ref_count_down()
    return found


def test_a_retrieval_takes_what_the_lookup_loaded(layered: Engine) -> None:
    chunks = filled(layered, 2)
    for keys in chunks:
        assert layered.backend.batched_contains(keys, pin=True) == LAYERS
    layered.store.raise_on.add("submit_load")  # from here on nothing can be loaded
    layered.store.raise_on.add("lookup")
    assert layered.backend.contains(chunks[0][0])
    assert [get_layer(layered, chunks, n) for n in range(LAYERS)] == [
        [n, 10 + n] for n in range(LAYERS)
    ]


def test_a_chunk_with_a_lost_layer_is_no_hit(layered: Engine) -> None:
    [keys] = filled(layered, 1)
    lose(layered, keys[2])
    assert layered.backend.batched_contains(keys, pin=True) == 0
    assert layered.objects_in_use == 0


def test_staged_layers_go_with_the_last_pin(layered: Engine) -> None:
    [keys] = filled(layered, 1)
    layered.backend.batched_contains(keys, pin=True)
    layered.backend.batched_contains(keys, pin=True)
    assert len(layered.store.tasks) == 2  # one store, one load: the second lookup found them
    for layer in keys:
        assert layered.backend.unpin(layer)
    assert layered.objects_in_use == LAYERS
    for layer in keys:
        assert layered.backend.unpin(layer)
    assert layered.objects_in_use == 0


def test_the_first_layer_stands_for_all_of_them(layered: Engine) -> None:
    keys = key(1).split_layers(LAYERS)
    *some, last = layered.layers(0)
    layered.put(keys[:-1], some)
    assert not layered.backend.contains(keys[0])
    assert layered.backend.contains(keys[1])
    layered.put(keys[-1:], [last])
    assert layered.backend.contains(keys[0])


def test_a_layer_lost_without_a_lookup_is_an_error_not_a_short_answer(layered: Engine) -> None:
    chunks = filled(layered, 2)
    lose(layered, chunks[1][0])
    with pytest.raises(LayerLost):
        get_layer(layered, chunks, 0)
    assert layered.objects_in_use == 0


def test_the_asynchronous_path_takes_a_short_answer(layered: Engine) -> None:
    [keys] = filled(layered, 1)
    lose(layered, keys[3])
    load = layered.backend.batched_get_non_blocking("request", keys, {"cum_chunk_lengths": [0]})
    objects = asyncio.run(load)
    assert [fill_of(obj) for obj in objects] == [0, 1, 2]
    for obj in objects:
        obj.ref_count_down()


def test_a_full_pool_makes_it_a_miss(layered: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    [keys] = filled(layered, 1)
    monkeypatch.setattr(layered.pool, "batched_allocate", lambda *_args, **_more: None)
    assert layered.backend.batched_contains(keys, pin=True) == 0


class Object:
    """Counts its references as LMCache's objects do."""

    def __init__(self) -> None:
        self.references = 1

    def ref_count_up(self) -> None:
        self.references += 1

    def ref_count_down(self) -> None:
        self.references -= 1


def test_pins_nobody_returns_end_by_themselves() -> None:
    clock = [0.0]
    stage, first, second = LayerStage(lambda: clock[0]), Object(), Object()
    assert stage.pin_all(["a"], lambda: [first])
    clock[0] = STAY_SECONDS + 1
    assert stage.pin_all(["b"], lambda: [second])
    assert (first.references, second.references) == (0, 1)
    assert not stage.unpin("a")


def test_two_lookups_loading_the_same_layers_keep_one_copy() -> None:
    stage, mine, theirs = LayerStage(lambda: 0.0), Object(), Object()

    def load_while_another_does() -> list[Any]:
        assert stage.pin_all(["a"], lambda: [theirs])
        return [mine]

    assert stage.pin_all(["a"], load_while_another_does)
    assert (mine.references, theirs.references) == (0, 1)
    stage.unpin("a")
    assert theirs.references == 1
    stage.unpin("a")
    assert theirs.references == 0
