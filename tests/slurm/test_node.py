"""A node's part of a fleet as a transcript: what is started and stopped, when, in which order.

Time, processes and ports are the test's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launch.commands import Command
from launch.node import Node, Running, run
from launch.plan import NodePlan, ReplicaPlan
from launch.site import Site


@dataclass(eq=False)
class FakePart:
    name: str
    command: Command
    exit_code: int | None = None
    log: Path = Path("log")


@dataclass
class World:
    """Effects that only write down what they were asked for."""

    told: list[str] = field(default_factory=list)
    parts: dict[str, FakePart] = field(default_factory=dict)
    healthy: bool = True
    time: float = 0.0
    next_port: int = 100
    asked: list[str] = field(default_factory=list)

    def start(self, name: str, command: Command) -> FakePart:
        self.told.append(f"start {name}")
        self.parts[name] = FakePart(name, command)
        return self.parts[name]

    def stop(self, parts: Sequence[Running]) -> None:
        names = [part.name for part in parts if isinstance(part, FakePart)]
        self.told += [f"stop {' '.join(names)}"] if names else []

    def ports(self, count: int) -> Sequence[int]:
        self.next_port += count
        return range(self.next_port - count, self.next_port)

    def is_healthy(self, url: str) -> bool:
        self.asked.append(url)
        return self.healthy

    def note_segments(self) -> None:
        self.told.append("note segments")

    def now(self) -> float:
        return self.time

    def heard(self) -> list[str]:
        told, self.told = self.told, []
        return told


def node(world: World, replicas: int = 2, **settings: object) -> Node:
    site = Site(model="m", namespace="/kv", device="cpu", **settings)  # type: ignore[arg-type]
    plans = tuple(ReplicaPlan(f"n1-{n}", cores=str(n)) for n in range(replicas))
    return Node(site, NodePlan("n1", "10.0.0.1", plans), world)


def up(world: World, **settings: object) -> Node:
    """A node with all its parts running."""
    running = node(world, **settings)  # type: ignore[arg-type]
    for _ in range(3):
        running.tick()
    world.heard()
    return running


def test_engines_start_when_the_server_answers() -> None:
    world = World(healthy=False)
    starting = node(world)
    starting.tick()
    starting.tick()
    assert world.heard() == ["start lmcache"]
    world.healthy = True
    starting.tick()
    assert world.heard() == [
        "start engine-0",
        "start announce-0",
        "start engine-1",
        "start announce-1",
    ]


def test_the_end_withdraws_first_and_stops_the_server_last() -> None:
    world = World()
    running = up(world)
    running.stop()
    assert world.heard() == ["stop announce-0 announce-1", "stop engine-0 engine-1", "stop lmcache"]


def test_an_engine_that_ends_is_withdrawn_and_started_again_on_another_port() -> None:
    world = World()
    running = up(world)
    first = world.parts["engine-1"].command.words
    world.parts["engine-1"].exit_code = 1
    running.tick()
    assert world.heard() == ["stop announce-1", "stop engine-1"]
    world.time = 2.0
    running.tick()
    assert [line for line in world.heard() if "segments" not in line] == [
        "start engine-1",
        "start announce-1",
    ]
    assert world.parts["engine-1"].command.words != first


def test_a_server_that_ends_takes_its_engines_with_it_and_pauses_longer() -> None:
    world = World()
    running = up(world, replicas=1)
    world.parts["lmcache"].exit_code = 1
    running.tick()
    world.time = 29.0
    running.tick()
    told = [line for line in world.heard() if "segments" not in line]
    assert told == ["stop announce-0", "stop engine-0", "stop lmcache"]
    world.time = 30.0
    running.tick()
    assert world.heard()[0] == "start lmcache"


def test_an_engine_that_hangs_at_its_start_is_started_again() -> None:
    world = World()
    running = up(world, start_seconds=60.0, replicas=1)
    port = world.parts["engine-0"].command.words[
        world.parts["engine-0"].command.words.index("--port") + 1
    ]
    world.asked, world.healthy, world.time = [], False, 120.0
    running.tick()
    assert world.heard() == []  # slow is not hung
    world.asked, world.time = [], 121.0
    running.tick()
    assert [line for line in world.heard() if "segments" not in line] == [
        "stop announce-0",
        "stop engine-0",
    ]
    assert world.asked == [f"http://10.0.0.1:{port}/health"]
    world.time = 123.0
    running.tick()
    assert world.heard() == ["start engine-0", "start announce-0"]


def test_an_engine_that_came_up_is_left_to_the_announcer_and_the_router() -> None:
    world = World()
    running = up(world, start_seconds=60.0)
    world.time = 31.0
    running.tick()
    world.healthy = False  # too busy to answer
    for world.time in (119.0, 121.0, 100_000.0):
        running.tick()
    assert [line for line in world.heard() if "segments" not in line] == []


def test_a_server_that_hangs_at_its_start_is_started_again() -> None:
    world = World(healthy=False)
    starting = node(world, start_seconds=60.0)
    starting.tick()
    world.time = 121.0
    starting.tick()
    assert world.heard() == ["start lmcache", "stop lmcache"]
    world.healthy, world.time = True, 152.0
    starting.tick()
    starting.tick()
    assert world.heard()[0] == "start lmcache"
    assert not starting.is_hopeless


def test_what_ends_too_often_is_given_up_and_the_rest_goes_on() -> None:
    world = World()
    running = up(world, restarts_max=0)
    world.parts["engine-0"].exit_code = 1
    running.tick()
    assert not running.is_hopeless
    world.parts["engine-1"].exit_code = 1
    running.tick()
    assert running.is_hopeless


def test_a_hopeless_node_ends_with_1_and_stops_what_is_left() -> None:
    world = World()
    running = up(world, replicas=1, restarts_max=0)
    world.parts["engine-0"].exit_code = 1
    assert run(running, lambda seconds: False) == 1
    assert world.heard()[-1] == "stop lmcache"


def test_told_to_end_it_ends_with_0() -> None:
    world = World()
    assert run(node(world), lambda seconds: True) == 0
    assert world.heard() == ["start lmcache", "stop lmcache"]


def test_fixed_ports_are_used_in_their_order() -> None:
    world = World()
    up(world, port_first=7000)
    ports = {
        name: [word for word in part.command.words if word.startswith("70")]
        for name, part in world.parts.items()
    }
    assert ports["lmcache"] == ["7000", "7001"]
    assert (ports["engine-0"], ports["engine-1"]) == (["7002"], ["7003"])


def test_segments_are_noted_while_it_runs() -> None:
    world = World()
    running = up(world)
    for _ in range(5):
        running.tick()
    assert "note segments" in world.heard()
