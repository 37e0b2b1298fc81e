"""A fleet of simulated replicas on one simulated disk, and the trouble they are in.

Runs a scenario under a seed: every slot lives a process, restarts it when it dies, until the time
is over; then trouble ends, the survivors rest for as long as the protocol needs, and the final
checks look at what is left (`checks.py`). The first violation ends the run.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from sharedfs_backend.layout import Seal
from tests.protocol.buffers import Lender
from tests.protocol.content import documents
from tests.protocol.oracle import Oracle
from tests.protocol.process import Process
from tests.protocol.scenario import LEASE_SECONDS, Scenario, small
from tests.protocol.vandal import leave_packs, lose_journals, vandalise
from tests.sim.chaos import Chaos
from tests.sim.disk import Disk
from tests.sim.locks import installed
from tests.sim.world import Client, SimProblem, World

PROBLEM = "the run broke off: "
"""Begins the violation of a run that ended in an error of the code or of the simulation."""


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    seed: int
    scenario: Scenario
    violations: list[str]
    steps: int
    counts: Counter[str] = field(default_factory=Counter)
    stats: Counter[str] = field(default_factory=Counter)
    transcript: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violations


class Fleet:
    """See the module."""

    def __init__(self, scenario: Scenario, seed: int, disk: Disk | None = None) -> None:
        self.scenario = scenario
        self.settings = scenario.settings()
        self.sick_at: dict[str, float] = {}
        """Client -> when its breaker was last seen open."""
        self.world = World(seed)
        self.disk = disk or Disk(self.world, scenario.quirks())
        self.disk.world = self.world
        self.disk.cap_bytes = scenario.cap_bytes
        self.chaos = Chaos(self.world, scenario.rates)
        self.chaos.spared = self._is_opening
        self.oracle = Oracle(self.disk, Seal(), named_seconds=LEASE_SECONDS)
        self.oracle.watch()
        self.lender = Lender(self.disk)
        self.documents = documents(self.world.random, scenario.documents, scenario.chunks_max)
        self.serving = True
        self.processes: dict[str, Process] = {}
        self.counts: Counter[str] = Counter()
        self.stats: Counter[str] = Counter()
        self._lives = 0
        leave_packs(self)

    # -- told by processes ----------------------------------------------------------------------

    def opened(self, process: Process) -> None:
        self.counts["opened"] += 1

    def closed(self, process: Process) -> None:
        self.counts["closed"] += 1

    def told(self, process: Process, keys: list[bytes]) -> None:
        """A process was told that these chunks are stored: their record must be on the disk."""
        for key in keys:
            facts = [
                self.oracle.packs[name]
                for name in self.oracle.by_key.get(key, ())
                if self.disk.ever.get(name.path) == process.client.name
            ]
            if not facts:
                self.disk.violate(f"{process.client} was told of {key.hex()}, never committed")
                return
            latest = facts[-1]
            latest.told = self.world.time if latest.told is None else latest.told

    # -- running --------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """The whole scenario."""
        with installed(self.world), small(self.scenario.eager):
            try:
                self._run()
            except SimProblem as problem:
                self.disk.violations.append(f"{PROBLEM}{problem}")
            finally:
                for process in self.processes.values():
                    self._collect(process)
                self.world.close()
        return Outcome(
            self.world.seed,
            self.scenario,
            self.disk.violations,
            self.world.steps,
            self.counts,
            self.stats,
            list(self.world.transcript),
        )

    def _run(self) -> None:
        from tests.protocol import checks

        world = self.world
        for slot in range(self.scenario.clients):
            world.start(None, f"slot{slot}", lambda slot=slot: self._keep_alive(slot))  # type: ignore[misc]
        world.start(None, "watch", self._watch)
        if self.scenario.vandal_rate:
            world.start(None, "vandal", lambda: vandalise(self))
        if self.scenario.journal_loss_rate:
            world.start(None, "loser", lambda: lose_journals(self))
        world.run(self.scenario.seconds)
        if self.disk.violations:
            return
        self.serving = False
        self.chaos.quiet = True
        for client in world.clients.values():
            world.thaw(client, early=True)
        self.lender.check()
        checks.final(self)

    def spawn(self, name: str) -> Process:
        """A new process, started."""
        process = Process(self, self.world.client(name))
        self.processes[name] = process
        self.world.start(process.client, "main", process.live, tag="open")
        return process

    @property
    def is_resting(self) -> bool:
        """Requests have ended."""
        return not self.serving

    def alive(self) -> list[Process]:
        """Processes with an open store, not dead, not frozen."""
        return [
            p
            for p in self.processes.values()
            if p.store is not None and not p.client.dead and not p.closed
        ]

    def did(self) -> Counter[str]:
        """The stores' own counters, summed over all processes so far."""
        for process in self.processes.values():
            self._collect(process)
        return self.stats

    def counts_of(self, *names: str) -> int:
        """Sum of what all processes counted under these names."""
        counted = sum(p.counts[name] for p in self.processes.values() for name in names)
        return counted + sum(self.counts[name] for name in names)

    def _keep_alive(self, slot: int) -> None:
        """Start a process, wait for its death, start the next."""
        world = self.world
        world.sleep(world.random.random() * 2)
        while self.serving:
            self._lives += 1
            process = self.spawn(f"c{slot}.{self._lives}")
            while not process.is_over:
                world.sleep(0.5)
                if self.is_resting:
                    return
            if process.closed:
                world.sleep(1.0)
                world.kill(process.client)
            self._collect(process)
            world.sleep(world.random.random() * 2 * self.scenario.restart_seconds)

    def _watch(self) -> None:
        """Once a second: late touches of buffers, and finding what others committed."""
        from tests.protocol import checks

        while self.serving:
            self.world.sleep(1.0)
            self.lender.check()
            checks.everyone_finds(self)

    def _is_opening(self, client: Client) -> bool:
        process = self.processes.get(client.name)
        return process is not None and process.store is None

    def _collect(self, process: Process) -> None:
        self.counts.update(process.counts)
        process.counts.clear()
        if process.store is not None:
            for name, value in process.store.stats().items():
                if not math.isinf(value):
                    self.stats[name] += int(value)
