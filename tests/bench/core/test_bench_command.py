"""The command: list, run, report, as a user types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.__main__ import _held, _parts, _run_one, _shown, app
from bench.core import fio
from bench.core.case import Row
from bench.core.registry import ORDER, registry
from bench.core.results import Saved, save
from bench.core.runner import Order
from tests.bench.core.test_bench_report import SPEEDS, batch_rows
from tests.bench.core.test_bench_results import ORIGIN

REPOSITORY = Path(__file__).resolve().parents[3]


def test_every_question_has_a_case_and_every_case_can_be_imported() -> None:
    found = registry()
    assert found.broken == {}
    assert {"reload", "catalog", "visibility", "ceiling", "resource"} <= set(found.cases)
    ordered = [name for name in found.cases if name in ORDER]
    assert ordered == [name for name in ORDER if name in found.cases]


def test_every_case_says_what_it_asks_and_how_long_it_takes() -> None:
    for case in registry().cases.values():
        assert case.question.endswith("?")
        assert set(case.minutes) == {"quick", "full"}


def test_the_list_names_every_case() -> None:
    shown = CliRunner().invoke(app, ["list"])
    assert shown.exit_code == 0
    assert all(name in shown.output for name in registry().cases)


def test_an_unknown_case_is_answered_with_the_known_ones() -> None:
    result = CliRunner().invoke(app, ["run", "reloadd"])
    assert result.exit_code == 1
    assert "choose from reload" in str(result.exception)


def test_a_report_is_written_from_results_alone(tmp_path: Path) -> None:
    save(tmp_path / "reload.parquet", Saved(ORIGIN, batch_rows(SPEEDS)))
    command = [sys.executable, "-m", "bench", "report", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).read_text().startswith("<!doctype html>")


def test_a_command_is_shown_without_this_machines_paths() -> None:
    words = ["run", "reload", "--dir", "/mnt/x", "--into", "/tmp/y", "--rounds", "9"]
    shown = ["run", "reload", "--dir", "DIR", "--into", "RUN", "--rounds", "9"]
    assert _shown(words) == shown
    assert _shown(["--dir=/mnt/x", "--into=/tmp/y"]) == ["--dir=DIR", "--into=RUN"]


def test_what_could_not_be_measured_is_said_when_a_case_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [Row("reload", "load", None, "ms", n, {}, "no space") for n in range(3)]
    monkeypatch.setattr("bench.__main__.run_case", lambda *_: Saved(ORIGIN, rows))
    assert _run_one(registry(), "reload", Order(), tmp_path) == 0
    assert "3 values could not be measured, 3 of them: no space" in capfd.readouterr().err


def test_a_trace_is_refused_by_cases_that_take_none(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text("{}")
    refused = CliRunner().invoke(app, ["run", "cost", "--trace", str(trace)])
    assert "cost takes none; these do: capacity" in str(refused.exception or refused.output)
    broken = CliRunner().invoke(app, ["run", "capacity", "--trace", str(trace)])
    assert "not a trace with hash_ids" in str(broken.exception or broken.output)


def test_a_name_with_a_comma_can_be_chosen() -> None:
    found, wanted = registry(), ("batch", "fs_native, 32 workers", "ours", "fs_native")
    assert _parts(found, ["reload"], ",".join(wanted)) == wanted
    assert _parts(found, ["reload"], "") == ()
    assert _parts(found, ["reload"], "nonsense,ours") == ("nonsense", "ours")


def test_fios_report_is_read_in_spite_of_what_stands_before_it() -> None:
    text = """note: something
    {"jobs": [{"error": 0, "usr_cpu": 10.0, "sys_cpu": 30.0, "job_runtime": 400,
     "read": {"io_bytes": 134217728, "runtime": 100}}]}"""
    moved = fio.parsed(text, "read")
    assert moved.mb_s == pytest.approx(1342.17728)
    assert moved.cpu_seconds == pytest.approx(0.16)


def test_an_error_of_fio_is_no_measurement() -> None:
    text = '{"jobs": [{"error": 5, "read": {"io_bytes": 0, "runtime": 1}}]}'
    with pytest.raises(fio.FioFailed, match="error 5"):
        fio.parsed(text, "read")


def test_threads_share_the_bytes_in_whole_blocks() -> None:
    assert fio.Plan(threads=3, block=4 << 20, total=128 << 20).each == 40 << 20


def refused(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 1
    return str(result.exception)


def test_a_directory_that_cannot_be_used_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    into = tmp_path / "run"
    said = refused("run", "cost", "--dir", tmp_path / "missing", "--into", into)
    assert "--dir" in said and "missing" in said
    assert not into.exists()


def test_a_folder_of_results_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "--into" in refused("run", "cost", "--dir", tmp_path, "--into", tmp_path / "file")


def test_a_folder_of_results_takes_one_run_at_a_time(tmp_path: Path) -> None:
    with _held(tmp_path):
        assert "another run" in refused("run", "cost", "--dir", tmp_path, "--into", tmp_path)


def test_a_part_that_no_chosen_case_has_is_refused_with_those_there_are(tmp_path: Path) -> None:
    said = refused("run", "reload", "catalog", "--only", "slop", "--into", tmp_path / "run")
    assert "--only slop" in said and "slope" in said
    assert "no parts" in refused("run", "ceiling", "--only", "ours", "--into", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_report_of_nothing_writes_nothing(tmp_path: Path) -> None:
    assert "no results" in refused("report", tmp_path)
    assert "no results" in refused("report", tmp_path / "missing", "--docs")
    assert list(tmp_path.iterdir()) == []


def test_a_report_tells_what_it_could_not_read(tmp_path: Path) -> None:
    save(tmp_path / "reload.parquet", Saved(ORIGIN, batch_rows(SPEEDS)))
    (tmp_path / "catalog.parquet").write_bytes(b"garbage")
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 1
    assert "left out" in result.output and "catalog.parquet" in result.output
    assert (tmp_path / "report" / "index.html").exists()
