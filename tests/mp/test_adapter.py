"""The adapter against a store in memory: what LMCache asks, what it is told, and when.

Past 400 lines because every method of LMCache's interface has its tests here.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from lmcache.v1.distributed.internal_api import L2StoreResult

from sharedfs_backend.mp import SharedFSL2Adapter
from tests.mp.fake_store import FakeStore
from tests.mp.helpers import (
    Heard,
    contents,
    desc,
    finished_load,
    finished_stores,
    identify,
    keys,
    load,
    lookup,
    memory,
    store,
    wait_fd,
)

SIZE = 2 * 4 * 16 * 8 * 4


def test_what_was_stored_is_found_and_loaded_byte_for_byte(adapter: Any) -> None:
    wanted, source, target = keys(5), memory(5, fill=1), memory(5, fill=None)
    assert store(adapter, wanted, source) == L2StoreResult(True, 5 * SIZE)
    assert lookup(adapter, wanted) == [0, 1, 2, 3, 4]
    assert load(adapter, wanted, target) == [0, 1, 2, 3, 4]
    assert contents(target) == contents(source)


def test_subsets_need_not_be_prefixes(adapter: Any) -> None:
    wanted = keys(6)
    store(adapter, [wanted[1], wanted[4]], memory(2, fill=7))
    assert lookup(adapter, wanted) == [1, 4]
    target = memory(3, fill=None)
    assert load(adapter, [wanted[4], wanted[0], wanted[1]], target) == [0, 2]
    assert contents(target) == [bytes([8]) * SIZE, bytes(SIZE), bytes([7]) * SIZE]


def test_groups_ranks_salts_and_models_in_one_call_do_not_mix(
    adapter: Any, fake: FakeStore
) -> None:
    mixed = [
        *keys(2, rank=1 << 16, group=0),
        *keys(2, rank=1 << 16, group=3),
        *keys(2, rank=2 << 16),
        *keys(2, salt="s"),
        *keys(2, model="other"),
    ]
    source = memory(10, fill=1)
    store(adapter, mixed[::2], source[::2])
    hint = {0: desc(), 3: desc()}
    assert lookup(adapter, mixed, hint) == [0, 2, 4, 6, 8]
    target = memory(10, fill=None)
    assert load(adapter, mixed, target) == [0, 2, 4, 6, 8]
    assert contents(target)[::2] == contents(source)[::2]
    assert {d.model_identity for d in fake.descriptors} == {"weights-of-m", "weights-of-other"}


def test_the_three_event_descriptors_differ(adapter: Any) -> None:
    fds = {
        adapter.get_store_event_fd(),
        adapter.get_lookup_and_lock_event_fd(),
        adapter.get_load_event_fd(),
    }
    assert len(fds) == 3


def test_each_result_is_handed_out_once(adapter: Any) -> None:
    wanted = keys(1)
    task = adapter.submit_store_task(wanted, memory(1))
    assert finished_stores(adapter, task)[task].is_successful()
    assert adapter.pop_completed_store_tasks() == {}
    task = adapter.submit_lookup_and_lock_task(wanted, {0: desc()})
    wait_fd(adapter.get_lookup_and_lock_event_fd())
    assert adapter.query_lookup_and_lock_result(task) is not None
    assert adapter.query_lookup_and_lock_result(task) is None
    task = adapter.submit_load_task(wanted, memory(1))
    wait_fd(adapter.get_load_event_fd())
    assert adapter.query_load_result(task) is not None
    assert adapter.query_load_result(task) is None
    assert adapter.query_load_result(10**6) is None


def test_a_key_is_announced_once_however_often_it_is_stored(adapter: Any) -> None:
    heard, wanted = Heard(), keys(3)
    adapter.register_listener(heard)
    twice = [wanted[0], wanted[1], wanted[0]]
    assert store(adapter, twice, memory(3)).bytes_transferred() == 2 * SIZE
    assert store(adapter, wanted, memory(3)).bytes_transferred() == SIZE
    assert heard.stored == [(key, SIZE) for key in wanted]


def test_a_key_another_process_stored_costs_no_bytes_and_is_announced(
    adapter: Any, fake: FakeStore
) -> None:
    other = SharedFSL2Adapter({"root": "/nowhere"}, store=fake, identify=identify)
    heard, wanted = Heard(), keys(2)
    adapter.register_listener(heard)
    store(other, wanted, memory(2))
    other.close()
    assert store(adapter, wanted, memory(2)) == L2StoreResult(True, 0)
    assert heard.stored == [(key, SIZE) for key in wanted]


def test_usage_counts_real_bytes_for_each_salt_once(adapter: Any) -> None:
    store(adapter, keys(2, salt="a"), memory(2))
    store(adapter, keys(3, salt="b"), memory(3))
    store(adapter, keys(3, salt="b"), memory(3))
    usage = adapter.get_usage()
    assert dict(usage.bytes_by_cache_salt) == {"a": 2 * SIZE, "b": 3 * SIZE}
    assert (usage.total_bytes_used, usage.total_capacity_bytes) == (5 * SIZE, 0)
    assert not adapter.supports_global_eviction


def test_loaded_keys_are_announced_as_accessed(adapter: Any) -> None:
    heard, wanted = Heard(), keys(4)
    adapter.register_listener(heard)
    store(adapter, wanted[:2], memory(2))
    load(adapter, wanted, memory(4))
    assert heard.accessed == wanted[:2]


def test_a_store_that_fails_in_part_fails_as_a_whole(adapter: Any, fake: FakeStore) -> None:
    fake.fail_puts = True
    heard = Heard()
    adapter.register_listener(heard)
    result = store(adapter, keys(2), memory(2))
    assert not result.is_successful()
    assert heard.stored == []


def test_delete_forgets_here_and_tells_the_listeners(adapter: Any) -> None:
    heard, wanted = Heard(), keys(3)
    adapter.register_listener(heard)
    store(adapter, wanted, memory(3))
    adapter.delete([wanted[1], *keys(1, first=99)])
    assert heard.deleted == [wanted[1]]
    assert lookup(adapter, wanted) == [0, 2]
    assert adapter.get_usage().total_bytes_used == 2 * SIZE


def test_delete_leaves_locked_keys_alone(adapter: Any) -> None:
    wanted = keys(2)
    store(adapter, wanted, memory(2))
    lookup(adapter, wanted[:1])
    adapter.delete(wanted)
    assert lookup(adapter, wanted) == [0]


def test_keys_are_listed_in_pages(adapter: Any) -> None:
    wanted = [*keys(5), *keys(2, model="other")]
    store(adapter, wanted, memory(7))
    listed, cursor = [], None
    while True:
        page = adapter.list_l2_keys(model_name="m", page_size=2, cursor=cursor)
        listed += [(entry.key.to_object_key(), entry.size_bytes) for entry in page.entries]
        cursor = page.next_page_token
        if cursor is None:
            break
    assert listed == [(key, SIZE) for key in wanted[:5]]


@pytest.mark.parametrize("wrong", [{"page_size": 0}, {"page_size": -1}, {"cursor": "x"}])
def test_a_malformed_page_request_is_refused_as_lmcache_expects(
    adapter: Any, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ValueError):
        adapter.list_l2_keys(**wrong)


def test_what_the_store_lost_leaves_lmcaches_books(adapter: Any, fake: FakeStore) -> None:
    heard, wanted = Heard(), keys(3)
    adapter.register_listener(heard)
    store(adapter, wanted, memory(3))
    del fake.chunks[next(iter(fake.chunks))]
    adapter._idle()
    assert heard.deleted == wanted[:1]
    assert adapter.get_usage().total_bytes_used == 2 * SIZE


def test_the_status_says_what_there_is_and_whether_it_is_well(
    adapter: Any, fake: FakeStore
) -> None:
    store(adapter, keys(2), memory(2))
    status = adapter.report_status()
    assert status["is_healthy"] is True
    assert (status["root"], status["live_bytes"], status["chunk_count"]) == (
        "/nowhere",
        2 * SIZE,
        2,
    )
    fake.healthy = False
    assert adapter.report_status()["is_healthy"] is False


# -- identity (I8) -----------------------------------------------------------------------------


def test_what_is_known_about_an_engine_makes_its_realm(fake: FakeStore) -> None:
    params = {"root": "/nowhere", "shard": "pp1", "serde": "fp8"}
    adapter = SharedFSL2Adapter(params, store=fake, identify=identify)
    lookup(adapter, keys(1))
    adapter.close()
    (found,) = fake.descriptors
    assert (found.model_identity, found.identity_verified) == ("weights-of-m", True)
    assert (found.shard, found.serde, found.hash_family) == ("pp1", "fp8", "lmcache-mp-256")


def test_a_refused_realm_shares_nothing_and_says_so(
    fake: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    fake.refuse_realms = True
    adapter = SharedFSL2Adapter({"root": "/nowhere"}, store=fake, identify=identify)
    assert not store(adapter, keys(1), memory(1)).is_successful()
    assert lookup(adapter, keys(1)) == []
    assert load(adapter, keys(1), memory(1)) == []
    adapter.close()
    assert [r.message for r in caplog.records if "nothing is shared" in r.message] == [
        "sharedfs: nothing is shared for model 'm': the test says so"
    ]


def test_other_dtypes_do_not_cross_hit_and_cost_one_failed_load(
    adapter: Any, fake: FakeStore
) -> None:
    wanted = keys(2)
    store(adapter, wanted, memory(2, dtype=torch.float32))
    hint = {0: desc(dtype=torch.bfloat16)}
    assert lookup(adapter, wanted, hint) == [0, 1]  # nobody has said that the hint is true
    target = memory(2, fill=None, dtype=torch.bfloat16)
    assert load(adapter, wanted, target) == []
    assert contents(target) == [bytes(SIZE // 2)] * 2
    assert lookup(adapter, wanted, hint) == []
    assert lookup(adapter, wanted, {}) == []


def test_a_hint_the_realm_knows_is_believed_at_once(adapter: Any, fake: FakeStore) -> None:
    store(adapter, keys(1), memory(1, dtype=torch.float32))
    store(adapter, keys(1, first=5), memory(1, dtype=torch.bfloat16))
    fresh = SharedFSL2Adapter({"root": "/nowhere"}, store=fake, identify=identify)
    assert lookup(fresh, [*keys(1), *keys(1, first=5)], {0: desc(dtype=torch.bfloat16)}) == [1]
    fresh.close()


def test_a_placeholder_hint_does_no_harm(adapter: Any) -> None:
    store(adapter, keys(3), memory(3))
    assert lookup(adapter, keys(3), {0: desc(shape=(1,), dtype=torch.uint8)}) == [0, 1, 2]
    assert lookup(adapter, keys(3), {0: "not even a layout"}) == [0, 1, 2]


def test_submits_leave_all_work_to_the_dispatcher(adapter: Any, fake: FakeStore) -> None:
    callers = set()
    derive = fake.keys

    def noted(ids: Any) -> list[bytes]:
        callers.add(threading.current_thread().name)
        return derive(ids)

    fake.keys = noted  # type: ignore[method-assign]
    wanted = keys(8)
    store(adapter, wanted, memory(8))
    lookup(adapter, wanted)
    load(adapter, wanted, memory(8))
    adapter.submit_unlock(wanted)
    lookup(adapter, wanted)
    assert callers == {"sharedfs-dispatch"}


# -- trouble (I6) ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["realm", "keys", "lookup", "submit_load", "submit_put", "usage"])
def test_an_error_of_the_store_is_a_miss(adapter: Any, fake: FakeStore, name: str) -> None:
    fake.raise_on = {name}
    wanted = keys(2)
    stored = store(adapter, wanted, memory(2))
    assert stored.is_successful() == (name in ("lookup", "submit_load", "usage"))
    found = lookup(adapter, wanted)
    loaded = load(adapter, wanted, memory(2))
    adapter.submit_unlock(wanted)
    adapter.delete(wanted)
    adapter.report_status()
    assert (found == []) == (name not in ("submit_load", "usage"))
    assert (loaded == []) == (name not in ("lookup", "usage"))


def test_buffers_that_cannot_be_reached_are_misses(adapter: Any) -> None:
    class Elsewhere:
        def __init__(self, real: Any) -> None:
            self.meta = real.meta

    wanted = keys(2)
    mixed = [memory(1)[0], Elsewhere(memory(1)[0])]
    assert not store(adapter, wanted, mixed).is_successful()
    assert lookup(adapter, wanted) == [0]
    assert load(adapter, wanted, mixed) == [0]


def test_arguments_that_make_no_sense_end_in_a_miss(adapter: Any) -> None:
    task = adapter.submit_lookup_and_lock_task([object()], {})
    wait_fd(adapter.get_lookup_and_lock_event_fd())
    assert list(adapter.query_lookup_and_lock_result(task).get_indices_list()) == []
    adapter.submit_unlock([object()])
    adapter.delete([object()])
    task = adapter.submit_load_task(keys(1), None)
    assert list(adapter.query_load_result(task).get_indices_list()) == []


def test_an_error_in_a_callback_loses_no_result(
    adapter: Any, fake: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)

    def broken(*_args: Any, **_kw: Any) -> Any:
        raise RuntimeError("in a callback")

    monkeypatch.setattr(fake, "layouts_of", broken)
    assert load(adapter, keys(1), memory(1)) == []
    monkeypatch.setattr(adapter._known, "admit", broken)
    assert store(adapter, keys(2), memory(2)).is_successful()
    assert load(adapter, keys(2), memory(2)) == [0, 1]


def test_a_listener_that_raises_hurts_nobody(adapter: Any) -> None:
    class Broken(Heard):
        def on_l2_keys_stored(self, keys: Any, sizes: Any) -> None:
            raise RuntimeError("listener")

    adapter.register_listener(Broken())
    assert store(adapter, keys(1), memory(1)).is_successful()


def test_an_identity_that_takes_long_holds_up_its_own_model_only(fake: FakeStore) -> None:
    hang = threading.Event()

    def slow(name: str) -> Any:
        if name == "slow":
            hang.wait(20)
        return identify(name)

    adapter = SharedFSL2Adapter({"root": "/nowhere"}, store=fake, identify=slow)
    lookup(adapter, keys(1))
    waiting = adapter.submit_lookup_and_lock_task(keys(1, model="slow"), {})
    store(adapter, keys(1), memory(1))
    assert lookup(adapter, keys(1)) == [0]
    assert adapter.query_lookup_and_lock_result(waiting) is None
    hang.set()
    wait_fd(adapter.get_lookup_and_lock_event_fd())
    assert adapter.query_lookup_and_lock_result(waiting) is not None
    adapter.close()


# -- closing (I7) ------------------------------------------------------------------------------


def test_closing_with_work_in_flight_touches_no_buffer_later(adapter: Any, fake: FakeStore) -> None:
    wanted, target = keys(3), memory(3, fill=None)
    heard = Heard()
    store(adapter, wanted, memory(3, fill=9))
    adapter.register_listener(heard)
    fake.hold()
    adapter.submit_load_task(wanted, target)
    adapter.submit_store_task(keys(3, first=50), memory(3))
    lookup(adapter, wanted)  # in order behind the load
    adapter.close()
    fake.join()
    assert contents(target) == [bytes(SIZE)] * 3
    assert (heard.accessed, heard.stored) == ([], [])
    assert fake.closed == 1


def test_after_close_everything_is_a_miss_and_nothing_is_signalled(
    adapter: Any, fake: FakeStore
) -> None:
    adapter.close()
    adapter.close()
    assert fake.closed == 1
    task = adapter.submit_lookup_and_lock_task(keys(1), {})
    assert list(adapter.query_lookup_and_lock_result(task).get_indices_list()) == []
    task = adapter.submit_load_task(keys(1), memory(1))
    assert list(adapter.query_load_result(task).get_indices_list()) == []
    task = adapter.submit_store_task(keys(1), memory(1))
    assert not adapter.pop_completed_store_tasks()[task].is_successful()
    adapter.submit_unlock(keys(1))
    adapter.delete(keys(1))


def test_finished_loads_without_taker_are_bounded(adapter: Any) -> None:
    from sharedfs_backend.mp.results import UNCLAIMED_MAX, Outbox

    outbox: Outbox[int] = Outbox()
    for n in range(UNCLAIMED_MAX + 10):
        outbox.put(n, n)
    assert outbox.take(0) is None
    assert len(outbox.take_all()) == UNCLAIMED_MAX
    outbox.close()
    outbox.close()


def test_a_load_held_by_the_file_system_is_reported_when_it_ends(
    adapter: Any, fake: FakeStore
) -> None:
    wanted, target = keys(2), memory(2, fill=None)
    store(adapter, wanted, memory(2, fill=3))
    fake.hold()
    task = adapter.submit_load_task(wanted, target)
    assert adapter.query_load_result(task) is None
    fake.let_go()
    assert finished_load(adapter, task) == [0, 1]
