"""Which loads an unlock stops, and which it must leave alone (I7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sharedfs_backend.mp.leases import Leases, Load
from tests.mp.fake_store import FakeStore
from tests.mp.helpers import contents, finished_load, keys, load, lookup, memory, store

SIZE = 2 * 4 * 16 * 8 * 4


class Copies:
    """Stands for the store's task: which digests were stopped."""

    def __init__(self) -> None:
        self.stopped: list[Any] = []

    def cancel(self) -> None:
        self.stopped.append("all")

    def cancel_keys(self, keys: Sequence[bytes]) -> None:
        self.stopped += keys


def opened(leases: Leases, task_id: int, wanted: Sequence[Any]) -> tuple[Load, Copies]:
    made, copies = Load(task_id, wanted, wanted, at=0.0), Copies()
    places = list(range(len(wanted)))
    made.parts.append((places, [bytes([place]) for place in places], copies))
    leases.opened(made)
    return made, copies


def test_the_unlock_of_a_given_up_load_stops_it() -> None:
    leases, mine = Leases(300.0), keys(3)
    leases.grant(mine, 0.0)
    made, copies = opened(leases, 1, mine)
    leases.release(list(mine))
    assert copies.stopped == ["all"]
    assert made.void == {0, 1, 2}


def test_the_unlock_of_another_request_with_the_same_keys_stops_nothing() -> None:
    leases, mine, others = Leases(300.0), keys(3), keys(3)
    leases.grant(others, 0.0)
    leases.grant(mine, 0.0)
    _made, copies = opened(leases, 1, mine)
    leases.release(others)
    assert copies.stopped == []
    assert leases.locked == 3


def test_the_unlock_after_a_result_was_taken_stops_nothing() -> None:
    leases, mine = Leases(300.0), keys(2)
    leases.grant(mine, 0.0)
    leases.grant(mine, 0.0)
    opened(leases, 1, mine)
    _made, copies = opened(leases, 2, mine)
    leases.handed_out(1)
    leases.release(mine)
    assert copies.stopped == []
    leases.release(mine)
    assert copies.stopped == ["all"]


def test_a_lock_held_besides_keeps_the_load_going() -> None:
    leases, mine = Leases(300.0), keys(1)
    leases.grant(mine, 0.0)
    leases.grant(mine, 0.0)
    _made, copies = opened(leases, 1, mine)
    leases.release(mine)
    assert copies.stopped == []


def test_unlocking_some_keys_stops_those() -> None:
    leases, mine = Leases(300.0), keys(4)
    leases.grant(mine, 0.0)
    made, copies = opened(leases, 1, mine)
    leases.release([mine[1], mine[3]])
    assert copies.stopped == [b"\1", b"\3"]
    assert made.void == {1, 3}


def test_keys_built_anew_are_judged_by_value() -> None:
    leases = Leases(300.0)
    leases.grant(keys(2), 0.0)
    leases.grant(keys(2), 0.0)
    _made, copies = opened(leases, 1, keys(2))
    leases.release(keys(2))
    assert copies.stopped == []
    leases.release(keys(2))
    assert copies.stopped == ["all"]


def test_without_any_lock_an_unlock_stops_the_load_in_doubt() -> None:
    leases = Leases(300.0)
    _made, copies = opened(leases, 1, keys(2))
    leases.release(keys(2))
    assert copies.stopped == ["all"]


def test_unlocks_put_off_are_settled_before_judging() -> None:
    leases, mine = Leases(300.0), keys(1)
    leases.grant(mine, 0.0)
    leases.grant(mine, 0.0)
    leases.release(mine)  # nothing is loading: only noted
    _made, copies = opened(leases, 1, mine)
    leases.release(mine)
    assert copies.stopped == ["all"]


def test_locks_nobody_returns_expire_and_are_bounded() -> None:
    leases = Leases(10.0, grants_max=4)
    for n in range(6):
        leases.grant(keys(1, first=n), now=0.0)
    assert leases.locked == 4
    leases.grant(keys(1, first=9), now=11.0)
    assert leases.locked == 1


def test_a_part_submitted_after_the_unlock_leaves_stopped_keys_out() -> None:
    made = Load(1, keys(3), keys(3), at=0.0)
    made.stop({1})
    assert made.void == {1}


# -- through the adapter -------------------------------------------------------------------------


def test_unlocking_a_load_under_way_leaves_its_buffers_alone(adapter: Any, fake: FakeStore) -> None:
    wanted, target = keys(3), memory(3, fill=None)
    store(adapter, wanted, memory(3, fill=9))
    lookup(adapter, wanted)
    fake.hold()
    task = adapter.submit_load_task(wanted, target)
    adapter.submit_unlock(wanted)
    fake.let_go()
    assert finished_load(adapter, task) == []
    assert contents(target) == [bytes(SIZE)] * 3
    fake.join()
    assert contents(target) == [bytes(SIZE)] * 3


def test_two_requests_load_the_same_keys_and_one_is_given_up(adapter: Any, fake: FakeStore) -> None:
    mine, others = keys(3), keys(3)
    store(adapter, mine, memory(3, fill=9))
    lookup(adapter, mine)
    lookup(adapter, others)
    fake.hold()
    target, abandoned = memory(3, fill=None), memory(3, fill=None)
    kept = adapter.submit_load_task(mine, target)
    adapter.submit_load_task(others, abandoned)
    adapter.submit_unlock(others)
    fake.let_go()
    assert finished_load(adapter, kept) == [0, 1, 2]
    fake.join()
    assert contents(abandoned) == [bytes(SIZE)] * 3
    adapter.submit_unlock(mine)


def test_the_stores_locks_are_returned_one_by_one(adapter: Any, fake: FakeStore) -> None:
    wanted = keys(2)
    store(adapter, wanted, memory(2))
    lookup(adapter, wanted)
    lookup(adapter, wanted)
    adapter.submit_unlock(wanted)
    lookup(adapter, keys(1, first=99))  # behind the unlock in the queue
    assert set(fake.locks.values()) == {1}
    adapter.submit_unlock(wanted)
    lookup(adapter, keys(1, first=99))
    assert set(fake.locks.values()) == {0}


@pytest.mark.parametrize("count", [1, 512])
def test_a_normal_request_leaves_no_lock_and_no_open_load(adapter: Any, count: int) -> None:
    wanted = keys(count)
    store(adapter, wanted, memory(count))
    for _ in range(3):
        assert len(lookup(adapter, wanted)) == count
        assert len(load(adapter, wanted, memory(count))) == count
        adapter.submit_unlock(wanted)
    assert (adapter.metrics()["adapter_locks"], adapter.metrics()["adapter_loads_open"]) == (0, 0)
