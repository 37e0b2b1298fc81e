"""Which thread does what LMCache submits: its own controller's for short lookups, else ours."""

from __future__ import annotations

import threading
import time
from typing import Any

from sharedfs_backend.mp.adapter import LOOKUP_AT_ONCE_KEYS_MAX
from tests.mp.fake_store import FakeStore
from tests.mp.helpers import keys, load, lookup, memory, store, wait_fd


def _until_none_waits(adapter: Any) -> None:
    until = time.monotonic() + 20
    while adapter.metrics()["adapter_queue"]:
        assert time.monotonic() < until
        time.sleep(0.001)


class _Callers:
    """Which threads derive keys, which is the first step of whatever is done."""

    def __init__(self, fake: FakeStore) -> None:
        self.names: list[str] = []
        self._derive = fake.keys
        fake.keys = self._noted  # type: ignore[method-assign]

    def _noted(self, ids: Any) -> list[bytes]:
        self.names.append(threading.current_thread().name)
        return self._derive(ids)

    def take(self) -> set[str]:
        names, self.names = set(self.names), []
        return names


HERE, THERE = threading.main_thread().name, "sharedfs-dispatch"


def test_submits_leave_all_work_but_a_lookup_to_the_dispatcher(
    adapter: Any, fake: FakeStore
) -> None:
    callers = _Callers(fake)
    wanted = keys(8)
    assert lookup(adapter, wanted) == []
    assert callers.take() == {THERE}  # its realm had to be found out
    store(adapter, wanted, memory(8))
    load(adapter, wanted, memory(8))
    adapter.submit_unlock(wanted)
    _until_none_waits(adapter)
    assert callers.take() == {THERE}
    assert lookup(adapter, wanted) == list(range(8))
    assert callers.take() == {HERE}


def test_a_long_lookup_is_the_dispatchers(adapter: Any, fake: FakeStore) -> None:
    lookup(adapter, keys(1))
    callers = _Callers(fake)
    assert lookup(adapter, keys(LOOKUP_AT_ONCE_KEYS_MAX)) == []
    assert callers.take() == {HERE}
    assert lookup(adapter, keys(LOOKUP_AT_ONCE_KEYS_MAX + 1)) == []
    assert callers.take() == {THERE}


def test_a_lookup_passes_nobody_who_waits(adapter: Any, fake: FakeStore) -> None:
    wanted = keys(2)
    store(adapter, wanted, memory(2))
    go_on = threading.Event()
    unlock = fake.unlock

    def slow(*arguments: Any, **more: Any) -> None:
        go_on.wait(20)
        unlock(*arguments, **more)

    fake.unlock = slow  # type: ignore[method-assign]
    adapter.submit_unlock(wanted)
    _until_none_waits(adapter)  # under way
    adapter.submit_unlock(wanted)
    task = adapter.submit_lookup_and_lock_task(wanted, {})
    assert adapter.query_lookup_and_lock_result(task) is None
    go_on.set()
    _until_none_waits(adapter)
    wait_fd(adapter.get_lookup_and_lock_event_fd())
    assert adapter.query_lookup_and_lock_result(task).get_indices_list() == [0, 1]
