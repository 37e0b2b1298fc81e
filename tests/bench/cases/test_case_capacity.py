"""The capacity case: what it makes of hits, what it says of rows, and one small run of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.cases import capacity, capacity_says
from bench.cases.capacity import Capacity, Timing, workload_of
from bench.core.case import Context, Outcome, Parameter, Row
from bench.workloads.__main__ import as_trace
from bench.workloads.files import hash_ids
from bench.workloads.registry import make
from bench.workloads.workload import Workload
from sharedfs_backend.economics import Loading, Prefill
from tests.bench.cases.recorded import Recorded

PREFILL = Prefill(0.01, 1e-4, 0.0)


def row(policy: str, value: float, share: float = 0.5) -> Row:
    where: dict[str, Parameter] = {"workload": "cyclic", "cap_share": share, "policy": policy}
    return Row("capacity", "hit_rate", value, "", 1, where)


def test_a_slow_reload_is_not_used() -> None:
    slow = Timing(PREFILL, Loading(1.0, 1e12, 1.0), 100)
    quick = Timing(PREFILL, Loading(1e-3, 1e12, 1.0), 100)
    assert slow.ttft_seconds(1000, 9) == PREFILL.seconds(1000, 1000)
    assert quick.ttft_seconds(1000, 9) < PREFILL.seconds(101, 1000) + 2e-3


def test_workloads_are_spread_over_hours() -> None:
    workload = workload_of("cyclic", 1, quick=True)
    assert workload.requests[-1].at == capacity.SPAN_SECONDS
    assert workload.reuse > 0.8


def test_a_trace_is_measured_in_place_of_generated_requests(
    tmp_path: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "mine.jsonl"
    trace.write_text(as_trace(make("agents", 1, scale=0.1)))
    asked: list[Workload] = []
    monkeypatch.setattr(capacity, "SHARES", {"quick": (1.0,)})
    monkeypatch.setattr(
        Capacity, "_cell", lambda self, context, workload, *more: asked.append(workload)
    )
    capacity.CASE.run(replace(recorded.context(tmp_path), trace=trace))
    ((name, requests),) = [(workload.name, workload.requests) for workload in asked]
    expected = hash_ids(trace).requests
    assert (name, [r.blocks for r in requests]) == ("mine", [r.blocks for r in expected])


def test_a_trace_whose_times_count_from_an_epoch_begins_at_once(tmp_path: Path) -> None:
    trace = tmp_path / "mine.jsonl"
    lines = (
        f'{{"timestamp": {at}, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}}\n'
        for at in (1_764_000_003_000, 1_764_000_000_000)
    )
    trace.write_text("".join(lines))
    assert [request.at for request in capacity._replayed(trace, True).requests] == [0.0, 3.0]


def test_a_policy_that_loses_hits_is_told_with_the_place() -> None:
    rows = [row("ours", 0.5), row("LRU, same room", 0.6), row("ours", 0.7, 1.0)]
    first = capacity_says.verdicts(rows)[0]
    assert first.outcome is Outcome.MISSED and "cyclic, cap 0.5" in first.note
    rows[0] = row("ours", 0.59)
    assert capacity_says.verdicts(rows)[0].outcome is Outcome.MET


def test_nothing_measured_is_no_verdict() -> None:
    assert {v.outcome for v in capacity_says.verdicts([])} == {Outcome.NOT_MEASURED}
    assert capacity_says.figures([]) == []


def test_a_small_run_records_every_policy_and_draws(tmp_path: Path, recorded: Recorded) -> None:
    context: Context = recorded.context(tmp_path, only=("tiny",))
    workload = workload_of("cyclic", 1, quick=True)
    few = [request for request in workload.requests if request.blocks[0] < 90]
    small = replace(workload, name="tiny", requests=tuple(few))
    timing = Timing(PREFILL, Loading(1e-3, 1e9, 1e5), 512)
    capacity.CASE._cell(context, small, timing, 0.5, 1)
    policies = {r.params.get("policy") for r in recorded.rows if r.metric == "hit_rate"}
    assert policies == {"ours", "LRU", "LRU, same room", "Belady", "no cap"}
    by_cap = capacity_says.by_cap(recorded.rows, "hit_rate", "tiny")
    assert by_cap["ours"][0.5][0] <= by_cap["Belady"][0.5][0] <= by_cap["no cap"][0.5][0]
    assert [len(f.table.lines) for f in capacity_says.figures(recorded.rows) if f.table] == [1]
    assert list(tmp_path.iterdir()) == []
