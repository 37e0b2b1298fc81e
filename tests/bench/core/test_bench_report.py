"""The report is made from stored rows alone: page, pictures and document."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.cases.reload_draws import figures
from bench.cases.reload_says import ACCEPTED, SLOPE_LATENCIES, verdicts
from bench.core.case import LEFT_OUT, Outcome, Parameter, Row
from bench.core.registry import registry
from bench.core.results import Saved, save
from bench.report.markdown import document
from bench.report.sections import sections
from bench.report.write import write
from tests.bench.core.test_bench_results import ORIGIN

SPEEDS = {"ours": 10.0, "fs_native": 100.0, "fs": 500.0}


def batch_rows(speeds: dict[str, float], rounds: int = 7) -> list[Row]:
    return [
        Row(
            "reload",
            metric,
            speed * (1 + number / 50),
            "ms",
            number,
            {"part": "batch", "batch": str(batch), "adapter": name, "latency_ms": latency},
        )
        for batch in ACCEPTED
        for latency in (0.0, 1.0)
        for name, speed in speeds.items()
        for number in range(rounds)
        for metric in ("store", "lookup", "load", "lookup_load")
    ]


def slope_rows(tokens: int, ours: float, native: float) -> list[Row]:
    rows = []
    for latency in SLOPE_LATENCIES:
        for number in range(5):
            for name, each in (("ours", ours), ("fs_native", native)):
                fixed: dict[str, Parameter] = {
                    "part": "slope",
                    "adapter": name,
                    "prefix_tokens": tokens,
                    "latency_ms": latency,
                }
                value = 50.0 + each * latency
                rows.append(Row("reload", "reload", value, "ms", number, fixed))
                if name == "ours":
                    counted = {"own_opens": 4.0, "own_reads": 128.0, "own_depth": 32.0}
                    rows += [Row("reload", m, v, "", number, fixed) for m, v in counted.items()]
                    for kind, count in (("open", 4.0), ("read", 512.0)):
                        with_kind = {**fixed, "kind": kind}
                        rows.append(Row("reload", "operations", count, "", number, with_kind))
    return rows


def outcome(rows: list[Row], name: str, target: str) -> Outcome:
    (found,) = [v for v in verdicts(rows) if v.name == name and v.target.startswith(target)]
    return found.outcome


@pytest.mark.parametrize(("ours", "expected"), [(10.0, Outcome.MET), (20.0, Outcome.MISSED)])
def test_a_batch_is_judged_by_the_ratio_of_the_same_rounds(ours: float, expected: Outcome) -> None:
    rows = batch_rows({**SPEEDS, "ours": ours})
    name = "256 x 512 KiB, 1 ms, lookup + load"
    assert outcome(rows, name, "at least 8.5x fs_native") is expected


def test_six_rounds_are_too_few_to_judge_a_batch() -> None:
    rows = batch_rows(SPEEDS, rounds=6)
    found = {v.outcome for v in verdicts(rows) if "slope" not in v.name}
    assert found == {Outcome.NOT_MEASURED}


def test_a_slope_is_judged_by_the_products_own_reads_and_by_the_mounts_requests() -> None:
    """4 opens + 128 reads / depth 32 + 1 = 9; by the mount's 512 requests 21."""
    name = "slope, 4096 tokens of 8B"
    target = "at most opens + ceil(reads / depth) + 1 = "
    for slope, own, seen in ((8, "MET", "MET"), (20, "MISSED", "MET"), (22, "MISSED", "MISSED")):
        rows = slope_rows(4096, slope, 300.0)
        assert outcome(rows, name, f"{target}9, own calls") is Outcome[own]
        assert outcome(rows, name, f"{target}21, the mount's requests") is Outcome[seen]


def test_a_slope_is_judged_beside_fs_natives() -> None:
    name, target = "slope, 4096 tokens of 8B", "at most a tenth"
    assert outcome(slope_rows(4096, 20.0, 300.0), name, target) is Outcome.MET
    assert outcome(slope_rows(4096, 20.0, 150.0), name, target) is Outcome.MISSED


