"""Buffers, the dirty budget and the fd cache: bounded, and nothing is used after it was let go."""

from __future__ import annotations

import pytest

from sharedfs_backend.buffers import BufferPool
from sharedfs_backend.dirty import WRITEBACK_SECONDS, DirtyBudget
from sharedfs_backend.fdcache import FdCache, Lease, Opening
from sharedfs_backend.files import CountingFiles, FailureKind, FileFailure, LocalFiles
from sharedfs_backend.layout import PackName


def test_the_buffer_used_last_is_used_next() -> None:
    pool = BufferPool(4096, 4 * 4096)
    first, second = pool.acquire(), pool.acquire()
    assert first is not None and second is not None
    pool.release(first)
    pool.release(second)
    assert pool.acquire() is second


def test_buffers_are_bounded_and_never_waited_for() -> None:
    pool = BufferPool(4096, 2 * 4096)
    taken = [pool.acquire() for _ in range(3)]
    assert taken[2] is None and pool.bytes_held == 8192
    assert taken[0] is not None
    pool.release(taken[0])
    assert pool.acquire() is taken[0] and pool.acquire() is None


def test_a_buffer_is_page_aligned_and_its_array_is_the_same_memory() -> None:
    buffer = BufferPool(8192, 8192).acquire()
    assert buffer is not None
    buffer.view[5] = 9
    assert buffer.array[5] == 9 and buffer.array.ctypes.data % 4096 == 0


def test_a_pool_smaller_than_a_buffer_still_has_one() -> None:
    assert BufferPool(8192, 1).acquire() is not None


def test_writers_flush_beyond_the_dirty_budget() -> None:
    budget = DirtyBudget(100)
    assert [budget.wrote(60, 0.0), budget.wrote(60, 0.0)] == [False, True]
    budget.flushed(120)
    assert not budget.wrote(100, 0.0)


def test_without_a_dirty_budget_nobody_flushes_and_bytes_are_counted_all_the_same() -> None:
    budget = DirtyBudget(None)
    assert not budget.wrote(1 << 50, 0.0)
    assert budget.bytes_dirty == 1 << 50
    budget.flushed(1 << 49)
    budget.closed(1 << 49, 0.0)
    assert not budget.wrote(1, WRITEBACK_SECONDS)
    assert budget.bytes_dirty == 1


def test_what_a_closed_pack_left_dirty_counts_until_it_is_written_back() -> None:
    budget = DirtyBudget(100)
    budget.wrote(90, 0.0)
    budget.closed(90, 0.0)
    assert budget.wrote(20, WRITEBACK_SECONDS - 1)
    assert not budget.wrote(20, WRITEBACK_SECONDS)


class Shelf:
    """An fd cache on real files, with a clock that stands still until moved."""

    def __init__(self, root: str, handles_max: int = 2) -> None:
        self.files = CountingFiles(LocalFiles(root))
        self.seconds = 0.0
        self.cache = FdCache(
            self.files, lambda: self.seconds, handles_max=handles_max, patience_seconds=5.0
        )
        self.told: list[FileFailure | None] = []

    def put(self, seq: int) -> PackName:
        name = PackName(bytes(16), "0123456789abcdef", seq)
        for path in ("packs", "packs/00"):
            self.files.inner.make_dir(path)
        self.files.inner.close(self.files.inner.create(name.path))
        return name

    def acquire(self, name: PackName, owner: object = None) -> Lease | Opening | None:
        return self.cache.acquire(name, owner, self.told.append)

    def open(self, name: PackName) -> Lease:
        found = self.acquire(name)
        if isinstance(found, Opening):
            return self.cache.opened(found, self.files.open_read(name.path))
        assert found is not None
        return found

    @property
    def ops(self) -> list[str]:
        return [operation.op for operation in self.files.log]


@pytest.fixture
def shelf(tmp_path: object) -> Shelf:
    return Shelf(str(tmp_path))


def test_a_known_pack_is_not_opened_again(shelf: Shelf) -> None:
    name = shelf.put(1)
    shelf.cache.release(shelf.open(name))
    shelf.cache.release(shelf.open(name))
    assert shelf.ops == ["open"]


