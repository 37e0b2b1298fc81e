"""Stop anywhere: one seeded run, cut after every operation, crashed, and opened again.

The run stores, appends, sweeps, writes snapshots and retires journals, in two lives. At each of
its n operations the disk is copied as a crash of every machine may leave it: each unsettled write
happened, did not, or left what its file system may leave. A fresh process then opens every copy:
each chunk must be whole or absent (I2, I5), and can be stored again and found.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tests.protocol.content import Document
from tests.protocol.fleet import Fleet
from tests.protocol.process import Process
from tests.protocol.scenario import Scenario, small
from tests.sim.disk import Disk
from tests.sim.locks import installed
from tests.sim.world import Client, SimProblem, World

SCRIPT = Scenario(
    clients=0, documents=45, chunks_max=8, cap_bytes=3 << 20, cancel_rate=0.0, graceful_rate=0.0
)


@dataclass(frozen=True, slots=True)
class Stop:
    """The world as it was stopped before operation `number` of the run."""

    number: int
    what: str
    disk: Disk


def script(fleet: Fleet) -> None:
    """Two lives: the first stores and is killed, the second merges, sweeps and ends well."""
    world = fleet.world
    first = fleet.spawn("first")
    world.sleep(3.0)
    for document in fleet.documents[:5]:
        store_and_load(first, document)
    world.sleep(8.0)
    world.kill(first.client)
    second = fleet.spawn("second")
    world.sleep(3.0)
    for document in fleet.documents:
        store_and_load(second, document)
        world.sleep(1.0)
    world.sleep(70.0)
    for document in fleet.documents[:2]:
        store_and_load(second, document)
    world.sleep(10.0)
    second.close()
    world.stop()


def store_and_load(process: Process, document: Document) -> None:
    """A request, on a task of the process."""
    world = process.world
    task = world.start(process.client, "request", lambda: process.request(document))
    while task.number in process.client.ordered:
        world.sleep(0.05)


def stops(fs: str, seed: int, stride: int) -> tuple[list[Stop], Fleet]:
    """Crashed copies of the disk before every `stride`-th operation of the run."""
    fleet = Fleet(replace(SCRIPT, fs=fs), seed)
    found: list[Stop] = []
    number = 0
    choice = random.Random(seed)
    later = World(seed)

    def look(client: Client, op: str, path: str) -> None:
        nonlocal number
        number += 1
        if number % stride == seed % stride:
            copy = fleet.disk.crashed(later, choice)
            found.append(Stop(number, f"{client} {op} {path}", copy))

    fleet.chaos.on_operation.append(look)
    with installed(fleet.world), small(eager=True):
        fleet.world.start(None, "script", lambda: script(fleet))
        fleet.world.run(1000.0)
        fleet.world.close()
    return found, fleet


def reopened(stop: Stop, fs: str, seed: int) -> list[str]:
    """What is wrong with a crashed disk once a fresh process has opened it.

    Half of the processes have room, and must be able to store again; to the others the old cap
    applies: below it may be no room left, but it must hold whatever was damaged."""
    assert SCRIPT.cap_bytes is not None
    has_room = stop.number % 2 == 0
    cap_bytes = SCRIPT.cap_bytes * (4 if has_room else 1)
    scenario = replace(SCRIPT, fs=fs, damaged=True, cap_bytes=cap_bytes)
    fleet = Fleet(scenario, seed, disk=stop.disk)
    world = fleet.world

    def check() -> None:
        process = fleet.spawn("again")
        world.sleep(4.0)
        for document in fleet.documents[::5]:
            store_and_load(process, document)
        world.stop()

    with installed(world), small(eager=True):
        try:
            world.start(None, "check", check)
            world.run(500.0)
            fleet.lender.check()
            if has_room and not fleet.counts_of("loaded", "stored"):
                fleet.disk.violate("nothing can be stored or loaded any more")
        except SimProblem as problem:
            fleet.disk.violations.append(str(problem))
        finally:
            world.close()
    return [
        f"stopped before operation {stop.number} ({stop.what}): {v}" for v in fleet.disk.violations
    ]
