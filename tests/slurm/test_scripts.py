"""The scripts themselves: Bash's and shellcheck's opinion, and the options sbatch is given."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.slurm.cluster import BINDING_TO_CORES, Cluster

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
SCRIPTS = sorted(
    path for pattern in ("*.sh", "*.sbatch", "*.env.example") for path in LAUNCH.rglob(pattern)
)
ROOT = LAUNCH.parent
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


@pytest.mark.alone
def test_a_nodes_part_has_all_cores_of_the_job_where_slurm_binds_tasks(
    cluster: Cluster, place: Path
) -> None:
    script = place / "cores.sh"
    script.write_text(
        f"#!/usr/bin/env bash\n. {LAUNCH}/slurm/common.sh\necho job $(nproc)\n"
        "start_step part bash -c 'echo part $(nproc)'\nend_step part\n"
    )
    with Cluster(place / "binding", nodes=("n1",), binding=BINDING_TO_CORES) as binding:
        words = ["--wait", "--cpus-per-task=2", f"--output={place}/cores.out", str(script)]
        binding.run("sbatch", *words)
    said = dict(line.split() for line in (place / "cores.out").read_text().splitlines())
    assert said == {"job": "2", "part": "2"}


def run_load_site(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """What a job does first, with these settings."""
    (folder / "site.env").write_text(text)
    given = {"FLEET_SITE": str(folder / "site.env"), "FLEET_HOME": str(ROOT)}
    given |= {"FLEET_LOGS": str(folder / "logs"), "FLEET_PYTHON": "bash"}
    command = f'set -u; . {LAUNCH}/slurm/common.sh; load_site; false; echo "cap $FLEET_CAP"'
    return subprocess.run(
        ["bash", "-c", command],
        env={"PATH": os.environ["PATH"]} | given,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "line", ["FLEET_CAP=10 TiB", "FLEET_MODEL=/models /", "FLEET_CAP = 1", "f() { no-such; }; f"]
)
def test_a_line_that_bash_cannot_run_ends_the_job(tmp_path: Path, line: str) -> None:
    done = run_load_site(tmp_path, f"{line}\nFLEET_L1_GIB=1\n")
    assert done.returncode == 2 and done.stdout == ""
    assert "no setting and no command" in done.stderr


def test_lines_that_only_fail_are_the_sites_own_affair(tmp_path: Path) -> None:
    done = run_load_site(tmp_path, 'FLEET_CAP="10 TiB"\nfalse\nno-such || true\n')
    assert (done.returncode, done.stdout) == (0, "cap 10 TiB\n")