def test_one_opens_and_the_others_are_told(shelf: Shelf) -> None:
    name = shelf.put(1)
    opening = shelf.acquire(name)
    assert isinstance(opening, Opening)
    assert [shelf.acquire(name), shelf.acquire(name), shelf.told] == [None, None, []]
    shelf.cache.opened(opening, shelf.files.open_read(name.path))
    assert shelf.told == [None, None]
    assert isinstance(shelf.acquire(name), Lease)


def test_when_opening_fails_all_hear_why_and_the_next_one_tries_again(shelf: Shelf) -> None:
    name = shelf.put(1)
    opening = shelf.acquire(name)
    assert isinstance(opening, Opening)
    shelf.acquire(name)
    failure = FileFailure(FailureKind.IO, "open", name.path, "planned")
    shelf.cache.failed(opening, failure)
    assert shelf.told == [failure]
    assert isinstance(shelf.acquire(name), Opening)


def test_who_no_longer_cares_is_not_told(shelf: Shelf) -> None:
    name = shelf.put(1)
    opening = shelf.acquire(name)
    assert isinstance(opening, Opening)
    shelf.acquire(name, "me")
    shelf.cache.unpark(name, "me")
    shelf.cache.opened(opening, shelf.files.open_read(name.path))
    assert shelf.told == []


def test_an_open_that_hangs_is_overtaken_and_its_late_handle_closed(shelf: Shelf) -> None:
    name = shelf.put(1)
    hung = shelf.acquire(name)
    assert isinstance(hung, Opening)
    assert shelf.acquire(name) is None
    shelf.seconds = 6.0
    overtaking = shelf.acquire(name)
    assert isinstance(overtaking, Opening)
    shelf.cache.release(shelf.cache.opened(overtaking, shelf.files.open_read(name.path)))
    assert shelf.told == [None]
    shelf.cache.release(shelf.cache.opened(hung, shelf.files.open_read(name.path)))
    assert shelf.ops == ["open", "open", "close"] and len(shelf.cache) == 1


def test_the_longest_unused_handle_goes_first(shelf: Shelf) -> None:
    first, second, third = (shelf.put(seq) for seq in (1, 2, 3))
    for name in (first, second, first, third):
        shelf.cache.release(shelf.open(name))
    closed = [operation.path for operation in shelf.files.log if operation.op == "close"]
    assert closed == [second.path] and len(shelf.cache) == 2


def test_a_handle_in_use_is_not_evicted(shelf: Shelf) -> None:
    leases = [shelf.open(shelf.put(seq)) for seq in (1, 2, 3)]
    assert "close" not in shelf.ops
    for lease in leases:
        shelf.cache.release(lease)


def test_a_forgotten_pack_is_closed_after_its_last_call(shelf: Shelf) -> None:
    name = shelf.put(1)
    first, second = shelf.open(name), shelf.open(name)
    shelf.cache.forget(name)
    shelf.cache.release(first)
    assert shelf.ops == ["open"]
    shelf.cache.release(second)
    assert shelf.ops == ["open", "close"]
    assert isinstance(shelf.acquire(name), Opening)


def test_forgetting_an_idle_pack_closes_it_at_once(shelf: Shelf) -> None:
    name = shelf.put(1)
    shelf.cache.release(shelf.open(name))
    shelf.cache.forget(name)
    shelf.cache.forget(name)
    assert shelf.ops == ["open", "close"]


def test_a_stale_handle_is_never_handed_out_again(shelf: Shelf) -> None:
    name = shelf.put(1)
    first, second = shelf.open(name), shelf.open(name)
    shelf.cache.release(first, discard=True)
    assert isinstance(shelf.acquire(name), Opening)
    shelf.cache.release(second, discard=True)
    assert shelf.ops == ["open", "close"]


def test_closing_the_cache_leaves_nothing_open(shelf: Shelf) -> None:
    idle, used = shelf.put(1), shelf.put(2)
    shelf.cache.release(shelf.open(idle))
    lease = shelf.open(used)
    shelf.cache.close()
    assert shelf.ops.count("close") == 1
    shelf.cache.release(lease)
    shelf.cache.release(shelf.open(idle))
    assert shelf.ops.count("open") == shelf.ops.count("close")
