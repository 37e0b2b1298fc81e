"""Time that is left for staging out, by Slurm's words; what is not worth beginning."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launch.site import Site
from launch.tier import check, has_few_cores, is_too_late, seconds_left, stage_out_seconds

SITE = Site(model="m", namespace="/fast", kept="/kept", stage_seconds=100.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1:30", 90.0),
        ("0:05", 5.0),
        ("2:00:01", 7201.0),
        ("1-00:00:10", 86410.0),
        ("UNLIMITED\n", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_slurms_time_left(text: str, seconds: float | None) -> None:
    assert seconds_left(text) == seconds


@pytest.mark.parametrize(
    ("left", "seconds"), [(None, 100.0), (1000.0, 100.0), (60.0, 40.0), (24.0, 0.0), (0.0, 0.0)]
)
def test_staging_out_leaves_time_to_end(left: float | None, seconds: float) -> None:
    assert stage_out_seconds(SITE, left) == seconds


def test_under_a_plain_scancel_gekkofs_is_gone_already() -> None:
    gekkofs = Site(
        model="m",
        namespace="/g/kv",
        registry="/r",
        gekkofs="/d",
        gekkofs_data="/l",
        gekkofs_mount="/g",
        gekkofs_client="/c.so",
    )
    assert is_too_late(gekkofs, "COMPLETING\n") and not is_too_late(gekkofs, "RUNNING\n")
    assert not is_too_late(SITE, "COMPLETING")


@pytest.mark.parametrize(
    ("gpus", "cores", "few"), [(4, 7, True), (4, 8, False), (1, 2, False), (0, 1, False)]
)
def test_gpus_that_would_wait_for_cores(gpus: int, cores: int, few: bool) -> None:
    assert has_few_cores(gpus, cores) is few


@pytest.mark.parametrize(("cores", "warns"), [(2, True), (64, False)])
def test_cores_that_were_not_asked_for_are_missed_before_the_start(
    cores: int,
    warns: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    site = Site(model="m", namespace="/kv", scratch=str(tmp_path), interface="lo", router_port=0)
    environ = {"SLURMD_NODENAME": "n1", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert check(site, environ) == 0
    said = capsys.readouterr().out
    assert "4 replica(s) of 1 GPU(s)" in said
    assert ("2 core(s) on n1 for all of this: give --cpus-per-task" in said) is warns
