"""Two ranks given one key (no `shard`): the audit stops it within the first stored prompt (I8).

Two machines of one model and one key, whose KV differs: what a second server's first rank looks
like in multi-process mode. In each test a third process only looks at what lies in the namespace.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.identity.fleet import Engine, Fleet, Machine, Tensors, prompt

# One key, two contents: only what `computes` depends on differs, nothing that a key or realm holds.
RANK_0, RANK_4 = Engine(slice="heads 0-3"), Engine(slice="heads 4-7")
NEVER = {"refresh_seconds": 300.0, "drop_delay_seconds": 400.0}
LOGGER = "sharedfs_backend"


@pytest.fixture(params=[(RANK_0, RANK_4), (RANK_4, RANK_0)], ids=["0 first", "4 first"])
def ranks(request: pytest.FixtureRequest) -> tuple[Engine, Engine]:
    """Whoever comes first."""
    engines: tuple[Engine, Engine] = request.param
    return engines


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is said about sharing that has stopped."""
    with caplog.at_level(logging.CRITICAL, logger=LOGGER):
        yield caplog


def stops(said: pytest.LogCaptureFixture) -> list[str]:
    """The audit's verdicts, each of which must name the settings to look at."""
    texts = [record.getMessage() for record in said.records if record.levelno == logging.CRITICAL]
    assert all("`shard`" in text and "`model_identity`" in text for text in texts)
    return [text for text in texts if "sharing has stopped" in text]


def audits_failed(machine: Machine) -> int:
    return int(machine.stats().get("audits_failed", 0))


def same(left: Tensors, right: Tensors) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))


def test_the_second_rank_is_stopped_by_its_first_store(
    fleet: Fleet, ranks: tuple[Engine, Engine], said: pytest.LogCaptureFixture
) -> None:
    """Its prompt is there up to half. Nothing of its other half may get to the first rank."""
    first, second = map(fleet.start, ranks)
    stored = first.store(prompt(4))
    second.read_on()
    packs = fleet.packs()
    second.store(prompt(8))
    assert (audits_failed(first), audits_failed(second)) == (0, 1)
    assert len(stops(said)) == 1
    assert fleet.packs() == packs
    assert second.reuse(prompt(8)) == []
    assert same(first.reuse(prompt(8)), stored)


def test_a_stopped_rank_takes_no_part_in_later_prompts(
    fleet: Fleet, ranks: tuple[Engine, Engine]
) -> None:
    first, second = map(fleet.start, ranks)
    first.store(prompt(4))
    second.read_on()
    second.store(prompt(4))
    later = first.store(prompt(4, seed=2))
    packs = fleet.packs()
    assert second.reuse(prompt(4, seed=2)) == []
    second.store(prompt(4, seed=3))
    assert fleet.packs() == packs
    assert first.reuse(prompt(4, seed=3)) == []
    assert same(first.reuse(prompt(4, seed=2)), later)


def test_ranks_that_store_before_they_see_each_other_are_both_stopped(
    fleet: Fleet, ranks: tuple[Engine, Engine], said: pytest.LogCaptureFixture
) -> None:
    machines = [fleet.start(engine, **NEVER) for engine in ranks]
    for machine in machines:
        machine.store(prompt(4))
    for machine in machines:
        machine.read_on()
    for machine in machines:
        fleet.wait_until(lambda machine=machine: audits_failed(machine) > 0)  # type: ignore[misc]
        assert machine.reuse(prompt(4)) == []
    assert len(stops(said)) == 2


def test_other_hardware_goes_on_sharing(fleet: Fleet, said: pytest.LogCaptureFixture) -> None:
    first, second = fleet.start(RANK_0), fleet.start(RANK_0)
    stored = first.store(prompt(4))
    second.read_on()
    longer = second.store(prompt(8), noise=0.01)
    assert second.stats()["audits"] == 1
    assert same(first.reuse(prompt(8)), stored + longer[4:])
    assert stops(said) == []


def test_a_shard_for_each_is_the_remedy(fleet: Fleet, said: pytest.LogCaptureFixture) -> None:
    engines = replace(RANK_0, shard="0of2"), replace(RANK_4, shard="1of2")
    stored = [fleet.start(engine).store(prompt(4)) for engine in engines]
    found = [fleet.start(engine).reuse(prompt(4)) for engine in engines]
    assert all(map(same, found, stored))
    assert stops(said) == []
