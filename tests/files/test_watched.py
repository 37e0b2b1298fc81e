"""While the file system is sick nothing reaches it; calls that hang are seen and counted (I6)."""

from __future__ import annotations

import logging
import threading
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from sharedfs_backend.files import (
    FailureKind,
    FileFailure,
    Health,
    HealthPolicy,
    LocalFiles,
    WatchedFiles,
)
from sharedfs_backend.files.api import WRITE_PARTS_MAX
from sharedfs_backend.native import SKIPPED, UNIT_ENDS, Loaded, NativeHasher
from tests.files.contract import fails, put
from tests.files.faulty import FaultyFiles


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class World:
    """Watched files over faulty ones, and the clock."""

    def __init__(self, root: Path) -> None:
        self.clock = Clock()
        self.faulty = FaultyFiles(LocalFiles(str(root)))
        policy = HealthPolicy(failures_to_open=3, hang_seconds=10.0)
        self.files = WatchedFiles(self.faulty, self.clock, Health(policy))

    def sicken(self) -> None:
        self.faulty.fail("", FailureKind.IO)
        for name in ("a", "b", "c"):
            fails(FailureKind.IO, "open", partial(self.files.open_read, name))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_sick_file_system_is_left_alone(world: World) -> None:
    world.sicken()
    world.faulty.tried.clear()
    fails(FailureKind.SICK, "open", lambda: world.files.open_read("a"))
    fails(FailureKind.SICK, "create", lambda: world.files.create("a"))
    fails(FailureKind.SICK, "stat", world.files.free_bytes)
    assert (world.faulty.tried, world.files.healthy) == ([], False)


def test_one_probe_goes_through_when_due_and_its_answer_heals(world: World) -> None:
    world.sicken()
    world.faulty.heal()
    assert not world.files.probe_due()
    world.clock.time = 1.0
    assert world.files.probe_due()
    fails(FailureKind.MISSING, "stat", lambda: world.files.size("NAMESPACE.json"))
    put(world.files, "a", b"x")
    assert world.files.healthy


def test_a_failed_probe_keeps_it_sick(world: World) -> None:
    world.sicken()
    world.clock.time = 1.0
    fails(FailureKind.IO, "stat", lambda: world.files.size("a"))
    fails(FailureKind.SICK, "stat", lambda: world.files.size("a"))


def test_close_goes_through_even_when_sick(world: World) -> None:
    handle = world.files.create("a")
    world.sicken()
    world.faulty.heal()
    world.files.close(handle)
    assert world.faulty.tried[-1] == ("close", "a")
    assert not world.files.healthy


def test_a_close_that_succeeds_proves_nothing(world: World) -> None:
    handles = [world.files.create(name) for name in ("a", "b", "c")]
    world.faulty.fail("write", FailureKind.IO)
    for handle in handles:
        fails(FailureKind.IO, "write", partial(world.files.write, handle, 0, [b"x"]))
        world.files.close(handle)
    assert not world.files.healthy


def test_a_hanging_call_is_seen_counted_and_sickens(world: World) -> None:
    arrived, release = world.faulty.hold("create", path="a")
    thread = threading.Thread(target=put, args=(world.files, "a", b""))
    thread.start()
    arrived.wait(10.0)
    world.clock.time = 9.0
    assert world.files.check()
    world.clock.time = 10.0
    assert not world.files.check()
    stats = world.files.stats()
    assert (stats["calls_in_flight"], stats["calls_lost"], stats["oldest_call_seconds"]) == (
        1,
        1,
        10.0,
    )
    release.set()
    thread.join(10.0)
    assert not thread.is_alive()
    assert world.files.stats()["calls_lost"] == 0
    assert world.files.healthy  # the write behind the create that came back was the probe


def test_a_lost_call_that_returns_to_a_healed_system_is_lost_no_more(world: World) -> None:
    arrived, release = world.faulty.hold("create", path="a")
    thread = threading.Thread(target=put, args=(world.files, "a", b""))
    thread.start()
    arrived.wait(10.0)
    world.clock.time = 11.0
    assert not world.files.check()
    world.clock.time = 12.0
    world.files.list("")
    assert world.files.healthy and world.files.stats()["calls_lost"] == 1
    release.set()
    thread.join(10.0)
    assert world.files.stats()["calls_lost"] == 0


def test_a_success_between_failures_keeps_it_well(world: World) -> None:
    world.faulty.fail("open", FailureKind.IO)
    for _ in range(10):
        for name in ("a", "b"):
            fails(FailureKind.IO, "open", partial(world.files.open_read, name))
        world.files.list("")
    assert world.files.healthy


