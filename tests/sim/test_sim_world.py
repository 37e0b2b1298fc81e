"""The simulated world: one seed fixes all; freezes, kills and deadlocks are what they say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator

import pytest

from sharedfs_backend.runtime import Lane, LaneFull
from tests.sim.locks import SimEvent, installed
from tests.sim.runtime import SimRuntime
from tests.sim.world import SimKilled, SimProblem, World


@pytest.fixture
def world() -> Generator[World]:
    made = World(7)
    with installed(made):
        yield made
        made.close()


def traced(seed: int) -> list[str]:
    world = World(seed)
    lines: list[str] = []

    def work(name: str) -> Callable[[], None]:
        def steps() -> None:
            for step in range(20):
                lines.append(f"{name}{step}")
                world.sleep(world.random.random())

        return steps

    for name in "abc":
        world.start(world.client(name), name, work(name))
    world.run()
    world.close()
    return lines


def test_a_seed_fixes_the_interleaving_and_another_changes_it() -> None:
    assert traced(1) == traced(1)
    assert traced(1) != traced(2)


def test_a_frozen_client_stands_still_while_others_go_on(world: World) -> None:
    slow, fast = world.client("slow"), world.client("fast")
    ends: dict[str, float] = {}

    def work() -> None:
        world.sleep(1.0)
        ends[world.current.client.name] = world.time

    for client in (slow, fast):
        world.start(client, "t", work)
    world.freeze(slow, 3600.0, machine=False)
    world.run()
    assert ends["fast"] < 2
    assert ends["slow"] >= 3600


def test_a_killed_client_unwinds_and_can_do_nothing_more(world: World) -> None:
    client = world.client("c")
    seen: list[str] = []

    def work() -> None:
        try:
            world.sleep(10.0)
        finally:
            try:
                world.sleep(1.0)
            except SimKilled:
                seen.append("killed again")

    world.start(client, "t", work)
    world.at(5.0, lambda: world.kill(client))
    world.run()
    assert seen == ["killed again"]
    assert world.time < 6 and not client.ordered


def test_two_tasks_waiting_for_each_other_are_a_reported_deadlock(world: World) -> None:
    first, second = SimEvent(world), SimEvent(world)

    def work(mine: SimEvent, other: SimEvent) -> None:
        other.wait()
        mine.set()

    client = world.client("c")
    tasks = [
        world.start(client, "x", lambda: work(first, second)),
        world.start(client, "y", lambda: work(second, first)),
    ]
    with pytest.raises(SimProblem, match="deadlock"):
        world.run_all(tasks, 1e9)


def test_a_lock_held_across_a_yield_blocks_only_those_who_want_it(world: World) -> None:
    order: list[str] = []

    def main() -> None:
        lock = threading.Lock()

        def holder() -> None:
            with lock:
                world.sleep(5.0)
                order.append("held")

        def wanter() -> None:
            world.sleep(1.0)
            with lock:
                order.append("wanted")

        world.start(client, "h", holder)
        world.start(client, "w", wanter)
        world.sleep(2.0)
        order.append("free")

    client = world.client("c")
    world.start(client, "m", main)
    world.run()
    assert order == ["free", "held", "wanted"]


def test_a_condition_wakes_who_waits_and_times_out_in_virtual_time(world: World) -> None:
    seen: list[object] = []

    def main() -> None:
        condition = threading.Condition()

        def waiting() -> None:
            with condition:
                seen.append(condition.wait(timeout=100))
                seen.append(condition.wait(timeout=100))

        world.start(client, "w", waiting)
        world.sleep(1.0)
        with condition:
            condition.notify_all()

    client = world.client("c")
    world.start(client, "m", main)
    world.run()
    assert seen == [True, False]
    assert 100 < world.time < 102


def test_a_waiter_times_out_on_its_clients_own_clock(world: World) -> None:
    client = world.client("c")
    runtime = SimRuntime(world, client)
    spans: list[float] = []

    def work() -> None:
        start = runtime.now()
        assert not runtime.waiter().wait(50.0)
        spans.append(runtime.now() - start)

    world.start(client, "t", work)
    world.run()
    assert spans[0] == pytest.approx(50.0)


def test_a_lane_runs_no_more_than_its_workers_and_refuses_beyond_its_queue(world: World) -> None:
    client = world.client("c")
    runtime = SimRuntime(world, client, workers_max={Lane.READ: 2}, queue_max=5)
    running, most, refused = [0], [0], [0]

    def work() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        world.sleep(1.0)
        running[0] -= 1

    def main() -> None:
        for _ in range(12):
            try:
                runtime.submit(Lane.READ, work)
            except LaneFull:
                refused[0] += 1

    world.start(client, "m", main)
    world.run()
    assert most[0] == 2
    assert refused[0] == 5


def test_an_error_in_a_task_fails_the_run(world: World) -> None:
    def work() -> None:
        raise KeyError("oops")

    world.start(world.client("c"), "t", work)
    with pytest.raises(SimProblem, match="oops"):
        world.run()


def test_waking_a_task_that_was_killed_while_it_waited_changes_nothing(world: World) -> None:
    event = SimEvent(world)
    victim, other = world.client("victim"), world.client("other")
    ended: list[float] = []

    def work() -> None:
        world.sleep(10.0)
        event.set()
        world.sleep(1.0)
        ended.append(world.time)

    def wait() -> None:
        event.wait()

    world.start(victim, "t", wait)
    world.start(other, "t", work)
    world.at(5.0, lambda: world.kill(victim))
    world.run()
    assert ended
