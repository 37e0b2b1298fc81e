"""Storing through the in-process adapter: references, callbacks, duplicates, limits, close."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.inprocess.engine import Engine, fill_of, key, start


def test_a_stored_chunk_can_be_loaded(engine: Engine) -> None:
    engine.put([key(1)], [engine.chunk(7)])
    loaded = engine.backend.get_blocking(key(1))
    assert fill_of(loaded) == 7
    loaded.ref_count_down()


def test_a_store_holds_a_reference_until_it_is_done(engine: Engine) -> None:
    engine.store.hold()
    obj = engine.chunk(1)
    [future] = engine.backend.batched_submit_put_task([key(1)], [obj])
    obj.ref_count_down()
    assert obj.get_ref_count() == 1
    assert engine.backend.exists_in_put_tasks(key(1))
    engine.store.let_go()
    future.result(10)
    assert not obj.is_valid()
    assert not engine.backend.exists_in_put_tasks(key(1))


def test_the_callback_comes_once_for_each_chunk_newly_stored(engine: Engine) -> None:
    told: list[Any] = []
    engine.put([key(1)], [engine.chunk(1)])
    keys = [key(1), key(2), key(3)]
    engine.put(keys, [engine.chunk(n) for n in (1, 2, 3)], on_complete_callback=told.append)
    assert told == [key(2), key(3)]


def test_a_failing_callback_does_not_keep_the_others_from_being_told(engine: Engine) -> None:
    told: list[Any] = []

    def callback(done: Any) -> None:
        told.append(done)
        raise ValueError("LMCache's callback fails")

    engine.put([key(1), key(2)], [engine.chunk(1), engine.chunk(2)], on_complete_callback=callback)
    assert told == [key(1), key(2)]


def test_a_chunk_being_stored_is_not_stored_again(engine: Engine) -> None:
    engine.store.hold()
    first, second = engine.chunk(1), engine.chunk(2)
    [future] = engine.backend.batched_submit_put_task([key(1)], [first])
    assert engine.backend.batched_submit_put_task([key(1)], [second]) is None
    assert (first.get_ref_count(), second.get_ref_count()) == (2, 1)
    engine.store.let_go()
    future.result(10)
    first.ref_count_down()
    second.ref_count_down()


def test_a_key_twice_in_one_batch_is_stored_once(engine: Engine) -> None:
    engine.put([key(1), key(1)], [engine.chunk(5), engine.chunk(5)])
    assert [len(task.items) for task in engine.store.tasks] == [1]


@pytest.mark.parametrize("call", ["submit_put", "keys"])
def test_a_store_that_raises_gives_its_references_back(engine: Engine, call: str) -> None:
    engine.store.raise_on.add(call)
    engine.put([key(1)], [engine.chunk(1)])
    assert engine.objects_in_use == 0
    assert engine.backend.errors["store"] == 1
    assert not engine.backend._puts.nbytes


def test_a_store_that_fails_is_no_error(engine: Engine) -> None:
    engine.store.fail_puts = True
    engine.put([key(1)], [engine.chunk(1)])
    assert not engine.backend.contains(key(1))
    assert engine.objects_in_use == 0


def test_stores_hold_at_most_half_of_the_pool(engine: Engine) -> None:
    engine.backend._puts._bytes_max = 3 * engine.chunk(0).get_size()
    engine.allocated.pop().ref_count_down()
    engine.store.hold()
    for number in range(5):
        obj = engine.chunk(number)
        engine.backend.batched_submit_put_task([key(number)], [obj])
        obj.ref_count_down()
    assert engine.objects_in_use == 3
    assert engine.backend._puts.dropped_chunks == 2


def test_close_with_stores_under_way_gives_their_references_back(engine: Engine) -> None:
    engine.store.hold()
    obj = engine.chunk(1)
    [future] = engine.backend.batched_submit_put_task([key(1)], [obj])
    obj.ref_count_down()
    engine.backend._puts.close(timeout_seconds=0)
    assert engine.objects_in_use == 0
    assert future.done()
    assert engine.store.tasks[0].cancels > 0  # before the memory went back (I7)


def test_nothing_is_accepted_after_close(engine: Engine) -> None:
    engine.backend.close()
    obj = engine.chunk(1)
    assert engine.backend.batched_submit_put_task([key(1)], [obj]) is None
    assert obj.get_ref_count() == 1
    obj.ref_count_down()


def test_the_asynchronous_store_returns_when_it_is_done(engine: Engine) -> None:
    obj = engine.chunk(3)
    asyncio.run(engine.backend.async_batched_submit_put_task([key(1)], [obj]))
    obj.ref_count_down()
    assert engine.backend.contains(key(1))
    assert engine.objects_in_use == 0


def test_cancelling_the_wait_does_not_cancel_the_store(engine: Engine) -> None:
    async def wait_a_little() -> None:
        waiting = engine.backend.async_batched_submit_put_task([key(1)], [obj])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waiting, 0.01)

    engine.store.hold()
    obj = engine.chunk(3)
    asyncio.run(wait_a_little())
    obj.ref_count_down()
    assert engine.backend.exists_in_put_tasks(key(1))
    engine.store.let_go()
    engine.store.join()
    assert engine.backend.contains(key(1))


def test_ranks_layers_and_salts_are_kept_apart(engine: Engine) -> None:
    engine.put([key(1)], [engine.chunk(1)])
    others = [
        key(2),
        key(1, worker_id=1, world_size=2),
        key(1, tags={"lora": "abc"}),
        key(1).split_layers(4)[0],
    ]
    assert engine.backend.contains(key(1))
    assert [engine.backend.contains(other) for other in others] == [False] * 4


def test_the_order_of_a_requests_tags_does_not_matter(engine: Engine) -> None:
    engine.put([key(1, tags={"a": "1", "b": "2"})], [engine.chunk(1)])
    assert engine.backend.contains(key(1, tags={"b": "2", "a": "1"}))


def test_the_packs_rank_is_world_size_and_rank() -> None:
    engine = start()
    engine.put([key(1, world_size=8, worker_id=3)], [engine.chunk(1)])
    [item] = engine.store.tasks[0].items
    engine.close()
    assert item.rank == 8 << 16 | 3
