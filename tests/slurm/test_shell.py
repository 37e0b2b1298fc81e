"""The shell on virtual nodes that docs/CLUSTER.md lets people try: it works, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.site import Site
from tests.slurm.cluster import missing_programs, processes_with

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).with_name("site.env")


@pytest.mark.alone
def test_a_command_on_virtual_nodes_runs_jobs_and_its_end_ends_them(tmp_path: Path) -> None:
    if missing := missing_programs():
        pytest.skip(f"{', '.join(missing)}: apt install munge slurmctld slurmd slurm-client")
    script = f"cd {tmp_path}; echo conf $SLURM_CONF; srun hostname >/dev/null && echo ran; "
    script += "sbatch --parsable --wrap 'sleep 600'"
    done = subprocess.run(
        [sys.executable, "-m", "tests.slurm", "bash", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "n1, n2, n3, n4" in done.stdout and "\nran\n" in done.stdout
    assert "cancelling 1 job(s)" in done.stdout
    (conf,) = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("conf ")]
    assert processes_with(conf) == [] and not Path(conf).parents[1].exists()


@pytest.mark.alone
def test_a_node_is_killed_from_within_the_shell_and_the_others_go_on() -> None:
    if missing := missing_programs():
        pytest.skip(f"{', '.join(missing)}: apt install munge slurmctld slurmd slurm-client")
    kill = f"{sys.executable} -m tests.slurm --kill"
    script = f"{kill} n9; srun -w n2 sleep 600 & job=$!; "
    script += "until squeue -h -t running | grep -q n2; do sleep 0.2; done; "
    script += f"{kill} n2; wait $job; "
    script += "pgrep -f 'slurmd -D -N n[123] -f '$SLURM_CONF -a; srun -w n1 echo n1 serves"
    done = subprocess.run(
        [sys.executable, "-m", "tests.slurm", "bash", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "no virtual node n9" in done.stderr and "n2 is gone" in done.stdout
    assert [f"slurmd -D -N n{n} " in done.stdout for n in (1, 2, 3)] == [True, False, True]
    assert "n1 serves" in done.stdout


@pytest.mark.parametrize(("node", "core"), [("n1", "0"), ("n2", "1")])
def test_its_settings_are_those_of_a_fleet_on_cpus(node: str, core: str) -> None:
    words = ["bash", "-c", f"set -a; . {SITE}; env"]
    environ = {
        "FLEET_HOME": "/home/me/sharedfs",
        "SLURMD_NODENAME": node,
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    given = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    site = Site.from_environment(given)
    assert (site.device, site.cores) == ("cpu", core)
    assert site.namespace == "/home/me/sharedfs/.demo/kv"
    assert site.engine_arguments[-1] == "--enable-prompt-tokens-details"