def test_nothing_measured_is_judged_as_not_measured() -> None:
    assert {verdict.outcome for verdict in verdicts([])} == {Outcome.NOT_MEASURED}
    assert figures([]) == []


def test_a_missed_target_shows_where_the_time_goes() -> None:
    batch = str(ACCEPTED[0])
    profile = Row(
        "reload",
        "profile",
        None,
        "text",
        0,
        {"batch": batch, "latency_ms": 1.0, "operation": "load"},
        "90 %  read",
    )
    slow = [*batch_rows({**SPEEDS, "ours": 90.0}), profile]
    assert any("90 %  read" in figure.text for figure in figures(slow))
    fast = [*batch_rows({**SPEEDS, "ours": 1.0}), profile]
    assert not any("90 %  read" in figure.text for figure in figures(fast))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    gap = Row("reload", "load", None, "ms", 0, {"adapter": "another"}, "it cannot be driven")
    rows = [*batch_rows(SPEEDS), *slope_rows(4096, 20.0, 300.0), gap]
    save(tmp_path / "run" / "reload.parquet", Saved(ORIGIN, rows))
    return tmp_path / "run"


def test_the_page_is_one_file_that_loads_nothing(run: Path) -> None:
    text = write([run], None, "python -m bench report").read_text()
    assert text.count("data:image/png;base64,") == len(list((run / "report").glob("*.png"))) > 0
    assert "http" not in text
    assert "<script" not in text
    assert "Not measured: load (adapter another): it cannot be driven" in text
    assert "it was noisy: try more rounds" in text
    assert ORIGIN.commit in text


def test_what_the_profile_leaves_out_and_what_was_not_run_is_said(run: Path) -> None:
    left = [
        Row("catalog", LEFT_OUT, None, "", 0, {"what": what}, "not part of the quick profile")
        for what in ("a", "b", "a", "c", "d", "e")
    ]
    died = replace(ORIGIN, case="catalog", complete=False)
    save(run / "catalog.parquet", Saved(died, left))
    text = write([run], None, "python -m bench report").read_text()
    assert "Not measured: a; b; c; d; e (not part of the quick profile)" in text
    assert "the rest of the case: it did not come to its end" in text
    assert "Not run: visibility," in text


def test_several_runs_make_one_page(run: Path, tmp_path: Path) -> None:
    more = Saved(replace(ORIGIN, profile="full"), slope_rows(65536, 20.0, 300.0))
    save(tmp_path / "second" / "reload.parquet", more)
    text = write([run, tmp_path / "second"], None, "python -m bench report").read_text()
    assert 'id="reload"' in text
    assert 'id="reload-full"' in text
    assert (run / "report" / "reload-full-slope.png").exists()


def test_every_picture_has_a_sentence_above_it(run: Path) -> None:
    text = write([run], None, "python -m bench report").read_text()
    for before in text.split("<img")[:-1]:
        assert before.rstrip().endswith("</p>")


def test_the_document_says_the_same_with_its_pictures_beside_it(run: Path, tmp_path: Path) -> None:
    write([run], tmp_path / "docs", "python -m bench report --docs")
    text = (tmp_path / "docs" / "RESULTS.md").read_text()
    pictures = [path.name for path in (tmp_path / "docs" / "results").iterdir()]
    assert pictures
    assert all(f"(results/{name})" in text for name in pictures)
    assert (
        "| reload | 256 x 512 KiB, 1 ms, lookup + load | at least 8.5x fs_native | 10 x |" in text
    )


def test_rows_that_a_case_cannot_read_cost_its_own_section_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = registry().cases

    def broken(rows: object) -> list[object]:
        raise KeyError("batch")

    monkeypatch.setattr(cases["reload"], "verdicts", broken, raising=False)
    saved = {"reload": Saved(ORIGIN, []), "catalog": Saved(ORIGIN, [])}
    found = sections(saved, cases)
    assert [one.name for one in found] == ["reload", "catalog"]
    assert "cannot be shown" in found[0].trouble
    assert "cannot be shown" in document(found, "x")
