"""`fleet.sbatch` on two virtual nodes, with stand-ins for engines and servers: what is started,
what is said, what survives, and that nothing is left (the order of tests is a fleet's life)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.fleetjob import FleetJob

Jobs = Callable[[str], FleetJob]

pytestmark = pytest.mark.alone
UP_SECONDS = 120.0


@pytest.fixture(scope="module")
def fleet(job: FleetJob) -> FleetJob:
    """Up on n1 and n2."""
    job.submit({}, "--nodes=2")
    job.wait_up(UP_SECONDS)
    return job


def test_every_node_has_a_replica_and_the_router_finds_them_in_the_namespace(
    fleet: FleetJob,
) -> None:
    assert sorted(name for name, _ in fleet.starts()) == ["n1-0", "n2-0"]
    assert set(fleet.replicas()) == {replica for _, replica in fleet.starts()}
    assert fleet.ready() == 2


def test_the_output_says_how_to_use_and_end_it(fleet: FleetJob) -> None:
    port = fleet.url.rpartition(":")[2]
    assert f"URL: {fleet.url}/v1" in fleet.said
    assert f"ssh -N -L {port}:127.0.0.1:{port}" in fleet.said
    assert f"scancel --batch --signal=TERM {fleet.job_id}" in fleet.said


def test_an_engine_that_dies_is_started_again_under_another_port(fleet: FleetJob) -> None:
    before = dict(fleet.starts())
    (pid,) = _engine_pids(before["n1-0"].rpartition(":")[2])
    os.kill(pid, signal.SIGKILL)
    fleet.wait(lambda: len(fleet.starts()) == 3, "started again")
    after = dict(fleet.starts())
    assert after["n1-0"] != before["n1-0"] and after["n2-0"] == before["n2-0"]
    fleet.wait(lambda: set(fleet.replicas()) == set(after.values()), "found again")
    fleet.wait(lambda: fleet.ready() == 2, "both take requests")


def test_a_killed_node_is_survived(fleet: FleetJob) -> None:
    survivor = dict(fleet.starts())["n1-0"]
    fleet.wait_noted()
    fleet.cluster.kill_node("n2")
    fleet.wait(lambda: set(fleet.replicas()) == {survivor}, "the dead one is forgotten")
    fleet.wait(lambda: "Node failure on n2" in fleet.said, "Slurm has noticed")
    assert fleet.state == "RUNNING" and fleet.ready() == 1


def test_requeued_it_comes_up_on_the_kept_namespace(fleet: FleetJob) -> None:
    fleet.cluster.run("scontrol", "requeue", str(fleet.job_id))
    fleet.wait(lambda: not fleet.url, "the first run has ended")
    fleet.wait_up(UP_SECONDS)
    assert fleet.ready() == 2 and "n2" not in fleet.node_names


def test_what_the_dead_node_announced_is_cleared_away(fleet: FleetJob) -> None:
    fleet.wait(lambda: len(_announced(fleet)) == 2, "two replicas, two announcements")


def test_told_to_end_it_drains_and_leaves_nothing(fleet: FleetJob) -> None:
    fleet.end()
    fleet.wait_state("COMPLETED")
    assert "fleet: draining" in fleet.said and "fleet: ended" in fleet.said
    assert _announced(fleet) == []
    assert fleet.left_over() == []


def test_cancelled_it_leaves_nothing(jobs: Jobs) -> None:
    job = jobs("cancelled")
    job.submit({}, "--nodes=2")
    job.wait_up(UP_SECONDS)
    job.cancel()
    job.wait_state("CANCELLED")
    assert _announced(job) == [] and job.left_over() == []


def test_a_wrong_setting_ends_the_job_and_is_named(jobs: Jobs) -> None:
    job = jobs("wrong")
    job.submit({"FLEET_MODLE": "x"}, "--nodes=1")
    job.wait_state("FAILED")
    assert "FLEET_MODLE is no setting; did you mean FLEET_MODEL?" in job.said
    assert job.left_over() == []


def test_a_fleet_without_its_first_node_comes_back_when_requeued(jobs: Jobs) -> None:
    job = jobs("headless")
    job.submit({}, "--nodes=2")
    job.wait_up(UP_SECONDS)
    first, second = job.node_names
    job.wait_noted()
    job.cluster.kill_node(first)
    job.wait(lambda: job.node_names == [second], "Slurm has noticed", 120)
    assert job.state == "RUNNING" and job.ready() == 0
    job.cluster.run("scontrol", "requeue", str(job.job_id))
    job.wait(lambda: job.said.count("fleet: URL:") == 2, "it is up again", UP_SECONDS)
    assert job.ready() == 2 and first not in job.node_names
    job.end()
    job.wait_state("COMPLETED")
    assert job.left_over() == []


def _announced(fleet: FleetJob) -> list[Path]:
    return list((fleet.namespace / "replicas").iterdir())


def _engine_pids(port: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"vllm.entrypoints.openai.api_server" in words and port.encode() in words:
            stat = path.with_name("stat").read_text().rsplit(") ", 1)[1].split()
            if int(stat[3]) == int(path.parent.name):  # the session's leader, not its child
                found.append(int(path.parent.name))
    return found
