"""Sizing: the tables' numbers are the formulas', and those of docs/CLUSTER.md are the tables'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.engine.models import CONFIGS
from launch.sizing import Mount, capacity_table, main, prefill, standard, time_table

ROOT = Path(__file__).resolve().parents[2]
LLAMA = CONFIGS["llama-3.1-8b"]


def test_the_cluster_page_has_these_tables() -> None:
    page = (ROOT / "docs" / "CLUSTER.md").read_text()
    assert all(table in page for table in "\n".join(standard()).split("\n\n"))


def test_a_tier_holds_its_bytes_in_tokens() -> None:
    row = capacity_table([("x", LLAMA)], [131_072 * 1_000_000])[2]
    assert "| 128.0 KiB | 1.0 million |" in row


def test_a_reload_is_two_operations_and_the_bytes() -> None:
    loading = Mount(2e-3, 1e9).loading(1e5)
    assert loading.seconds(10_000) == pytest.approx(0.004 + 1.0)


@pytest.mark.parametrize(
    ("mount", "least"), [(Mount(1e-3, 1e12), "256"), (Mount(1.0, 1e6), "never")]
)
def test_the_least_prefix_is_one_from_which_on_all_are_quicker(mount: Mount, least: str) -> None:
    lines = time_table([("x", LLAMA, "bf16", "A40", 1)], [mount])
    assert lines[-1] == f"|  | quicker from |  | {least} |"


def test_two_gpus_compute_twice_as_quickly_but_for_the_fixed_part() -> None:
    one, two = prefill(LLAMA, "A100", 1), prefill(LLAMA, "A100", 2)
    assert two.token_seconds == pytest.approx(one.token_seconds / 2)
    assert two.fixed_seconds == one.fixed_seconds


def test_the_command_reads_a_models_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    words = ["--model", str(tmp_path), "--gpu", "A40", "--tier", "1TiB"]
    assert main([*words, "--operation-ms", "1", "--gb-per-second", "5"]) == 0
    said = capsys.readouterr().out
    assert "| 8.4 million |" in said
    assert "| 8,192 | 1.8 s | 217 ms |" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "/nowhere"], "give a model's directory"),
        (["--model", "llama-3.1-8b", "--tier", "much"], "--tier"),
    ],
)
def test_what_is_wrong_is_said(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err
