"""A node's part of a fleet: one LMCache server, R engines, an announcer beside each.

    python -m launch.node      settings from the environment (see `site`)

Runs until its standard input ends, SIGTERM or SIGINT; then it withdraws the replicas, stops the
engines, then the server, and leaves no process, shared memory or scratch file. Standard input,
because Slurm sends signals to a step's every process, engines included, in no order; the end of
input reaches this process alone. What ends by itself is started again (`restarts`), as is what does
not answer within twice FLEET_START_SECONDS; a server takes its engines with it. Every start takes
fresh ports unless the site fixes them: nodes may share one address. Exit status: 0 told to end,
1 nothing here can be kept running, 2 a setting is wrong.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bench.demo.fleet import free_ports
from launch import commands, facts
from launch.commands import HOSTS_FILE_VARIABLE, Command, ServerPorts
from launch.leftovers import make_scratch, note_segments
from launch.parts import Part, stop_parts
from launch.plan import NodePlan, ReplicaPlan, fixed_ports, plan_node
from launch.premises import check_node
from launch.restarts import SERVER_PAUSE_SECONDS, Restarts
from launch.site import Site, SiteError

log = logging.getLogger("launch.node")

TICK_SECONDS = 1.0
HEALTH_SECONDS = 5.0
NOTE_EVERY_TICKS = 5
ASK_SECONDS = 30.0
"""Between two looks at whether a starting engine answers: one that hangs takes HEALTH_SECONDS."""
START_TIMES_MAX = 2.0
"""FLEET_START_SECONDS after which a part that never answered counts as ended: whoever is only slow
comes up after the fleet has said that it goes on without it."""


class Running(Protocol):
    """What `Node` needs of a part; `Part` is one."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def log(self) -> Path: ...


class Effects(Protocol):
    """What `Node` does to the world."""

    def start(self, name: str, command: Command) -> Running: ...
    def stop(self, parts: Sequence[Running]) -> None: ...
    def ports(self, count: int) -> Sequence[int]: ...
    def is_healthy(self, url: str) -> bool: ...
    def note_segments(self) -> None: ...
    def now(self) -> float: ...


@dataclass(slots=True)
class _Replica:
    plan: ReplicaPlan
    restarts: Restarts
    number: int
    engine: Running | None = None
    announcer: Running | None = None
    port: int = 0
    start_at: float | None = 0.0
    """None: given up."""
    answer_by: float | None = None
    """When the engine must have answered; None: it has."""
    ask_at: float = 0.0


class Node:
    """Starts, watches and stops what a plan says. One thread."""

    def __init__(
        self, site: Site, plan: NodePlan, effects: Effects, *, hosts_file: str = ""
    ) -> None:
        self._site, self._plan, self._effects = site, plan, effects
        self._hosts_file = hosts_file
        self._server: Running | None = None
        self._server_ready = False
        self._server_ports = ServerPorts(0, 0)
        self._server_at: float | None = 0.0
        self._server_by = 0.0
        self._server_restarts = Restarts(site.restarts_max, SERVER_PAUSE_SECONDS)
        self._replicas = [
            _Replica(replica, Restarts(site.restarts_max), number)
            for number, replica in enumerate(plan.replicas)
        ]
        self._ticks = 0

    @property
    def is_hopeless(self) -> bool:
        """Nothing runs here and nothing will be started again."""
        return self._server_at is None or all(r.start_at is None for r in self._replicas)

    def tick(self) -> None:
        """Starts what is due, looks after what ended. Call it every TICK_SECONDS."""
        self._ticks += 1
        now = self._effects.now()
        self._tend_server(now)
        if self._server_ready:
            for replica in self._replicas:
                self._tend(replica, now)
        if self._ticks % NOTE_EVERY_TICKS == 0:
            self._effects.note_segments()

    def stop(self) -> None:
        """Announcers, engines, then the server."""
        replicas, server = self._replicas, self._server
        self._effects.stop([r.announcer for r in replicas if r.announcer])
        self._effects.stop([r.engine for r in replicas if r.engine])
        self._effects.stop([server] if server else [])

    def _tend_server(self, now: float) -> None:
        if self._server is None:
            if self._server_at is not None and now >= self._server_at:
                mp, http = self._ports(range(2))
                self._server_ports = ServerPorts(mp, http)
                command = commands.server(
                    self._site, self._server_ports, hosts_file=self._hosts_file
                )
                self._server = self._effects.start("lmcache", command)
                self._server_by = now + START_TIMES_MAX * self._site.start_seconds
            return
        if self._server.exit_code is not None:
            self._server_ended(self._server, now)
        elif not self._server_ready:
            url = f"http://{commands.LOOPBACK}:{self._server_ports.http}/healthcheck"
            self._server_ready = self._effects.is_healthy(url)
            if self._server_ready:
                log.info("LMCache server ready")
            elif now > self._server_by:
                self._server_ended(self._server, now)

    def _server_ended(self, server: Running, now: float) -> None:
        _say_end(self._plan.name, "LMCache server", server)
        for replica in self._replicas:
            self._stop_replica(replica)
        self._effects.stop([server])
        self._server, self._server_ready = None, False
        self._server_at = self._server_restarts.after_end(now)
        self._say_next("the LMCache server", self._server_at, now)

    def _tend(self, replica: _Replica, now: float) -> None:
        if replica.start_at is None:
            return
        if replica.engine is None:
            if now >= replica.start_at:
                self._start(replica)
            return
        for what, part in (("engine", replica.engine), ("announcer", replica.announcer)):
            hangs = what == "engine" and not self._answers(replica, now)
            if part is not None and (part.exit_code is not None or hangs):
                _say_end(replica.plan.name, what, part)
                self._stop_replica(replica)
                replica.start_at = replica.restarts.after_end(now)
                self._say_next(replica.plan.name, replica.start_at, now)
                return

    def _answers(self, replica: _Replica, now: float) -> bool:
        """False when an engine that should have come up by now never answered. Once it did it is
        left alone: a busy one may well be silent just when its time to start is over."""
        if replica.answer_by is None:
            return True
        is_late = now > replica.answer_by
        if is_late or now >= replica.ask_at:
            replica.ask_at = now + ASK_SECONDS
            url = f"http://{self._plan.address}:{replica.port}/health"
            if self._effects.is_healthy(url):
                replica.answer_by = None
        return replica.answer_by is None or not is_late

    def _start(self, replica: _Replica) -> None:
        (replica.port,) = self._ports([2 + replica.number])
        arguments = (self._site, self._plan, replica.plan, self._server_ports, replica.port)
        name = replica.plan.name.rpartition("-")[2]
        replica.engine = self._effects.start(f"engine-{name}", commands.engine(*arguments))
        replica.announcer = self._effects.start(f"announce-{name}", commands.announcer(*arguments))
        now = self._effects.now()
        replica.answer_by = now + START_TIMES_MAX * self._site.start_seconds
        replica.ask_at = now + ASK_SECONDS
        log.info(
            "%s: starting at http://%s:%d", replica.plan.name, self._plan.address, replica.port
        )

    def _stop_replica(self, replica: _Replica) -> None:
        self._effects.stop([replica.announcer] if replica.announcer else [])
        self._effects.stop([replica.engine] if replica.engine else [])
        replica.engine = replica.announcer = None

    def _ports(self, numbers: Sequence[int]) -> Sequence[int]:
        """Ports of these places in the node's row of fixed ones, or free ones."""
        if not self._site.port_first:
            return self._effects.ports(len(numbers))
        row = fixed_ports(self._site.port_first, len(self._replicas))
        return [row[number] for number in numbers]

    @staticmethod
    def _say_next(what: str, at: float | None, now: float) -> None:
        if at is None:
            log.error("%s ended too often: not started again", what)
        else:
            log.info("%s: started again in %.0f s", what, at - now)


