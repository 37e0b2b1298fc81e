"""A job of `fleet.sbatch` on the virtual cluster: its settings, its output, what it may not leave.

Must not know: what is tested. Everything a job makes lies below one folder: the namespace, logs,
scratch and Slurm's output; a leak is a process that works in there, a file in scratch, a mount, or
a shared-memory segment that such a process had mapped.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bench.demo.processes import shared_segments
from bench.demo.replica_spec import REPOSITORY
from launch.leftovers import SEGMENTS
from tests.slurm.cluster import Cluster, ClusterError, processes_with

STUBS = Path(__file__).with_name("stubs")
ENDED = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL"}

DEFAULTS = {
    "FLEET_DEVICE": "cpu",
    "FLEET_INTERFACE": "lo",  # virtual nodes share one address
    "FLEET_ROUTER_PORT": "0",
    "FLEET_L1_GIB": "1",
    "FLEET_LEASE_SECONDS": "4",
    "FLEET_STOP_SECONDS": "8",
    "FLEET_PYTHON": sys.executable,
}


class FleetJob:
    """One submitted job. Not thread-safe."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.logs, self.scratch = folder / "logs", folder / "scratch"
        self.namespace, self.output = folder / "namespace", folder / "fleet.out"
        self.scratch.mkdir(parents=True)
        (folder / "model").mkdir()
        self.job_id = 0
        self._segments: set[str] = set()

    def write_site(self, settings: Mapping[str, str], *, stubs: bool = True) -> Path:
        """The site's file; `settings` come over the defaults of these tests."""
        values = DEFAULTS | {
            "FLEET_NAMESPACE": str(self.namespace),
            "FLEET_LOGS": str(self.logs),
            "FLEET_SCRATCH": str(self.scratch),
            "FLEET_MODEL": str(self.folder / "model"),
            "TMPDIR": str(self.scratch),
        }
        if stubs:
            values["PYTHONPATH"] = str(STUBS)
        lines = [f"{name}='{value}'" for name, value in (values | dict(settings)).items()]
        # One core for each of two nodes that share two.
        lines.append("case ${SLURMD_NODENAME:-} in n2|n4) FLEET_CORES=1;; *) FLEET_CORES=0;; esac")
        path = self.folder / "site.env"
        path.write_text("\n".join(lines) + "\n")
        return path

    def submit(
        self,
        settings: Mapping[str, str],
        *words: str,
        script: str = "fleet",
        stubs: bool = True,
        arguments: Sequence[str] = (),
    ) -> None:
        """`words` are sbatch's, `arguments` the script's."""
        site = self.write_site(settings, stubs=stubs)
        command = ["sbatch", "--parsable", f"--output={self.output}", f"--chdir={REPOSITORY}"]
        command += [*words, str(REPOSITORY / "launch" / "slurm" / f"{script}.sbatch")]
        command += arguments
        environment = {"FLEET_SITE": str(site), "FLEET_HOME": str(REPOSITORY)}
        self.job_id = int(self.cluster.run(*command, environment=environment))

    @property
    def state(self) -> str:
        return self.cluster.job(self.job_id)["JobState"]

    @property
    def node_names(self) -> list[str]:
        listed = self.cluster.job(self.job_id)["NodeList"]
        return self.cluster.run("scontrol", "show", "hostnames", listed).split()

    @property
    def said(self) -> str:
        """The job's output so far."""
        return self.output.read_text() if self.output.exists() else ""

    @property
    def url(self) -> str:
        """The router's, once it is said; empty before."""
        with suppress(OSError):
            return (self.logs / "url").read_text().strip()
        return ""

    def wait(self, done: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """As the cluster's; the error also shows the job's output and logs. Meanwhile the
        segments are noted that processes of the job map."""

        def look() -> bool:
            self._segments |= shared_segments(pid for pid, _ in _working_in(self.folder))
            return done()

        try:
            self.cluster.wait(look, what, seconds)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.said}\n{self.log_ends()}") from None

    def wait_up(self, seconds: float) -> None:
        """Until the fleet has said its URL. Raises ClusterError when the job ends instead."""
        self.wait(lambda: bool(self.url) or self.state in ENDED, "the fleet is up", seconds)
        assert self.url, f"{self.state}\n{self.said}\n{self.log_ends()}"

    def wait_noted(self) -> None:
        """Until the nodes have written down every segment: then a killed one's can be removed."""

        def noted() -> bool:
            lists = [path.read_text() for path in self.scratch.rglob(SEGMENTS)]
            found = {name for text in lists for name in json.loads(text)}
            there = {path for path in self._segments if os.path.exists(path)}
            return bool(there) and there <= found

        self.wait(noted, "every segment is noted")

    def wait_state(self, state: str, seconds: float = 60.0) -> None:
        self.wait(lambda: self.state == state, f"the job is {state}", seconds)

    def replicas(self) -> dict[str, dict[str, object]]:
        """What the router says of each replica, by its id."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.url}/replicas", timeout=10) as answer:
            return {row["id"]: row for row in json.loads(answer.read())["replicas"]}

    def ready(self) -> int:
        """Replicas that take requests now."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/ready", timeout=10) as answer:
                return int(json.loads(answer.read())["replicas_ready"])
        except OSError:
            return 0

    def starts(self) -> list[tuple[str, str]]:
        """(replica, its id) in the order in which they were started, by the job's output."""
        return re.findall(r"(n\d-\d): starting at http://(\S+)", self.said)

    def cancel(self) -> None:
        """At once, as `scancel JOB` does."""
        self.cluster.run("scancel", str(self.job_id))

    def end(self) -> None:
        """As a user is told to: drains."""
        self.cluster.run("scancel", "--batch", "--signal=TERM", str(self.job_id))

    def pids(self) -> list[int]:
        """Its processes, as far as their environment tells."""
        return processes_with(self.cluster.environment["SLURM_CONF"], job_id=self.job_id)

    def left_over(self) -> list[str]:
        """What the job left beside its logs and its namespace; empty is right."""
        found = [f"process {pid}" for pid in self.pids()]
        found += [f"process {pid} works in {cwd}" for pid, cwd in _working_in(self.folder)]
        found += [f"file {path}" for path in self.scratch.rglob("*")]
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        found += [f"mount {mount}" for mount in mounts if f" {self.folder}/" in mount]
        return found + [path for path in sorted(self._segments) if os.path.exists(path)]

    def log_ends(self) -> str:
        return "\n".join(
            f"{path.name}:\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])
            for path in sorted(self.logs.glob("*"))
            if path.is_file()
        )


def _working_in(folder: Path) -> list[tuple[int, str]]:
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit():
                cwd = os.readlink(f"/proc/{name}/cwd")
                if cwd.startswith(f"{folder}/"):
                    found.append((int(name), cwd))
    return found
