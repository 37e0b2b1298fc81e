"""Loading through the in-process adapter: misses, memory, cancellation, and no leak on any path."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.inprocess.engine import FLOAT16, TOKENS, Engine, fill_of, key, metadata, start


def filled(engine: Engine, count: int) -> list[Any]:
    """Keys of `count` stored chunks, chunk n filled with n + 1."""
    keys = [key(number) for number in range(count)]
    engine.put(keys, [engine.chunk(number + 1) for number in range(count)])
    return keys


def lose(engine: Engine, lost: Any) -> None:
    """Loads of this chunk fail from now on, though lookups still promise it."""
    engine.store.fail_loads.add(engine.backend._chunks.digests([lost])[0])


def fills(objects: list[Any]) -> list[int | None]:
    """What the objects hold, dropping the references."""
    found = [None if obj is None else fill_of(obj) for obj in objects]
    for obj in objects:
        if obj is not None:
            assert obj.get_ref_count() == 1
            obj.ref_count_down()
    return found


def test_objects_come_in_order_with_none_for_a_miss(engine: Engine) -> None:
    keys = filled(engine, 3)
    loaded = engine.backend.batched_get_blocking([keys[2], key(99), keys[0], keys[1]])
    assert fills(loaded) == [3, None, 1, 2]


def test_a_chunk_that_fails_to_load_is_a_miss_and_its_memory_goes_back(engine: Engine) -> None:
    keys = filled(engine, 3)
    lose(engine, keys[1])
    assert fills(engine.backend.batched_get_blocking(keys)) == [1, None, 3]
    assert engine.objects_in_use == 0


def test_the_asynchronous_load_returns_the_leading_chunks(engine: Engine) -> None:
    keys = filled(engine, 4)
    lose(engine, keys[2])
    loaded = asyncio.run(engine.backend.batched_get_non_blocking("request", keys))
    assert fills(loaded) == [1, 2]
    assert engine.objects_in_use == 0


def test_a_cancelled_load_gives_its_memory_back_before_it_ends(engine: Engine) -> None:
    async def cancel_while_loading() -> None:
        load = asyncio.create_task(engine.backend.batched_get_non_blocking("request", keys))
        await asyncio.sleep(0)  # it runs as far as it can
        assert engine.objects_in_use == 2
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
        assert engine.objects_in_use == 0

    keys = filled(engine, 2)
    engine.store.hold()
    asyncio.run(cancel_while_loading())
    assert engine.store.tasks[1].cancels > 0  # the gate was shut before the memory went back


def test_a_load_nobody_answers_is_given_up(engine: Engine) -> None:
    keys = filled(engine, 1)
    engine.backend._chunks._patience_seconds = 0.01
    engine.store.hold()
    assert engine.backend.batched_get_blocking(keys) == [None]
    assert asyncio.run(engine.backend.batched_get_non_blocking("request", keys)) == []
    assert engine.objects_in_use == 0


def test_close_ends_a_blocking_load(engine: Engine) -> None:
    keys = filled(engine, 1)
    engine.store.hold()
    future = engine.backend.get_non_blocking(keys[0])
    engine.backend._chunks.close()
    assert future.result(10) is None
    assert engine.objects_in_use == 0


def test_the_single_asynchronous_load(engine: Engine) -> None:
    [there] = filled(engine, 1)
    assert fills([engine.backend.get_non_blocking(there).result(10)]) == [1]
    assert engine.backend.get_non_blocking(key(99)) is None


@pytest.mark.parametrize("call", ["lookup", "submit_load", "keys"])
def test_whatever_the_store_raises_is_a_miss(engine: Engine, call: str) -> None:
    keys = filled(engine, 2)
    engine.store.raise_on.add(call)
    assert engine.backend.batched_get_blocking(keys) == [None, None]
    assert asyncio.run(engine.backend.batched_get_non_blocking("request", keys)) == []
    assert engine.backend.get_non_blocking(keys[0]) is None
    assert engine.objects_in_use == 0
    assert engine.backend.errors["load"] == 3


def test_a_full_pool_gives_the_leading_chunks_without_waiting(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = filled(engine, 3)
    allocate, asked = engine.pool.allocate, []

    def two_then_full(*what: Any, **how: Any) -> Any:
        asked.append(how)
        return allocate(*what, **how) if len(asked) <= 2 else None

    monkeypatch.setattr(engine.pool, "allocate", two_then_full)
    assert fills(engine.backend.batched_get_blocking(keys)) == [1, 2, None]
    assert all(how == {"eviction": True, "busy_loop": False} for how in asked)


def test_an_allocator_that_raises_leaks_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = filled(engine, 3)
    allocate, asked = engine.pool.allocate, []

    def one_then_raise(*what: Any, **how: Any) -> Any:
        asked.append(how)
        if len(asked) > 1:
            raise RuntimeError("the pool is broken")
        return allocate(*what, **how)

    monkeypatch.setattr(engine.pool, "allocate", one_then_raise)
    assert engine.backend.batched_get_blocking(keys) == [None] * 3
    assert engine.objects_in_use == 0


def test_lookups_count_leading_hits(engine: Engine) -> None:
    keys = filled(engine, 3)
    asked = [keys[0], keys[1], key(99), keys[2]]
    assert engine.backend.batched_contains(asked) == 2
    assert asyncio.run(engine.backend.batched_async_contains("request", asked)) == 2
    assert engine.backend.contains(keys[2])


def test_another_dtype_or_head_count_is_a_miss(engine: Engine) -> None:
    filled(engine, 1)
    for other in ({"kv_dtype": FLOAT16}, {"kv_shape": (4, 2, TOKENS, 1, 16 * 2)}):
        stranger = start(store=engine.store, meta=metadata(**other))
        assert not stranger.backend.contains(key(0))
        stranger.close()
    assert engine.backend.contains(key(0))


def test_a_short_last_chunk_is_found_where_short_chunks_are_kept() -> None:
    engine = start(save_unfull_chunk=True)
    engine.put([key(1), key(2)], [engine.chunk(1), engine.chunk(2, tokens=TOKENS - 5)])
    assert engine.backend.batched_contains([key(1), key(2)]) == 2
    first, second = engine.backend.batched_get_blocking([key(1), key(2)])
    assert (first.get_num_tokens(), second.get_num_tokens()) == (TOKENS, TOKENS - 5)
    assert fills([first, second]) == [1, 2]
    assert engine.objects_in_use == 0
    engine.close()


def test_a_short_chunk_is_no_hit_where_only_full_ones_are_kept(engine: Engine) -> None:
    engine.put([key(1)], [engine.chunk(1, tokens=TOKENS - 5)])
    assert not engine.backend.contains(key(1))
    assert engine.backend.get_blocking(key(1)) is None


def test_removing_a_chunk_forgets_it_here(engine: Engine) -> None:
    keys = filled(engine, 2)
    assert engine.backend.remove(keys[0])
    assert not engine.backend.remove(keys[0])
    assert engine.backend.batched_remove(keys) == 1
    assert not engine.backend.contains(keys[1])


def test_pinned_chunks_are_removed_only_by_force(engine: Engine) -> None:
    [pinned] = filled(engine, 1)
    assert engine.backend.pin(pinned)
    assert not engine.backend.remove(pinned, force=False)
    assert engine.backend.remove(pinned, force=True)


def test_a_closed_backend_finds_nothing(engine: Engine) -> None:
    keys = filled(engine, 1)
    engine.backend.close()
    assert not engine.backend.contains(keys[0])
    assert engine.backend.batched_get_blocking(keys) == [None]
    assert engine.backend.get_non_blocking(keys[0]) is None


def test_memory_comes_from_lmcaches_own_backend(engine: Engine) -> None:
    assert engine.backend.get_allocator_backend() is engine.pool
    assert engine.backend.touch_cache() is None
    assert str(engine.backend) == "SharedFSBackend"
