"""A fleet leaves nothing behind, however its driver ends. With stubs instead of engines."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.demo.fleet import FleetError
from bench.demo.processes import Session, members
from bench.demo.replica_spec import REPOSITORY, ReplicaSpec
from tests.demo_stub_driver import stub_fleet

SPEC = ReplicaSpec("A", Path("/model"))


class Driver:
    """A driver process with two running replicas."""

    def __init__(self, logs: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.demo_stub_driver", str(logs), *arguments],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        started = json.loads(self.process.stdout.readline())
        self.leaders: list[int] = started["pids"]
        self.scratch = Path(started["scratch"])
        self.segments = [Path(f"/dev/shm/sharedfs_test_{pid}") for pid in self.leaders]
        self.late = [Path(f"/dev/shm/sharedfs_test_{pid}_late") for pid in self.leaders]
        self.sessions = [Session.led_by(pid) for pid in self.leaders]

    def left(self) -> list[object]:
        existing = [p for p in [*self.segments, *self.late, self.scratch] if p.exists()]
        return [*members(self.sessions), *existing]

    def close(self) -> None:
        """Kills the driver if it still runs; returns once its keeper has ended too."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    running = Driver(tmp_path)
    yield running
    running.close()


def test_the_stubs_really_leave_something_to_clear(driver: Driver) -> None:
    assert len(members(driver.sessions)) == 8  # Four leaders and their stubborn children.
    assert all(segment.exists() for segment in driver.segments)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_driver_leaves_no_process_and_no_segment(driver: Driver, signum: int) -> None:
    driver.process.send_signal(signum)
    driver.process.communicate(timeout=120)  # Returns once its keeper has ended too.
    assert driver.left() == []


def test_a_failing_driver_leaves_nothing_and_shows_its_own_error(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "--raise")
    _, error = driver.process.communicate(timeout=60)
    assert b"the driver's own mistake" in error
    assert driver.left() == []


def test_a_replica_that_dies_at_start_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    spec = ReplicaSpec("A", Path("/model"), engine_arguments=["--fail"])
    with (
        stub_fleet(tmp_path) as running,
        pytest.raises(FleetError, match="the reason why it failed"),
    ):
        running.start(spec)


def test_a_killed_replica_takes_its_children_and_segments_along(tmp_path: Path) -> None:
    with stub_fleet(tmp_path) as running:
        (replica,) = running.start(SPEC)
        pids = list(replica.pids.values())
        sessions = [Session.led_by(pid) for pid in pids]
        replica.stop(kill=True)
        assert members(sessions) == []
        assert not any(Path(f"/dev/shm/sharedfs_test_{pid}").exists() for pid in pids)
        assert replica.pids == {}


def test_a_stopped_part_can_be_started_again(tmp_path: Path) -> None:
    with stub_fleet(tmp_path) as running:
        (replica,) = running.start(SPEC)
        server = replica.pids["server"]
        replica.stop(parts=["server"])
        replica.start_server()
        replica.wait_ready(60.0)
        assert replica.pids["server"] != server


def test_completions_and_counters_come_from_the_engine(tmp_path: Path) -> None:
    with stub_fleet(tmp_path) as running:
        (replica,) = running.start(SPEC)
        completion = replica.complete([5, 6, 7, 8], tokens_max=3)
        assert completion.tokens == (5, 6, 7)
        assert completion.logprobs == (-0.5, -0.5, -0.5)
        assert 0 < completion.ttft_seconds <= completion.total_seconds
        assert replica.prompt_tokens("external_kv_transfer") == 7
        with pytest.raises(FleetError, match="400"):
            replica.complete([5], tokens_max=0)
