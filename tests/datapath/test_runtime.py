"""The real runtime: bounded workers and queues, and no stuck call holds up its end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from sharedfs_backend.runtime import Lane, LaneFull, ThreadRuntime

if TYPE_CHECKING:
    from _typeshed import TraceFunction


@pytest.fixture
def runtime() -> Iterator[ThreadRuntime]:
    runtime = ThreadRuntime(
        read_workers_max=2, write_workers_max=1, background_workers_max=1, queue_max=3
    )
    yield runtime
    runtime.close(5.0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sharedfs-")]


class Stuck:
    """Work that has started and does not end until released."""

    def __init__(self, runtime: ThreadRuntime, lane: Lane) -> None:
        self.started, self.release = threading.Event(), threading.Event()
        runtime.submit(lane, self.work)

    def work(self) -> None:
        self.started.set()
        self.release.wait(30)


def test_work_is_done(runtime: ThreadRuntime) -> None:
    done = threading.Event()
    runtime.submit(Lane.READ, done.set)
    assert done.wait(10)


def test_a_lane_has_at_most_so_many_workers(runtime: ThreadRuntime) -> None:
    stuck = [Stuck(runtime, Lane.READ) for _ in range(3)]
    assert stuck[0].started.wait(10) and stuck[1].started.wait(10)
    assert not stuck[2].started.wait(0.01)
    stuck[0].release.set()
    assert stuck[2].started.wait(10)
    for one in stuck:
        one.release.set()


def test_lanes_do_not_wait_for_each_other(runtime: ThreadRuntime) -> None:
    stuck = Stuck(runtime, Lane.WRITE)
    other = Stuck(runtime, Lane.BACKGROUND)
    assert stuck.started.wait(10) and other.started.wait(10)
    stuck.release.set()
    other.release.set()


def test_a_full_queue_refuses(runtime: ThreadRuntime) -> None:
    stuck = Stuck(runtime, Lane.WRITE)
    assert stuck.started.wait(10)
    for _ in range(3):
        runtime.submit(Lane.WRITE, lambda: None)
    with pytest.raises(LaneFull):
        runtime.submit(Lane.WRITE, lambda: None)
    stuck.release.set()


def test_an_error_of_ours_is_reported_and_the_worker_lives_on(
    runtime: ThreadRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    reported, done = threading.Event(), threading.Event()

    def report(given: threading.ExceptHookArgs) -> None:
        seen.append(given.exc_type)
        reported.set()

    def fail() -> None:
        raise IndexError

    monkeypatch.setattr(threading, "excepthook", report)
    runtime.submit(Lane.WRITE, fail)
    runtime.submit(Lane.WRITE, done.set)
    assert reported.wait(10) and done.wait(10)
    assert seen == [IndexError]


def test_closing_refuses_new_work_and_does_what_was_accepted(runtime: ThreadRuntime) -> None:
    stuck = Stuck(runtime, Lane.WRITE)
    done = threading.Event()
    runtime.submit(Lane.WRITE, done.set)
    closer = threading.Thread(target=lambda: runtime.close(10.0))
    assert stuck.started.wait(10)
    closer.start()
    stuck.release.set()
    assert done.wait(10)
    closer.join()
    with pytest.raises(LaneFull):
        runtime.submit(Lane.READ, lambda: None)


def test_closing_gives_up_on_a_stuck_call(runtime: ThreadRuntime) -> None:
    stuck = Stuck(runtime, Lane.READ)
    assert stuck.started.wait(10)
    runtime.close(0.01)
    stuck.release.set()


def test_time_goes_forward_and_randomness_is_random(runtime: ThreadRuntime) -> None:
    assert runtime.now() <= runtime.now()
    assert len(runtime.random_bytes(8)) == 8 and runtime.random_bytes(8) != runtime.random_bytes(8)
    waiter = runtime.waiter()
    assert not waiter.wait(0)
    waiter.set()
    assert waiter.is_set() and waiter.wait(0)


def test_an_exception_out_of_a_signal_handler_leaves_no_lane_locked() -> None:
    # It lands in whatever the caller's thread does in Python. A lane that stays locked ends all its
    # work, and `close` then waits for it without end.
    class Interrupted(BaseException):
        pass

    runtime = ThreadRuntime()
    runtime._lanes[Lane.READ].idle = 1000  # a worker is there to be told
    spared, landed, before = 0, 0, sys.gettrace()

    def trace(frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        nonlocal landed
        if frame.f_globals["__name__"] != "threading":
            return None
        landed += 1
        if landed > spared:
            sys.settrace(None)
            raise Interrupted
        return trace

    while landed >= spared:
        landed = 0
        with suppress(Interrupted):
            sys.settrace(trace)
            runtime.submit(Lane.READ, lambda: None)
        sys.settrace(before)
        assert runtime._wakeups[Lane.READ].acquire(blocking=False), f"after {spared} events"
        runtime._wakeups[Lane.READ].release()
        spared += 1
    assert spared > 2
