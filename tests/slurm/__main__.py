"""A shell on four virtual Slurm nodes of this machine: `sbatch`, `squeue`, `scancel` work in it.

    python -m tests.slurm [COMMAND ...]        the command instead of a shell
    python -m tests.slurm --kill NODE          in that shell: the node dies, and what runs there

Ends with the shell, and everything with it: jobs are cancelled, daemons stopped, their folder
removed. It can be tried there what docs/CLUSTER.md says; tests/slurm/site.env has the settings.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from bench.demo.processes import stop_sessions
from tests.slurm.cluster import Cluster, ClusterError, missing_programs, sessions_on

JOBS_END_SECONDS = 60.0


def main(words: Sequence[str]) -> int:
    """The shell's (or the command's) exit status."""
    if missing := missing_programs():
        print(
            f"{', '.join(missing)} missing: apt install munge slurmctld slurmd slurm-client",
            file=sys.stderr,
        )
        return 2
    if words and words[0] == "--kill":
        return _kill(words[1:])
    folder = Path(tempfile.mkdtemp(prefix="sfs-slurm-"))  # short: sockets lie below it
    # Ctrl-C is the shell's and its commands'; whoever ends us ends the cluster in order.
    signal.signal(signal.SIGINT, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        with Cluster(folder / "cluster") as cluster:
            print(f"Slurm on virtual nodes {', '.join(cluster.nodes)}; `exit` ends it", flush=True)
            try:
                command = list(words) or [os.environ.get("SHELL") or "bash"]
                return subprocess.run(command, env=cluster.environment, check=False).returncode
            finally:
                _end_jobs(cluster)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _kill(names: Sequence[str]) -> int:
    """In a shell of ours: ends these nodes' processes, slurmd included, by SIGKILL."""
    conf = Path(os.environ.get("SLURM_CONF", ""))
    for name in names:
        if not conf.with_name(f"slurmd-{name}.log").exists():
            print(f"there is no virtual node {name} here", file=sys.stderr)
            return 2
        stop_sessions(sessions_on(conf.parent, name), grace_seconds=0.0)
        print(f"{name} is gone")
    return 0


def _end_jobs(cluster: Cluster) -> None:
    """Cancels what still runs and waits for its own end; the cluster's end ends the rest."""
    try:
        jobs = cluster.run("squeue", "-h", "-o", "%A").split()
        if jobs:
            print(f"cancelling {len(jobs)} job(s)", flush=True)
            cluster.run("scancel", *jobs)
        cluster.wait(lambda: not cluster.run("squeue", "-h"), "jobs have ended", JOBS_END_SECONDS)
    except ClusterError as error:
        print(error, file=sys.stderr)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
