"""Fixtures of the tests on Slurm: a cluster of virtual nodes, and jobs that may leave nothing.

The cluster lives as long as a module. Slurm's programs are needed, root is not.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing_programs
from tests.slurm.fleetjob import FleetJob


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
def job(cluster: Cluster, place: Path) -> FleetJob:
    """The module's main job; a test submits it."""
    return FleetJob(cluster, place / "job")
