"""Replicas on this machine: one LMCache server and one vLLM engine each, started and stopped whole.

The engine tests and the demo share this. `Fleet` starts replicas, waits until they answer, and
leaves nothing behind: no process, no shared-memory segment, no scratch file.

Must not know: the store, and what is measured.
A vLLM engine without its connector stays healthy and recomputes, so health proves nothing about
reuse: look at its counters.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO

from bench.demo.client import Completion, Metrics, RequestFailed, complete, get_metrics, get_text
from bench.demo.processes import Session, stop_sessions
from bench.demo.replica_spec import (
    REPOSITORY,
    Ports,
    ReplicaSpec,
    child_environment,
    engine_command,
    python_path,
    server_command,
)

START_SECONDS = 600.0  # Engines take 50-90 s on an idle machine, far more on a loaded one.
STOP_SECONDS = 20.0


Command = Callable[[ReplicaSpec, Ports], list[str]]
Part = tuple[subprocess.Popen[bytes], Session]


class FleetError(Exception):
    """A replica could not be started or stopped; the message ends with its log's last lines."""


def free_ports(count: int) -> list[int]:
    """Returns that many different loopback TCP ports that are free now."""
    sockets = []
    try:
        for _ in range(count):
            sock = socket.socket()
            sock.bind(("127.0.0.1", 0))
            sockets.append(sock)
        return [s.getsockname()[1] for s in sockets]
    finally:
        for sock in sockets:
            sock.close()


class Replica:
    """One running replica. Not thread-safe; `start` returns at once, `wait_ready` waits."""

    def __init__(self, spec: ReplicaSpec, fleet: Fleet) -> None:
        self.spec = spec
        self._fleet = fleet
        self._running: dict[str, Part] = {}
        self.ports = Ports(0, 0, 0)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pids(self) -> dict[str, int]:
        """The leaders' pids, by part ("server", "engine")."""
        return {part: process.pid for part, (process, _) in self._running.items()}

    def log_path(self, part: str) -> Path:
        return self._fleet.logs / f"{self.name}-{part}.log"

    def start(self) -> None:
        """Starts the server, then the engine, without waiting for either."""
        self.ports = Ports(*free_ports(3))
        if not self.spec.in_process:
            self.start_server()
        self.start_engine()

    def start_server(self) -> None:
        environment = {**self.spec.environment, **self.spec.server_environment}
        self._spawn("server", self._fleet.server_command(self.spec, self.ports), environment)

    def start_engine(self) -> None:
        environment = dict(self.spec.environment)
        if self.spec.lmcache_config is not None:
            path = self._fleet.scratch / f"{self.name}-lmcache.yaml"
            path.write_text(json.dumps(self.spec.lmcache_config))  # JSON is YAML.
            environment["LMCACHE_CONFIG_FILE"] = str(path)
        self._spawn("engine", self._fleet.engine_command(self.spec, self.ports), environment)

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Waits until both answer; FleetError, with the end of the log, when one does not."""
        deadline = time.monotonic() + seconds
        if "server" in self._running:
            self._wait("server", self.ports.server_http, "/healthcheck", deadline)
        self._wait("engine", self.ports.engine, "/health", deadline)

    def complete(
        self,
        prompt: Sequence[int],
        *,
        tokens_max: int = 16,
        cache_salt: str | None = None,
        model: str | None = None,
    ) -> Completion:
        """Returns one greedy completion of the engine (`model` picks a LoRA by its name)."""
        default = self.spec.served_name or self.spec.model_argument or str(self.spec.model)
        try:
            return complete(
                self.ports.engine,
                model or default,
                prompt,
                tokens_max=tokens_max,
                cache_salt=cache_salt,
            )
        except RequestFailed as error:
            raise FleetError(f"{error}\n{tail(self.log_path('engine'))}") from error

    def engine_metrics(self) -> Metrics:
        return get_metrics(self.ports.engine)

    def server_metrics(self) -> Metrics:
        return get_metrics(self.ports.server_http)

    def prompt_tokens(self, source: str) -> int:
        """Returns the engine's count of prompt tokens by where their KV came from."""
        metrics = self.engine_metrics()
        return round(metrics.total("vllm:prompt_tokens_by_source_total", source=source))

    def stop(self, *, parts: Sequence[str] = ("engine", "server"), kill: bool = False) -> None:
        """Ends the parts named, in that order, and removes the segments they mapped."""
        for part in parts:
            if part in self._running:
                stop_parts([self.take(part)], kill=kill)

    def take(self, part: str) -> Part:
        """Returns a running part for the caller to stop; the replica forgets it."""
        return self._running.pop(part)

    def check_alive(self) -> None:
        """Raises FleetError when a part has ended by itself."""
        for part, (process, _) in self._running.items():
            if process.poll() is not None:
                raise FleetError(
                    f"{self.name}'s {part} ended with exit code {process.returncode}; the end of "
                    f"{self.log_path(part)}:\n{tail(self.log_path(part))}"
                )

    def _spawn(self, part: str, command: list[str], extra: Mapping[str, str]) -> None:
        environment = {**child_environment(self.spec, self._fleet.scratch), **extra}

        def keep(started: Part) -> None:
            self._running[part] = started

        self._fleet.spawn(self.log_path(part), command, environment, keep)

    def _wait(self, part: str, port: int, path: str, deadline: float) -> None:
        while True:
            self.check_alive()
            self._fleet.on_wait()
            try:
                get_text(port, path, timeout_seconds=5.0)
                return
            except RequestFailed as error:
                if time.monotonic() > deadline:
                    raise FleetError(
                        f"{self.name}'s {part} does not answer ({error}); the end of "
                        f"{self.log_path(part)}:\n{tail(self.log_path(part))}"
                    ) from error
            time.sleep(0.5)


