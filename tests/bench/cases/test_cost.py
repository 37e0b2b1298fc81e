"""The cost case: one prefix's way through the rig, and break-evens from rows of known numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases import cost, cost_says
from bench.core.adapters import FS, OURS
from bench.core.case import Outcome, Parameter, Row
from bench.core.mounts import Plain
from bench.engine.models import MODELS
from sharedfs_backend.economics import Loading, Prefill
from tests.bench.cases.recorded import Recorded

MODEL = "qwen2.5-1.5b-fp16"


def rows_of(loads: dict[int, float], latency_ms: float = 0.0, store: float = 100.0) -> list[Row]:
    """Milliseconds of a load by tokens; the rest is the same for all."""
    found = []
    for tokens, load in loads.items():
        where: dict[str, Parameter] = {
            "adapter": OURS,
            "model": MODEL,
            "tokens": tokens,
            "latency_ms": latency_ms,
            "mb": tokens * 28_672 / 1e6,
        }
        given = {"miss_lookup": 0.5, "submit": 0.5, "store": store, "hit_lookup": 1.0, "load": load}
        given["work_beside_store"] = 1.0
        found += [Row("cost", name, value, "ms", 0, where) for name, value in given.items()]
    return found


@pytest.mark.parametrize("adapter", [OURS, FS])
def test_a_prefix_is_missed_stored_and_loaded_and_leaves_nothing(
    tmp_path: Path, adapter: str
) -> None:
    mount = Plain(tmp_path, "")
    with cost._rig(mount, adapter, MODELS[MODEL], 512) as rig:
        for _ in range(2):
            touch = rig.measure(512, 0.0)
            assert touch.problem == ""
            assert touch.load > 0 and touch.store > 0 and touch.work_alone > 0
        left = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in left) < 1 << 20


def test_a_failed_touch_is_recorded_as_not_measured(tmp_path: Path, recorded: Recorded) -> None:
    with cost._rig(Plain(tmp_path, ""), OURS, MODELS[MODEL], 256) as rig:
        bad = cost.Touch(1, 1, 1, 1, 1, 1, 1, problem="0 of 1 chunks were loaded")
        cost._keep(recorded.context(tmp_path), rig, bad, 256, 0.0, 0)
    assert [(row.metric, row.value) for row in recorded.rows] == [("load", None)]


def test_a_tier_is_one_latency_and_one_bandwidth() -> None:
    size = 28_672 / 1e6
    rows = rows_of({1024: 4.0 + 1024 * size / 2, 8192: 4.0 + 8192 * size / 2})
    at_once, bandwidth = cost_says.tier_of(rows, OURS, 0.0) or (0.0, 0.0)
    assert at_once == pytest.approx(5e-3) and bandwidth == pytest.approx(2e9)
    assert cost_says.tier_of(rows[:6], OURS, 0.0) is None


def test_the_break_even_is_where_every_longer_prefix_wins() -> None:
    prefill = Prefill(0.0, 1e-4, 0.0)
    loading = Loading(0.1, 1e9, 5e4)  # 0.1 s and half of what computing takes
    assert cost_says.break_even_tokens(prefill, loading, 10_000) == 2048
    assert cost_says.break_even_tokens(prefill, Loading(0.0, 1e8, 5e4), 10_000) is None


def test_lengths_are_told_for_every_model_and_latency() -> None:
    rows = rows_of({1024: 10.0, 8192: 60.0}) + rows_of({1024: 30.0, 8192: 80.0}, 1.0)
    table = cost_says.figures(rows)[0].table
    assert table is not None and table.head[2:] == ("ours, 0 ms", "ours, 1 ms")
    assert len(table.lines) == len(cost_says.SHOWN_MODELS) * len(cost_says.SHOWN_GPUS)


def test_a_dear_miss_is_told_with_its_place() -> None:
    assert cost_says.verdicts(rows_of({8192: 60.0}))[0].outcome is Outcome.MET
    dear = [
        Row("cost", row.metric, 50.0, "ms", 0, row.params) if row.metric == "submit" else row
        for row in rows_of({8192: 60.0})
    ]
    (verdict,) = cost_says.verdicts(dear)
    assert verdict.outcome is Outcome.MISSED and "8,192 tokens" in verdict.note
    assert cost_says.verdicts([])[0].outcome is Outcome.NOT_MEASURED


def test_a_hit_that_gains_nothing_never_pays() -> None:
    figures = cost_says.figures(rows_of({8192: 5000.0}))
    table = figures[2].table
    assert table is not None and table.lines[0][-1] == "never"
