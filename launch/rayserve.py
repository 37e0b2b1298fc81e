"""The fleet as Ray Serve deployments: a `NodePart` on every node, the router in a `Front`.

    python -m launch.rayserve --address HOST:PORT     a Ray over the job's nodes; settings as ever
    python -m launch.rayserve --address HOST:PORT --wait     only waits for all of Ray's nodes

Serve watches and replaces: each deployment holds one process of ours (`launch.node`,
`launch.head`) by its standard input, so that it ends when the actor does, however that happens, and
Serve's health check asks whether it still runs. Requests do not pass through Serve: they go to the
router's own port, which the output names. Runs until SIGTERM.

Ray is imported only when this runs; it is not among this package's dependencies.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launch.commands import python_path
from launch.head import say
from launch.node import stop_event
from launch.site import PREFIX, Site

CHECK_SECONDS = 5.0
RETRY_SECONDS = 2.0
STOP_EXTRA_SECONDS = 20.0


class Held:
    """One of our processes, held by its standard input. What both deployments are."""

    module = ""

    def __init__(self, environment: dict[str, str], log: str) -> None:
        with Path(log.replace("%n", os.environ.get("SLURMD_NODENAME", "node"))).open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module, "--held"],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def check_health(self) -> None:
        """Serve's own name for it: an exception means that this deployment is replaced."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.module} ended with {self._process.returncode}")

    def __del__(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class NodePart(Held):
    """A node's LMCache server and engines."""

    module = "launch.node"


class Front(Held):
    """The router, on the first node."""

    module = "launch.head"


def environment_of(environ: dict[str, str]) -> dict[str, str]:
    """What the actors' processes need beside the environment of Ray's own daemon on their node."""
    names = ("SLURM_JOB_NUM_NODES", "SLURM_JOB_ID")
    passed = {
        name: value
        for name, value in environ.items()
        if (name.startswith(PREFIX) and name != "FLEET_CORES") or name in names
    }
    return passed | {"PYTHONPATH": python_path()}


def deploy(serve: Any, site: Site, nodes: int, environment: dict[str, str]) -> None:
    """Two applications, placed: a part on each node, the front on this one."""
    common = {
        "health_check_period_s": CHECK_SECONDS,
        "graceful_shutdown_timeout_s": site.stop_seconds + STOP_EXTRA_SECONDS,
    }
    logs = site.logs
    parts = serve.deployment(
        NodePart,
        num_replicas=nodes,
        max_replicas_per_node=1,
        ray_actor_options={"num_cpus": 0, "resources": {"node_part": 1}},
        **common,
    )
    front = serve.deployment(
        Front, ray_actor_options={"num_cpus": 0, "resources": {"front": 1}}, **common
    )
    serve.run(parts.bind(environment, f"{logs}/%n-part.log"), name="parts", route_prefix=None)
    serve.run(front.bind(environment, f"{logs}/front.log"), name="front", route_prefix=None)


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m launch.rayserve")
    parser.add_argument("--address", required=True, help="of Ray's head")
    parser.add_argument("--wait", action="store_true", help="only wait for Ray's nodes")
    options = parser.parse_args(words)
    stop = stop_event(held=False)
    site = Site.from_environment(os.environ)
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))

    import ray

    if not connect(ray, options.address, nodes, site.start_seconds, stop.wait):
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):  # Ray has set handlers of its own
        signal.signal(number, lambda *_: stop.set())
    if options.wait:
        ray.shutdown()
        return 0
    from ray import serve

    try:
        deploy(serve, site, nodes, environment_of(dict(os.environ)))
        say("deployed with Ray Serve; the front's log says the URL")
        return follow(Path(site.logs) / "front.log", stop.wait)
    finally:
        serve.shutdown()
        ray.shutdown()


def connect(
    ray: Any, address: str, nodes: int, seconds: float, stop: Callable[[float], bool]
) -> bool:
    """Whether Ray is there with all its nodes, in time. Its daemons start beside this process."""
    deadline = time.monotonic() + seconds
    while not stop(RETRY_SECONDS):
        try:
            if not ray.is_initialized():
                ray.init(address=address, log_to_driver=False)
            if sum(node["Alive"] for node in ray.nodes()) >= nodes:
                return True
        except ConnectionError as error:
            say(f"Ray is not there yet: {error}")
        if time.monotonic() > deadline:
            say(f"Ray has not all of its {nodes} nodes after {seconds:.0f} s; see *-ray.log")
            return False
    return False


def follow(path: Path, stop: Callable[[float], bool]) -> int:
    """Passes on what the front says, until `stop`."""
    shown = 0
    while not stop(1.0):
        with path.open("rb") as lines:
            lines.seek(shown)
            new = lines.read()
        shown += len(new)
        sys.stdout.write(new.decode(errors="replace"))
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
