"""The variants' own logic: what the prefill side is asked, what is held, what Ray's actors get;
and, where Ray is installed, the whole job with it."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.commands import REPOSITORY, Command
from launch.hold import hold
from launch.parts import Part
from launch.rayserve import environment_of
from launch.restarts import Restarts
from launch.split import prefill_body, wait_for_url
from tests.slurm.fleetjob import ENDED, FleetJob


def test_the_prefill_side_is_asked_for_one_token_that_is_not_streamed() -> None:
    asked = {"prompt": "x", "max_tokens": 99, "stream": True, "stream_options": {}, "n": 2}
    body = prefill_body(json.dumps(asked).encode())
    assert body is not None
    assert json.loads(body) == {"prompt": "x", "max_tokens": 1, "stream": False}


def test_the_newer_name_of_the_limit_is_lowered_too() -> None:
    body = prefill_body(b'{"max_completion_tokens": 50}')
    assert body is not None
    assert json.loads(body)["max_completion_tokens"] == 1


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"3"])
def test_what_is_no_request_is_not_prefilled(body: bytes) -> None:
    assert prefill_body(body) is None


def test_a_url_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "url"

    def stop(seconds: float) -> bool:
        path.write_text("http://a:1\n")
        return False

    assert wait_for_url(path, stop) == "http://a:1"
    assert wait_for_url(tmp_path / "none", lambda seconds: True) == ""


def part(folder: Path, program: str) -> Part:
    return Part(Command((sys.executable, "-c", program)), folder / "log", folder)


def test_what_is_held_is_ended_when_told(tmp_path: Path) -> None:
    held = part(tmp_path, "import time; time.sleep(600)")
    assert hold(lambda: held, lambda seconds: True, Restarts(0)) == 0
    assert held.exit_code is not None


def test_what_ends_by_itself_too_often_is_given_up(tmp_path: Path) -> None:
    started: list[Part] = []

    def start() -> Part:
        started.append(part(tmp_path, "print('once')"))
        return started[-1]

    def stop(seconds: float) -> bool:
        started[-1].wait(30.0)
        return False

    assert hold(start, stop, Restarts(2, pause_seconds=0.0)) == 1
    assert len(started) == 3 and (tmp_path / "log").read_text() == "once\n" * 3


def test_rays_actors_get_the_settings_but_not_another_nodes_cores() -> None:
    given = {"FLEET_MODEL": "m", "FLEET_CORES": "0", "SLURM_JOB_ID": "7", "HOME": "/h"}
    passed = environment_of(given)
    assert passed.pop("PYTHONPATH").split(":")[0] == str(REPOSITORY)
    assert passed == {"FLEET_MODEL": "m", "SLURM_JOB_ID": "7"}


@pytest.mark.nightly
@pytest.mark.alone
def test_the_fleet_as_ray_serve_deployments(jobs: Callable[[str], FleetJob]) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'ray[serve]'")
    job = jobs("ray")
    job.submit({}, "--nodes=2", script="ray")
    job.wait(lambda: bool(job.url) or job.state in ENDED, "the fleet is up", 300)
    assert job.ready() == 2
    job.end()
    job.wait_state("COMPLETED", 120)
    assert job.left_over() == []