def _say_end(owner: str, what: str, part: Running) -> None:
    if part.exit_code is None:
        log.error("%s: its %s has not answered since it was started; see %s", owner, what, part.log)
    else:
        log.error("%s: its %s ended (%s); see %s", owner, what, part.exit_code, part.log)


class Machine:
    """`Effects` on this machine."""

    def __init__(self, site: Site, name: str, scratch: Path) -> None:
        self._site, self._name, self._scratch = site, name, scratch
        self._parts: list[Part] = []
        self._key = Path(site.api_key_file).read_text().strip() if site.api_key_file else ""

    def start(self, name: str, command: Command) -> Part:
        if self._key and name.startswith(("engine", "announce")):
            command = replace(
                command, environment={**command.environment, "VLLM_API_KEY": self._key}
            )
        path = Path(self._site.logs) / f"{self._name}-{name}.log"
        part = Part(command, path, self._scratch)
        self._parts.append(part)
        return part

    def stop(self, parts: Sequence[Running]) -> None:
        ours = [part for part in self._parts if part in parts]
        self._parts = [part for part in self._parts if part not in parts]
        stop_parts(ours, self._site.stop_seconds / 2, beside=self._parts)

    def ports(self, count: int) -> Sequence[int]:
        return free_ports(count)

    def is_healthy(self, url: str) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(url, timeout=HEALTH_SECONDS) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def note_segments(self) -> None:
        for part in self._parts:
            part.note_segments()
        note_segments(self._scratch, {s for part in self._parts for s in part.segments})

    def now(self) -> float:
        return time.monotonic()


def stop_event(*, held: bool = True) -> threading.Event:
    """Set at SIGTERM or SIGINT and, where `held`, at the end of standard input."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def read() -> None:
        while os.read(0, 4096):
            pass
        stop.set()

    if held:
        threading.Thread(target=read, daemon=True).start()
    return stop


def run(node: Node, stop: Callable[[float], bool]) -> int:
    """Until `stop`, or until nothing can be kept running. Returns the exit status."""
    try:
        while not node.is_hopeless:
            node.tick()
            if stop(TICK_SECONDS):
                return 0
        return 1
    finally:
        node.stop()


def main() -> int:
    """The command."""
    stop = stop_event()
    name = os.environ.get("SLURMD_NODENAME", "node")
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s {name}: %(message)s", stream=sys.stderr
    )
    try:
        site = Site.from_environment(os.environ)
        plan = plan_node(site, facts.gather(site, os.environ))
        check_node(site, plan.name, len(plan.replicas))
    except SiteError as error:
        print(f"launch.node: {error}", file=sys.stderr)
        return 2
    hosts_file = os.environ.get(HOSTS_FILE_VARIABLE, "")
    scratch = make_scratch(Path(site.scratch))
    log.info("%s", json.dumps([r.name for r in plan.replicas]))
    try:
        node = Node(site, plan, Machine(site, plan.name, scratch), hosts_file=hosts_file)
        return run(node, stop.wait)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
