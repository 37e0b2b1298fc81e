"""Two real engines whose LMCache servers see GekkoFS through the preloaded stand-in (I2, I6).

Only the servers have the client, as in a deployment. What GekkoFS does not survive (a lock it lies
about, a write after an unlink, a name used twice) must not have happened, and is counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.demo.fleet import Fleet, Replica
from bench.demo.front import Front
from bench.demo.replica_spec import (
    REPOSITORY,
    Ports,
    ReplicaSpec,
    plugin_adapter,
    server_command,
)
from bench.demo.scenario import Plan, Scenario
from tests.gekkofs.standin import Standin, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

PLAN = Plan(
    one_way_tokens=(1100,),
    other_way_tokens=(1025,),
    turns=2,
    first_turn_tokens=800,
    later_turn_tokens=300,
    half_tokens=1200,
    seed="gekkofs",
)


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standin]:
    with Standin(tmp_path_factory.mktemp("gekkofs")) as made:
        yield made


def guarded_server(spec: ReplicaSpec, ports: Ports) -> list[str]:
    """The usual command, started through the guard: LMCache spawns while it is being imported."""
    python, dash_m, *words = server_command(spec, ports)
    return [python, dash_m, "sharedfs_backend.preload", *words]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    logs = REPOSITORY / ".demo" / "logs" / "test_gekkofs_engines"
    with Fleet(logs, server_command=guarded_server) as running:
        yield running


@pytest.fixture(scope="module")
def pair(
    fleet: Fleet, model: Path, standin: Standin, cores: tuple[str, str]
) -> tuple[Replica, Replica]:
    client = {
        name: value for name, value in standin.environ().items() if os.environ.get(name) != value
    }
    first, second = fleet.start(
        *(
            ReplicaSpec(
                name,
                model,
                core=core,
                adapter=plugin_adapter(standin.mount / "kv"),
                server_environment=client,
            )
            for name, core in zip("AB", cores, strict=True)
        )
    )
    return first, second


@pytest.fixture(scope="module")
def scenario(pair: tuple[Replica, Replica], front: Front) -> Scenario:
    done = Scenario(*pair, PLAN, print, front)
    done.run()
    return done


def test_what_one_replica_stored_on_gekkofs_the_other_reloads(scenario: Scenario) -> None:
    assert [(row.label, row.failures) for row in scenario.rows if row.failures] == []
    rows = {row.label: row for row in scenario.rows}
    assert [rows[way].reloaded_tokens for way in ("A then B", "B then A")] == [1024, 1024]
    assert all(row.tokens_equal for row in rows.values())


def test_only_the_servers_have_the_client(pair: tuple[Replica, Replica]) -> None:
    for replica in pair:
        maps = {part: Path(f"/proc/{pid}/maps").read_text() for part, pid in replica.pids.items()}
        assert {part: "gkfs" in text for part, text in maps.items()} == {
            "server": True,
            "engine": False,
        }


def test_nothing_was_done_that_gekkofs_does_not_survive(
    scenario: Scenario, standin: Standin
) -> None:
    assert scenario.rows and standin.control["read"] > 0
    counts = {name: standin.control[name] for name in ("lies", "poisoned", "recreated")}
    assert counts == {"lies": 0, "poisoned": 0, "recreated": 0}
