"""Nodes on one namespace: each loads what the others stored; a failed node says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.cases import nodes_says
from bench.cases.nodes import keep
from bench.core.case import Outcome
from bench.engine import launchers, node
from bench.engine.engine import SyntheticEngine
from bench.engine.launchers import PROCESSES, fleet
from bench.engine.node import Result, Task
from tests.bench.cases.recorded import Recorded


def task(root: Path, rank: int, of: int, rounds: int = 1) -> Task:
    return Task(str(root / "kv"), rank, of, tokens=512, prefixes=2, rounds=rounds)


def test_no_two_prefixes_of_a_run_have_a_chunk_in_common(tmp_path: Path) -> None:
    one = task(tmp_path, 0, 3)
    all_chunks = [
        chunk
        for round_ in range(2)
        for rank in range(3)
        for prefix in range(2)
        for chunk in one.chunks(round_, rank, prefix)
    ]
    assert len(set(all_chunks)) == len(all_chunks) == 2 * 3 * 2 * 2


def test_a_node_alone_loads_its_own(tmp_path: Path) -> None:
    first, second = node.drive(task(tmp_path, 0, 1, rounds=2))
    assert first.loaded_bytes == first.stored_bytes == 2 * 512 * 28_672
    assert (second.round, second.missing_chunks, second.damaged_chunks) == (1, 0, 0)
    assert len(second.load_seconds) == 2 and second.load_until >= second.load_from


def test_a_task_that_fails_is_answered_with_its_reason(tmp_path: Path) -> None:
    line = json.dumps({"root": str(tmp_path), "rank": 0, "of": 1, "model": "no such"})
    assert json.loads(node.answer(line)) == {"error": "KeyError: 'no such'"}
    with pytest.raises(RuntimeError, match="no such"):
        launchers._results(node.answer(line))


def test_a_store_that_failed_is_said_before_anybody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = SyntheticEngine.drain

    def drained(engine: SyntheticEngine) -> None:
        drain(engine)
        engine.failed_stores = 1

    monkeypatch.setattr(SyntheticEngine, "drain", drained)
    with pytest.raises(RuntimeError, match="1 stores failed"):
        node.drive(task(tmp_path, 0, 1))


@pytest.mark.slow
def test_processes_load_what_the_others_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "ray_problem", lambda: "not for a test")
    with fleet(2) as nodes:
        assert nodes.kind == PROCESSES
        results = nodes.run([task(tmp_path, rank, 2) for rank in range(2)])
        assert [result.rank for result in results] == [0, 1]
        assert all(result.loaded_bytes == 2 * 512 * 28_672 for result in results)
        assert not any(result.missing_chunks or result.damaged_chunks for result in results)
        alone = nodes.run([task(tmp_path / "again", 0, 1)])
        assert len(alone) == 1
        started = nodes._started  # type: ignore[attr-defined]  # Processes, as asserted
    assert [process.poll() for process in started] == [0, 0]


def result(rank: int, load_from: float, load_until: float, missing: int = 0) -> Result:
    return Result(
        rank,
        stored_bytes=500_000_000,
        loaded_bytes=1_000_000_000,
        store_from=0.0,
        store_until=2.0,
        load_from=load_from,
        load_until=load_until,
        load_seconds=[0.1, 0.3],
        missing_chunks=missing,
    )


def test_bytes_of_all_count_over_the_time_from_first_to_last(
    tmp_path: Path, recorded: Recorded
) -> None:
    both = [result(0, 10.0, 12.0), result(1, 11.0, 15.0)]
    keep(recorded.context(tmp_path), both, PROCESSES, 2, 1)
    assert recorded.values("load_aggregate") == [2000 / 5]
    assert recorded.values("store_aggregate") == [1000 / 2]
    assert recorded.values("load_p50") == [pytest.approx(200.0)]
    (figure,) = nodes_says.figures(recorded.rows)
    assert "local processes on one machine" in figure.sentence
    assert nodes_says.verdicts(recorded.rows)[0].outcome is Outcome.MET


def test_a_chunk_that_is_not_found_misses_the_target(tmp_path: Path, recorded: Recorded) -> None:
    keep(recorded.context(tmp_path), [result(0, 0.0, 1.0, missing=3)], PROCESSES, 1, 1)
    assert nodes_says.verdicts(recorded.rows)[0].outcome is Outcome.MISSED
    assert nodes_says.verdicts([])[0].outcome is Outcome.NOT_MEASURED
