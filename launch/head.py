"""The first node's part: the router, and what the user is told.

    python -m launch.head      settings from the environment (see `site`)

Starts the router, waits until every replica is ready and says where the fleet answers and how to
reach it from outside; says at intervals how far it is, and after FLEET_START_SECONDS goes on with
what there is. The URL also stands in the file `url` beside the logs. SIGTERM drains the router, and
so does the end of standard input where `--held` is given.
Exit status: 0 told to end, 1 the router cannot be kept running or nothing became ready, 2 a setting
is wrong.
"""

from __future__ import annotations

import enum
import getpass
import json
import os
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from bench.demo.fleet import free_ports
from launch import commands, facts
from launch.leftovers import make_scratch
from launch.node import stop_event
from launch.parts import Part, stop_parts
from launch.plan import plan_node
from launch.premises import check_router_port
from launch.restarts import Restarts
from launch.site import Site, SiteError

TICK_SECONDS = 1.0
SAY_SECONDS = 30.0
ASK_SECONDS = 5.0
DRAIN_EXTRA_SECONDS = 5.0


class Phase(enum.Enum):
    """How far a fleet is."""

    STARTING = enum.auto()
    UP = enum.auto()
    """All replicas are ready, or the time for it is over and some are."""
    HOPELESS = enum.auto()


class Progress:
    """What is said of a fleet that comes up. Pure: counts and times in, lines out."""

    def __init__(self, expected: int, start_seconds: float, now: float) -> None:
        self._expected, self._start_seconds = expected, start_seconds
        self._began = self._said_at = now

    def saw(self, ready: int, now: float) -> tuple[Phase, list[str]]:
        """Called every tick while STARTING."""
        after = f"{ready} of {self._expected} replicas ready after {now - self._began:.0f} s"
        if ready >= self._expected:
            return Phase.UP, [after]
        if now - self._began > self._start_seconds:
            phase = Phase.UP if ready else Phase.HOPELESS
            return phase, [f"only {after}; the logs of the others say why"]
        if now - self._said_at >= SAY_SECONDS:
            self._said_at = now
            return Phase.STARTING, [after]
        return Phase.STARTING, []


def welcome(address: str, port: int, site: Site) -> list[str]:
    """How the fleet is used, from the cluster and from outside."""
    url = f"http://{address}:{port}"
    key = ' -H "Authorization: Bearer $(cat KEY_FILE)"' if site.api_key_file else ""
    job, user = os.environ.get("SLURM_JOB_ID", "JOB"), getpass.getuser()
    return [
        f"URL: {url}/v1",
        f"from your own machine: ssh -N -L {port}:{address}:{port} {user}@LOGIN_NODE",
        f"then: curl http://localhost:{port}/v1/models{key}",
        f"page with load, hits and decisions: {url}/",
        f"logs: {site.logs}",
        f"end it with: scancel --batch --signal=TERM {job}   (drains; plain scancel does not)",
    ]


def ready_count(port: int) -> int:
    """Replicas that take requests, by the router; 0 while it does not answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{commands.LOOPBACK}:{port}/ready", timeout=ASK_SECONDS) as answer:
            return int(json.loads(answer.read(1 << 16))["replicas_ready"])
    except (OSError, ValueError, KeyError):
        return 0


def say(*lines: str) -> None:
    """Each with the time, into the job's output."""
    for line in lines:
        print(f"{time.strftime('%H:%M:%S')} fleet: {line}", flush=True)


class Head:
    """The router's process, started again when it ends by itself."""

    def __init__(self, site: Site, scratch: Path) -> None:
        self._site, self._scratch = site, scratch
        self.port = site.router_port or free_ports(1)[0]
        self._restarts = Restarts(site.restarts_max)
        self._part: Part | None = None
        self._start_at: float | None = 0.0

    def tick(self, now: float) -> bool:
        """Keeps the router running; False when it ends too often."""
        if self._part is not None and self._part.exit_code is not None:
            self._start_at = self._restarts.after_end(now)
            again = "" if self._start_at is not None else "; it ended too often: not started again"
            say(f"the router ended ({self._part.exit_code}); see {self._part.log}{again}")
            self._part = None
        if self._part is None and self._start_at is not None and now >= self._start_at:
            log = Path(self._site.logs) / "router.log"
            self._part = Part(commands.router(self._site, self.port), log, self._scratch)
        return self._start_at is not None

    def stop(self) -> None:
        if self._part is not None:
            stop_parts([self._part], self._site.drain_seconds + DRAIN_EXTRA_SECONDS)


def run(site: Site, head: Head, expected: int, address: str, stop: Callable[[float], bool]) -> int:
    """Until `stop`. Returns the exit status."""
    progress = Progress(expected, site.start_seconds, time.monotonic())
    url_file = Path(site.logs) / "url"
    phase, shown = Phase.STARTING, 0
    try:
        while not stop(TICK_SECONDS):
            if not head.tick(time.monotonic()):
                return 1
            ready = ready_count(head.port)
            if phase is Phase.STARTING:
                phase, lines = progress.saw(ready, time.monotonic())
                say(*lines)
                shown = ready
                if phase is Phase.UP:
                    url_file.write_text(f"http://{address}:{head.port}\n")
                    say(*welcome(address, head.port, site))
            elif ready != shown:
                say(f"{ready} of {expected} replicas ready")
                shown = ready
            if phase is Phase.HOPELESS:
                return 1
        say("draining")
        return 0
    finally:
        url_file.unlink(missing_ok=True)
        head.stop()


def main() -> int:
    """The command."""
    stop = stop_event(held="--held" in sys.argv[1:])
    try:
        site = Site.from_environment(os.environ)
        found = facts.gather(site, os.environ)
        each = len(plan_node(site, found).replicas)
        check_router_port(site, found.name)
    except SiteError as error:
        print(f"launch.head: {error}", file=sys.stderr)
        return 2
    expected = each * int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    Path(site.logs).mkdir(parents=True, exist_ok=True)
    scratch = make_scratch(Path(site.scratch))
    try:
        return run(site, Head(site, scratch), expected, found.address, stop.wait)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
