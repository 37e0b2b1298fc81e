"""The scale-out case: who finds what in private and shared directories, and what is said of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cases import scaleout, scaleout_says
from bench.cases.scaleout import Place, places, world_of
from bench.core.case import FULL, Outcome, Parameter, Row
from bench.engine.stored import StoredTier, Stores
from bench.workloads import rag
from sharedfs_backend.economics import Loading
from tests.bench.cases.recorded import Recorded

CHUNK_BYTES = 256 << 10
LOADING = Loading(1e-3, 5e9, 131072.0)


@pytest.fixture(params=[True, False], ids=["shared", "private"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    made = Stores(tmp_path, 2, is_shared=request.param, chunk_bytes=CHUNK_BYTES, seed=1)
    yield made
    made.close()


def test_only_in_one_namespace_does_another_replica_find_what_was_published(
    stores: Stores,
) -> None:
    first, second = (StoredTier(world_of(LOADING), stores, place) for place in (0, 1))
    first.publish((1, 2, 3), now=1.0)
    assert first.depth((1, 2, 3, 4), 0, now=2.0) == 3
    assert second.depth((1, 2, 3, 4), 0, now=4.0) == (3 if stores.is_shared else 0)


def test_what_was_written_twice_is_a_duplicate(stores: Stores) -> None:
    tiers = [StoredTier(world_of(LOADING), stores, place) for place in (0, 1)]
    for at, tier in ((1.0, tiers[0]), (10.0, tiers[1])):
        tier.publish((1, 2, 3), now=at)
    assert stores.chunks_written == (3 if stores.is_shared else 6)
    assert stores.chunks_duplicate == (0 if stores.is_shared else 3)


def test_a_race_within_a_refresh_writes_twice_in_one_namespace_too(tmp_path: Path) -> None:
    made = Stores(tmp_path, 2, is_shared=True, chunk_bytes=CHUNK_BYTES, seed=1)
    for place in (0, 1):
        StoredTier(world_of(LOADING), made, place).publish((1, 2), now=1.0)
    assert made.chunks_duplicate == 2
    made.close()


def test_what_the_replica_holds_is_not_asked_of_the_directory(stores: Stores) -> None:
    tier = StoredTier(world_of(LOADING), stores, 0)
    tier.publish((3, 4), now=1.0)
    assert tier.depth((1, 2, 3, 4, 5), 2, now=2.0) == 4


def test_the_load_grows_with_the_replicas() -> None:
    one, four = (scaleout.workload_of("rag", count, 1, True) for count in (1, 4))
    assert len(four.requests) == 4 * len(one.requests)
    assert four.requests[-1].at == pytest.approx(one.requests[-1].at, rel=0.35)


def test_every_policy_is_tried_from_two_replicas_on(tmp_path: Path, recorded: Recorded) -> None:
    quick = recorded.context(tmp_path)
    assert len(places(quick)) == 2 + 2 * 2 + 3 * 2
    assert {each.replicas for each in places(quick) if each.policy == "round-robin"} == {8}
    full = places(replace(quick, profile=FULL))
    assert {each.replicas for each in full if each.policy == "round-robin"} == {2, 4, 8}
    only = places(recorded.context(tmp_path, only=("ttft",)))
    assert {place.policy for place in only} == {"ttft"}


def test_one_place_is_measured_whole(
    tmp_path: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = rag.Rag(questions=30, questions_per_second=1.0, documents=10)
    made = rag.generate("rag", few, random.Random(1))
    monkeypatch.setattr(scaleout, "workload_of", lambda *_: made)
    for is_shared in (False, True):
        place = Place("rag", "ttft", 2, is_shared)
        scaleout.CASE._place(recorded.context(tmp_path), place, LOADING, 1)
    shared = {r.metric: r.value for r in recorded.rows if r.has(directory="shared")}
    private = {r.metric: r.value for r in recorded.rows if r.has(directory="private")}
    assert shared["written"] <= private["written"]  # type: ignore[operator]  # all are numbers
    assert shared["hit_memory"] and shared["ttft_p99"] >= shared["ttft_p50"]  # type: ignore[operator]
    assert list(tmp_path.iterdir()) == []
    assert [f.table is None for f in scaleout_says.figures(recorded.rows)] == [True, False]


def row(metric: str, value: float, directory: str) -> Row:
    where: dict[str, Parameter] = {"workload": "rag", "policy": "ttft", "replicas": 8}
    return Row("scaleout", metric, value, "ms", 1, where | {"directory": directory})


def test_a_shared_namespace_that_is_slower_is_said_to_be() -> None:
    rows = [row("ttft_mean", 100.0, "private"), row("ttft_mean", 120.0, "shared")]
    first, second = scaleout_says.verdicts(rows)
    assert first.outcome is Outcome.MISSED and first.measured == pytest.approx(1.2)
    assert second.outcome is Outcome.NOT_MEASURED
