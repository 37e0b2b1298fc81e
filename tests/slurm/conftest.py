"""Fixtures of the tests on Slurm: a cluster of virtual nodes, and jobs that may leave nothing.

The cluster lives as long as a module. Slurm's programs are needed, root is not.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing_programs
from tests.slurm.fleetjob import ENDED, FleetJob


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A short path, because engines put sockets below it; removed with all in it."""
    path = Path(tempfile.mkdtemp(prefix="sfs-slurm-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def cluster(place: Path) -> Iterator[Cluster]:
    """Four virtual nodes, n1 to n4."""
    missing = missing_programs()
    if missing:
        pytest.skip(
            f"Slurm's {', '.join(missing)}: apt install munge slurmctld slurmd slurm-client"
        )
    with Cluster(place / "cluster") as running:
        yield running


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, place: Path) -> Iterator[Callable[[str], FleetJob]]:
    """Makes jobs, each in a folder of that name; what still runs at the end is cancelled."""
    made: list[FleetJob] = []

    def make(name: str) -> FleetJob:
        made.append(FleetJob(cluster, place / name))
        return made[-1]

    yield make
    for job in made:
        if job.job_id and job.state not in ENDED:
            job.cancel()
            job.wait_state("CANCELLED")


@pytest.fixture(scope="module")
def job(jobs: Callable[[str], FleetJob]) -> FleetJob:
    """The module's main job; a test submits it."""
    return jobs("job")
