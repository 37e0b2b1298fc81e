"""Pins: what LMCache pins our own sweep leaves alone, and every pin is returned once."""

from __future__ import annotations

import asyncio
from typing import Any

from sharedfs_backend.inprocess.pins import Pins
from tests.inprocess.engine import Engine, key


def locks(engine: Engine) -> list[int]:
    """The store's lock counts, without the zeros."""
    return sorted(count for count in engine.store.locks.values() if count)


def filled(engine: Engine, count: int) -> list[Any]:
    keys = [key(number) for number in range(count)]
    engine.put(keys, [engine.chunk(1) for _ in keys])
    return keys


def test_a_pinning_lookup_locks_the_leading_hits_only(engine: Engine) -> None:
    keys = filled(engine, 3)
    assert engine.backend.batched_contains([keys[0], keys[1], key(99), keys[2]], pin=True) == 2
    assert locks(engine) == [1, 1]
    assert not engine.backend.unpin(keys[2])


def test_each_unpin_returns_one_lock(engine: Engine) -> None:
    [only] = filled(engine, 1)
    assert engine.backend.pin(only)
    assert engine.backend.contains(only, pin=True)
    assert locks(engine) == [2]
    assert engine.backend.unpin(only)
    assert locks(engine) == [1]
    assert engine.backend.unpin(only)
    assert not engine.backend.unpin(only)
    assert locks(engine) == []


def test_an_unpin_of_what_was_never_pinned_here_takes_nobody_elses_lock(engine: Engine) -> None:
    [only] = filled(engine, 1)
    engine.store.locks.update(dict.fromkeys(engine.store.chunks, 1))
    assert not engine.backend.unpin(only)
    assert locks(engine) == [1]


def test_the_pins_of_an_asynchronous_lookup_end_with_its_load(engine: Engine) -> None:
    async def request() -> None:
        assert await engine.backend.batched_async_contains("request", keys, pin=True) == 2
        assert locks(engine) == [1, 1]
        for obj in await engine.backend.batched_get_non_blocking("request", keys):
            obj.ref_count_down()

    keys = filled(engine, 2)
    asyncio.run(request())
    assert locks(engine) == []


def test_the_pins_of_an_asynchronous_lookup_end_with_its_cancellation(engine: Engine) -> None:
    keys = filled(engine, 2)
    asyncio.run(engine.backend.batched_async_contains("request", keys, pin=True))
    engine.backend.cancel_request("another request")
    assert locks(engine) == [1, 1]
    engine.backend.cancel_request("request")
    assert locks(engine) == []


def test_close_returns_every_pin(engine: Engine) -> None:
    keys = filled(engine, 2)
    engine.backend.batched_contains(keys, pin=True)
    engine.backend.pin(keys[0])
    engine.backend.close()
    assert locks(engine) == []


def test_beyond_the_limit_chunks_are_found_but_not_pinned(engine: Engine) -> None:
    keys = filled(engine, 2)
    engine.backend._pins._pins_max = 1
    assert engine.backend.batched_contains(keys, pin=True) == 2
    assert locks(engine) == []


def test_the_oldest_lookups_pins_are_returned_when_there_are_too_many() -> None:
    pins = Pins(lookups_max=1)
    assert pins.add([b"a", b"b"], "first") == []
    assert pins.add([b"b"], "second") == [b"a", b"b"]
    assert pins.total == 1
    assert pins.end_lookup("first") == []
    assert pins.end_lookup("second") == [b"b"]
    assert pins.total == 0
