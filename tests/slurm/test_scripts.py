"""The scripts themselves: Bash's and shellcheck's opinion, and the options sbatch is given."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
SCRIPTS = sorted(
    path for pattern in ("*.sh", "*.sbatch", "*.env.example") for path in LAUNCH.rglob(pattern)
)
JOBS = [path for path in SCRIPTS if path.suffix == ".sbatch"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_can_read_it(script: Path) -> None:
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: apt install shellcheck")
    words = ["shellcheck", "--shell=bash", "--external-sources", f"--source-path={LAUNCH.parent}"]
    # In a file of settings nothing is used and everything is read elsewhere.
    words += ["--exclude=SC2034"] if script.suffix == ".example" else []
    done = subprocess.run([*words, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.alone
@pytest.mark.parametrize("script", JOBS, ids=lambda path: path.name)
def test_sbatch_takes_its_options(cluster: Cluster, script: Path) -> None:
    """`--test-only` parses the options and plans the job, and submits nothing."""
    cluster.run("sbatch", "--test-only", f"--chdir={LAUNCH.parent}", str(script))
    assert cluster.run("squeue", "-h") == ""
