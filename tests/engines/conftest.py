"""Fixtures of the tests on real engines: the model, and a pair of replicas on one namespace.

Starting a pair takes one to two minutes, so `pair` lives as long as the module that asks for it,
and no two modules' pairs at the same time. Every test here carries the marker `engine`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.demo.fleet import Fleet, Replica
from bench.demo.front import Front
from bench.demo.model import ensure_model_apart
from bench.demo.replica_spec import REPOSITORY, ReplicaSpec, plugin_adapter

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies in this folder and asks for a replica; its pure tests stay unmarked."""
    for item in items:
        if HERE in item.path.parents and ENGINE_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.engine)


ENGINE_FIXTURES = {"model", "pair", "fleet"}


@pytest.fixture(scope="session")
def model() -> Path:
    """The demo's model; kept in `.demo/`, so that it is written once."""
    return ensure_model_apart(REPOSITORY / ".demo" / "model")


@pytest.fixture(scope="session")
def cores() -> tuple[str, str]:
    """One core for each of two engines, from this process's affinity mask."""
    allowed = sorted(os.sched_getaffinity(0))
    return str(allowed[0]), str(allowed[-1])


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """A fleet to start replicas in; ends with the module. Logs: `.demo/logs/<module>`."""
    name = request.module.__name__.rpartition(".")[2]
    with Fleet(REPOSITORY / ".demo" / "logs" / name) as running:
        yield running


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The namespace of the module's replicas."""
    return tmp_path_factory.mktemp("namespace")


@pytest.fixture(scope="module")
def front(fleet: Fleet, pair: tuple[Replica, Replica]) -> Front:
    """The router in front of the pair."""
    router = Front(fleet, pair)
    router.start()
    return router


@pytest.fixture(scope="module")
def pair(fleet: Fleet, model: Path, root: Path, cores: tuple[str, str]) -> tuple[Replica, Replica]:
    """Two equal replicas A and B on one namespace, through our plugin in MP mode."""
    first, second = fleet.start(
        *(
            ReplicaSpec(name, model, core=core, adapter=plugin_adapter(root))
            for name, core in zip("AB", cores, strict=True)
        )
    )
    return first, second