def test_a_new_call_notices_the_one_that_hangs(world: World) -> None:
    arrived, release = world.faulty.hold("list")
    thread = threading.Thread(target=world.files.list, args=("",))
    thread.start()
    arrived.wait(10.0)
    world.clock.time = 11.0
    fails(FailureKind.SICK, "open", lambda: world.files.open_read("a"))
    release.set()
    thread.join(10.0)


def test_counts_are_by_operation_and_by_kind(world: World) -> None:
    put(world.files, "a", b"x")
    fails(FailureKind.EXISTS, "create", lambda: world.files.create("a"))
    fails(FailureKind.MISSING, "open", lambda: world.files.open_read("b"))
    stats = world.files.stats()
    assert (stats["operations_create"], stats["operations_write"]) == (2, 1)
    assert (stats["failures_exists"], stats["failures_missing"]) == (1, 1)
    assert (stats["sick"], stats["times_sick"], stats["calls_in_flight"]) == (0, 0, 0)


def test_operations_on_packs_are_counted_apart(world: World) -> None:
    world.files.make_dir("packs")
    put(world.files, "packs/a", b"x")
    put(world.files, "b", b"x")
    stats = world.files.stats()
    assert (stats["operations_write"], stats["pack_operations_write"]) == (2, 1)
    assert (stats["operations_close"], stats["pack_operations_close"]) == (2, 1)


def test_sickness_and_recovery_are_logged_once_each(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world.sicken()
    for _ in range(5):
        fails(FailureKind.SICK, "list", lambda: world.files.list(""))
    world.faulty.heal()
    world.clock.time = 1.0
    world.files.list("")
    messages = [record.message for record in caplog.records]
    assert messages == [
        "the file system is sick (3 calls in a row failed, last: io): "
        "everything misses until it answers again",
        "the file system answers again",
    ]


def test_our_own_mistake_in_a_call_says_nothing_about_health(world: World) -> None:
    handle = world.files.create("a")
    for _ in range(10):
        with pytest.raises(TypeError):
            world.files.write(handle, 0, ["text"])  # type: ignore[list-item]
    world.files.close(handle)
    assert world.files.stats()["calls_in_flight"] == 0
    assert world.files.healthy


def test_many_threads_leave_exact_counts(world: World) -> None:
    def work(number: int) -> None:
        for name in range(50):
            put(world.files, f"{number}-{name}", b"x")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {op: world.files.operations[op] for op in ("create", "write", "close")} == {
        "create": 200,
        "write": 200,
        "close": 200,
    }


def test_a_sick_failure_is_a_file_failure_with_the_reason(world: World) -> None:
    world.sicken()
    with pytest.raises(FileFailure, match="3 calls in a row failed"):
        world.files.list("")


def test_hashed_calls_are_counted_by_their_steps_and_watched(world: World) -> None:
    """Reads from memory say nothing about health; writes do, and are refused while it is sick."""
    handle = world.files.create("a")
    extents = [(0, 4096, SKIPPED), (0, 1, UNIT_ENDS)]
    answers: list[list[bytes] | None] = [[b"digest"], None]
    read = world.files.counted_hashed(lambda *_: answers.pop(0), 4096)
    assert read(handle, 0, extents) == [b"digest"]
    assert read(handle, 0, extents) is None  # not in memory: nothing was read
    assert world.files.operations["read"] == 2

    hasher = cast(NativeHasher, None)
    write = world.files.watched_hashed(lambda *_: [b"digest"], 4096)
    assert write(handle, 0, extents, hasher) == [b"digest"]
    assert world.files.operations["write"] == 2
    world.sicken()
    fails(FailureKind.SICK, "write", lambda: write(handle, 0, extents, hasher))


def test_a_refused_call_is_no_operation_however_many_it_would_have_been(world: World) -> None:
    handle = world.files.create("a")
    loaded = Loaded([b"digest"], 0.0, 0.0, 0.0)
    load = world.files.watched_load(lambda *_: loaded)
    parts = [b"x"] * (WRITE_PARTS_MAX + 1)
    assert load(handle, 0, 0, 4096, [(0, 8192, 0)], 0) is loaded
    world.files.write(handle, 0, parts)
    assert (world.files.operations["read"], world.files.operations["write"]) == (2, 2)
    world.sicken()
    fails(FailureKind.SICK, "read", lambda: load(handle, 0, 0, 4096, [(0, 8192, 0)], 0))
    fails(FailureKind.SICK, "write", lambda: world.files.write(handle, 0, parts))
    assert (world.files.operations["read"], world.files.operations["write"]) == (2, 2)
