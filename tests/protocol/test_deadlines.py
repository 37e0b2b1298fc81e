"""The fleet's own check of a load's deadline: exact about freezes, and seen to fail (I6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.protocol.fleet import Fleet
from tests.protocol.process import Process
from tests.protocol.scenario import small
from tests.protocol.scenarios import CALM
from tests.protocol.stop_anywhere import store_and_load
from tests.sim.chaos import Fault, Rates
from tests.sim.locks import installed
from tests.sim.world import Client

QUIET = replace(
    CALM, clients=0, cancel_rate=0.0, graceful_rate=0.0, rates=Rates(freeze=1.0, at=(("none", ""),))
)
"""Nothing goes wrong by itself, but the scenario is not taken for a calm one."""


class OneLoad:
    """A process that has stored a document and loads it; `trouble` comes with its first read."""

    def __init__(self) -> None:
        self.fleet = Fleet(QUIET, 1)
        self.fleet.chaos.on_operation.append(self._look)
        self.freeze_seconds: float | None = None
        self.hang_seconds: float | None = None
        self.is_loading = False

    def _look(self, client: Client, op: str, path: str) -> Fault | None:
        if not (self.is_loading and op == "read" and path.startswith("packs/")):
            return None
        self.is_loading = False
        if self.freeze_seconds is not None:
            self.fleet.world.freeze(client, self.freeze_seconds, machine=True)
        return None if self.hang_seconds is None else Fault(None, seconds=self.hang_seconds)

    def violations(self, *, has_deadlines: bool = True) -> list[str]:
        fleet, world = self.fleet, self.fleet.world

        def script() -> None:
            process = fleet.spawn("only")
            world.sleep(3.0)
            store_and_load(process, fleet.documents[0])
            if not has_deadlines:
                self._forget_deadlines(process)
            self.is_loading = True
            store_and_load(process, fleet.documents[0])
            world.stop()

        with installed(world), small(eager=True):
            world.start(None, "script", script)
            world.run(200.0)
            world.close()
        assert not self.is_loading  # it did load
        return fleet.disk.violations

    def _forget_deadlines(self, process: Process) -> None:
        assert process.store is not None
        process.store.parts.reader.expire = lambda now: None  # type: ignore[method-assign]


@pytest.mark.parametrize("seconds", [1.0, 2.6, 3.45, 3.55, 3.7, 60.0])
def test_a_process_frozen_under_a_load_is_late_by_no_fault_of_its_own(seconds: float) -> None:
    load = OneLoad()
    load.freeze_seconds = seconds
    assert load.violations() == []


def test_a_read_that_hangs_ends_its_load_at_the_deadline() -> None:
    load = OneLoad()
    load.hang_seconds = 60.0
    assert load.violations() == []


@pytest.mark.parametrize("frozen_seconds", [None, 3.55])
def test_a_store_without_deadlines_is_found_out(frozen_seconds: float | None) -> None:
    load = OneLoad()
    load.hang_seconds, load.freeze_seconds = 60.0, frozen_seconds
    assert "(I6)" in "".join(load.violations(has_deadlines=False))
