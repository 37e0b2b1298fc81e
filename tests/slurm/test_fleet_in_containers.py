"""`fleet.sbatch` with its Python in containers, as FLEET_PYTHON does it: a stand-in for Apptainer
takes the real one's flags and runs in place; engines and servers are stand-ins, too."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.fleetjob import STUBS, FleetJob

pytestmark = pytest.mark.alone
ROOT = Path(__file__).resolve().parents[2]


def test_a_fleet_in_containers_comes_up_and_leaves_nothing(cluster: Cluster, place: Path) -> None:
    job = FleetJob(cluster, place / "contained")
    images, calls = job.folder / "images", job.folder / "calls"
    images.mkdir()
    (images / "engine.sif").write_text("an image")
    job.submit(
        {
            "FLEET_PYTHON": f"launch/apptainer/run.sh engine {sys.executable}",
            "IMAGE_DIR": str(images),
            "IMAGE_CACHE": str(job.folder / "cache"),
            "IMAGE_BINDS": str(job.folder),
            "IMAGE_GPU": "nv",
            "IMAGE_PASS": "PYTHONPATH",
            "APPTAINER_STANDIN": str(calls),
            "PATH": f"{ROOT}/tests/apptainer/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(STUBS),
        },
        "--nodes=2",
    )
    job.wait_up(120)
    assert job.ready() == 2
    job.end()
    job.wait_state("COMPLETED")
    assert job.left_over() == []
    modules = [call["command"][2] for call in map(json.loads, calls.read_text().splitlines())]
    assert sorted(modules) == sorted(["launch.tier"] * 4 + ["launch.head"] + ["launch.node"] * 2)