class Fleet:
    """Replicas that start together and stop together. A context manager; leaves nothing behind."""

    def __init__(
        self,
        logs: Path,
        on_wait: Callable[[], None] = lambda: None,
        *,
        server_command: Command = server_command,
        engine_command: Command = engine_command,
    ) -> None:
        self.logs = logs
        self.server_command = server_command
        self.engine_command = engine_command
        self.on_wait = on_wait
        self.replicas: dict[str, Replica] = {}
        self._beside: list[Part] = []
        self._keeper: subprocess.Popen[bytes] | None = None
        self.scratch = Path()

    def __enter__(self) -> Fleet:
        self.logs.mkdir(parents=True, exist_ok=True)
        # Short, because engines put sockets into it and their paths are limited to 107 bytes.
        self.scratch = Path(tempfile.mkdtemp(prefix="sfs-", dir=tempfile.gettempdir()))
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "bench.demo.keeper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd=REPOSITORY,
        )
        self._tell(f"folder {self.scratch}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def add(self, spec: ReplicaSpec) -> Replica:
        """Returns a replica of that spec, not yet started."""
        replica = Replica(spec, self)
        self.replicas[spec.name] = replica
        return replica

    def start(self, *specs: ReplicaSpec) -> list[Replica]:
        """Starts replicas side by side and waits until all of them answer."""
        replicas = [self.add(spec) for spec in specs]
        for replica in replicas:
            for part in ("server", "engine"):
                replica.log_path(part).unlink(missing_ok=True)
            replica.start()
        for replica in replicas:
            replica.wait_ready()
        return replicas

    def launch(self, log: Path, command: list[str]) -> Part:
        """Starts a process that belongs to no replica; it is stopped before all of them."""
        environment = {**os.environ, "PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"}
        return self.spawn(log, command, environment, self._beside.append)

    def spawn(
        self,
        log_path: Path,
        command: list[str],
        environment: Mapping[str, str],
        keep: Callable[[Part], None],
    ) -> Part:
        """Starts a process that leads a session of its own; `keep` and the keeper hear of it
        before a signal can end us."""
        with log_path.open("ab") as log:
            log.write(f"$ {' '.join(command)}\n".encode())
            log.flush()
            with signals_held(replay=True):
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    cwd=self.scratch,
                    env=environment,
                )
                session = Session.led_by(process.pid)
                keep((process, session))
                self.note_session(session)
        return process, session

    def close(self) -> None:
        """Stops everything, engines first; then lets the keeper look for what is left."""
        if self._keeper is None:
            return
        keeper, self._keeper = self._keeper, None
        with signals_held(replay=False):
            beside, self._beside = self._beside, []
            stop_parts(beside)
            stop_together(list(self.replicas.values()))
            assert keeper.stdin is not None and keeper.stdout is not None
            keeper.stdin.close()
            report = keeper.stdout.read()
            keeper.stdout.close()
            code = keeper.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)
        if code != 0:
            raise FleetError(f"processes are left that do not end: {report.decode()}")

    def note_session(self, session: Session) -> None:
        """Tells the keeper of a session, before anything in it can go wrong."""
        self._tell(f"session {session.sid} {session.start_ticks}")

    def _tell(self, line: str) -> None:
        assert self._keeper is not None and self._keeper.stdin is not None
        self._keeper.stdin.write(line.encode() + b"\n")
        self._keeper.stdin.flush()


def stop_together(replicas: Sequence[Replica]) -> None:
    """Stops the engines of all replicas at once, then their servers."""
    for part in ("engine", "server"):
        stop_parts([r.take(part) for r in replicas if part in r.pids])


def stop_parts(parts: Sequence[Part], *, kill: bool = False) -> None:
    """Ends processes with all their children, and removes the segments they mapped."""

    def reap() -> None:
        for process, _ in parts:
            process.poll()

    grace = 0.0 if kill else STOP_SECONDS
    stop_sessions([session for _, session in parts], grace_seconds=grace, reap=reap)
    for process, _ in parts:
        process.wait(STOP_SECONDS)


@contextmanager
def signals_held(*, replay: bool) -> Iterator[None]:
    """Puts off Ctrl-C and SIGTERM during the block; afterwards they are sent again or dropped.

    Starting: what has been started is noted first. Clearing up: one signal began it, a second must
    not interrupt it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    signums = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    held = {s: signal.signal(s, lambda signum, _: caught.append(signum)) for s in signums}
    try:
        yield
    finally:
        for signum, handler in held.items():
            signal.signal(signum, handler)
        if caught and replay:
            signal.raise_signal(caught[0])


def tail(path: Path, lines: int = 25) -> str:
    """Returns the last lines of a log, or a sentence saying that there is none."""
    try:
        handle: IO[bytes]
        with path.open("rb") as handle:
            handle.seek(max(0, path.stat().st_size - 16384))
            text = handle.read().decode(errors="replace")
    except OSError as error:
        return f"({path} cannot be read: {error})"
    return "\n".join(f"    | {line}" for line in text.splitlines()[-lines:])
