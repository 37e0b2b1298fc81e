"""What makes a run noisy is said, with what to try; a quiet one is left in peace."""

from __future__ import annotations

from dataclasses import replace

from bench.core.case import Row
from bench.core.noise import warnings
from tests.bench.core.test_bench_results import ORIGIN


def rows(values: list[float], **params: str) -> list[Row]:
    return [Row("reload", "load", value, "ms", n, params) for n, value in enumerate(values)]


STEADY = [10.0, 10.1, 9.9, 10.0, 10.2, 9.8, 10.0]
WILD = [10.0, 30.0, 12.0, 28.0, 11.0, 31.0, 10.0]


def test_a_quiet_run_has_no_warning() -> None:
    assert warnings(rows(STEADY), ORIGIN, cores=2) == []


def test_load_before_the_case_is_named() -> None:
    (text,) = warnings(rows(STEADY), replace(ORIGIN, busy_start=1.5), cores=2)
    assert "1.5 of 2 cores were at work" in text


def test_time_taken_by_the_host_is_named() -> None:
    (text,) = warnings(rows(STEADY), replace(ORIGIN, stolen_share=0.1), cores=2)
    assert "host took 10%" in text


def test_spread_names_the_worst_quantity_and_the_remedy() -> None:
    found = warnings(rows(STEADY, adapter="ours") + rows(WILD, adapter="fs"), ORIGIN, cores=2)
    assert "1 of 2" in found[0]
    assert "adapter fs" in found[0]
    assert "--rounds" in found[0]


def test_what_is_random_by_nature_is_no_noise() -> None:
    assert warnings(rows(WILD), ORIGIN, cores=2, random=("load",)) == []


def test_a_steady_change_over_the_rounds_is_told_from_noise() -> None:
    (text,) = warnings(rows([10, 10.5, 11, 12, 13, 13.9, 14.5]), ORIGIN, cores=2)
    assert "changed steadily" in text
