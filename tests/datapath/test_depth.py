"""Read depth: shallow on a page cache, deep where reads wait, never out of its bounds."""

from __future__ import annotations

from sharedfs_backend.depth import ReadDepth


def settle(
    depth: ReadDepth,
    read_seconds: float,
    busy_seconds: float,
    pieces: int = 60,
    quickest_seconds: float | None = None,
) -> int:
    """The depth after pieces of one read each; one of ten is the quickest."""
    for number in range(pieces):
        quickest = quickest_seconds if quickest_seconds and number % 10 == 0 else read_seconds
        depth.observe(read_seconds, busy_seconds, reads=1, quickest_seconds=quickest)
    return depth.value


def test_a_page_cache_wants_a_worker_for_each_core() -> None:
    assert settle(ReadDepth(2, 128), read_seconds=0.0005, busy_seconds=0.0005) == 2


def test_ten_milliseconds_an_operation_want_dozens() -> None:
    assert 20 <= settle(ReadDepth(2, 128), read_seconds=0.0105, busy_seconds=0.001) <= 64


def test_the_depth_never_leaves_its_bounds() -> None:
    depth = ReadDepth(2, 16)
    assert settle(depth, read_seconds=1.0, busy_seconds=0.0001) == 16
    assert settle(depth, read_seconds=0.0, busy_seconds=0.0001) == 2
    assert settle(depth, read_seconds=1.0, busy_seconds=0.0) == 16


def test_a_mount_that_turns_cold_is_noticed_within_a_few_pieces() -> None:
    depth = ReadDepth(2, 128)
    settle(depth, read_seconds=0.0005, busy_seconds=0.0005)
    assert settle(depth, read_seconds=0.0105, busy_seconds=0.001, pieces=4) >= 8
    assert settle(depth, read_seconds=0.0105, busy_seconds=0.001, pieces=32) >= 20


def test_waiting_in_a_queue_is_no_reason_for_a_longer_one() -> None:
    """All reads are slow, but now and then one is served at once: no latency."""
    depth = ReadDepth(2, 128)
    assert settle(depth, 0.0105, 0.001, quickest_seconds=0.0004) == 8


def test_a_quick_read_is_forgotten() -> None:
    depth = ReadDepth(2, 128)
    settle(depth, 0.0105, 0.001, quickest_seconds=0.0004)
    assert settle(depth, 0.0105, 0.001, pieces=20) >= 20


def test_what_one_read_of_many_took_is_compared_with_its_own_work() -> None:
    """Pieces of four reads: 10 ms of waiting and 1 ms of work each."""
    depth = ReadDepth(2, 128)
    for _ in range(60):
        depth.observe(0.042, 0.004, reads=4, quickest_seconds=0.0105)
    assert 20 <= depth.value <= 64


def test_a_start_is_bold_enough_for_a_slow_mount_and_bounded() -> None:
    assert (ReadDepth(2, 128).value, ReadDepth(64, 16).value) == (8, 16)


def test_no_time_at_all_is_no_reason_to_go_deep() -> None:
    assert settle(ReadDepth(2, 128), read_seconds=0.0, busy_seconds=0.0) == 2
