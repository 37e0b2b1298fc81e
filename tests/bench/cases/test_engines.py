"""The case of real engines: what its rows say, and which replicas it starts. No engine here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from bench.cases import engines, engines_says
from bench.cases.engines import Setup
from bench.core.case import LEFT_OUT, Outcome, Parameter, Row, Verdict


def rows(
    metric: str,
    adapter: str,
    values: Iterable[float],
    *,
    kind: str = "other",
    place: str = "local",
    latency: float = 0.0,
) -> list[Row]:
    params: dict[str, Parameter] = {
        "cell": f"{adapter} on {place}",
        "adapter": adapter,
        "place": place,
        "latency_ms": latency,
        "kind": kind,
    }
    return [Row("engines", metric, value, "", n, params) for n, value in enumerate(values)]


def named(found: list[Verdict], name: str) -> Verdict:
    return next(verdict for verdict in found if verdict.name.startswith(name))


def test_a_faster_reload_than_fs_natives_is_met_and_a_slower_one_missed() -> None:
    fast = rows("ttft", "ours", [300, 310, 305]) + rows("ttft", "fs_native", [400, 390, 410])
    slow = rows("ttft", "ours", [500, 510, 505]) + rows("ttft", "fs_native", [400, 390, 410])
    name = "reload on the other replica"
    assert named(engines_says.verdicts(fast), name).outcome is Outcome.MET
    assert named(engines_says.verdicts(slow), name).outcome is Outcome.MISSED


def test_a_reload_that_brought_no_token_is_not_counted() -> None:
    found = rows("ttft", "ours", [300, 310, 305]) + rows("ttft", "fs_native", [400, 390, 410])
    empty = rows("loaded_tokens", "ours", [3840, 0, 3840])
    kept = engines_says.reloads([*found, *empty])
    ours = [row.value for row in kept if row.metric == "ttft" and row.params["adapter"] == "ours"]
    assert ours == [300, 305]


def test_a_reload_that_brought_a_part_is_not_counted() -> None:
    found = [
        *rows("ttft", "ours", [300, 310]),
        *rows("loaded_tokens", "ours", [256, 3840]),
        *rows("ttft", "ours", [320], kind="own"),
        *rows("loaded_tokens", "ours", [256], kind="own"),
    ]
    kept = engines_says.reloads(found)
    assert [row.value for row in kept if row.metric == "ttft"] == [310, 320]


def test_a_cold_prompt_is_counted_though_it_loads_nothing() -> None:
    found = rows("ttft", "ours", [3000], kind="cold") + rows(
        "loaded_tokens", "ours", [0], kind="cold"
    )
    assert len(engines_says.reloads(found)) == 2


def test_the_penalty_is_the_ratio_of_slopes() -> None:
    found: list[Row] = []
    for adapter, per_ms in (("ours", 5.0), ("fs_native", 20.0)):
        for latency in (0.0, 1.0, 10.0):
            times = [300 + per_ms * latency + jitter for jitter in (-1, 0, 1)]
            found += rows("ttft", adapter, times, place="mount", latency=latency)
    verdict = named(engines_says.verdicts(found), "reload penalty")
    assert verdict.outcome is Outcome.MET
    assert verdict.measured == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [(-0.4, 20.0, Outcome.MET), (20.0, 20.0, Outcome.MISSED), (5.0, -1.0, Outcome.NOT_MEASURED)],
)
def test_a_penalty_of_nothing_is_met_and_one_of_theirs_is_needed(
    ours: float, theirs: float, outcome: Outcome
) -> None:
    found: list[Row] = []
    for adapter, per_ms in (("ours", ours), ("fs_native", theirs)):
        for latency in (0.0, 1.0, 10.0):
            times = [300 + per_ms * latency + jitter for jitter in (-1, 0, 1)]
            found += rows("ttft", adapter, times, place="mount", latency=latency)
    assert named(engines_says.verdicts(found), "reload penalty").outcome is outcome


def test_what_was_not_run_is_not_measured() -> None:
    found = engines_says.verdicts([])
    assert {verdict.outcome for verdict in found} == {Outcome.NOT_MEASURED}
    assert engines_says.figures([Row("engines", LEFT_OUT, None, "", 0, {"what": "all"})]) == []


def test_gaps_are_compared_round_by_round() -> None:
    found: list[Row] = []
    for adapter, gap in (("ours", 10.2), ("none", 10.0)):
        for number in range(3):
            made = rows("gap", adapter, [gap] * 5)
            found += [Row(r.case, r.metric, r.value, r.unit, number, r.params) for r in made]
    verdict = named(engines_says.verdicts(found), "gap between tokens, p50, local")
    assert verdict.outcome is Outcome.MET
    assert verdict.measured == pytest.approx(1.02)


def test_each_contender_gets_the_directory_its_name_says(tmp_path: Path) -> None:
    def root(contender: str, name: str) -> object:
        adapter = engines._adapter(contender, name, tmp_path)
        if adapter is None:
            return None
        params = adapter.get("adapter_params")
        return params["root"] if isinstance(params, dict) else adapter["base_path"]

    assert root("none", "A") is None
    assert root("ours", "A") == root("ours", "B") == str(tmp_path)
    assert root("fs_native", "A") == root("fs_native", "B") == str(tmp_path)
    assert root("private", "A") != root("private", "B")


def test_prompts_outlast_the_caches_they_must_leave() -> None:
    """Or asking A again would measure the engine's own cache."""
    assert engines.BLOCKS * 128 < engines.PROMPTS_MIN * engines_says.PROMPT_TOKENS
    l1_tokens = engines.L1_GIB * (1 << 30) / (16 << 10)
    assert l1_tokens < engines.PROMPTS_MIN * engines_says.PROMPT_TOKENS
    assert Setup("ours", "mount") in engines.SETUPS
