"""Launchers: the same driver on many nodes: Ray actors, or processes of this machine.

Ray is imported only where it is used. With a cluster (`ray start --head` on one node, `ray start
--address=HOST:PORT` on the others, then RAY_ADDRESS=auto) actors are spread over the nodes; without
one Ray starts on this machine, and so do all actors. Where Ray is not installed, processes take
their place and are called what they are. Nodes live as long as their fleet, and take one set of
tasks after the other: what starting costs is paid once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from bench.engine.node import Result, Task, answer

RAY, PROCESSES = "Ray actors", "local processes"
REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS_MAX = 600.0


class Fleet(Protocol):
    """Nodes that are up."""

    kind: str

    def run(self, tasks: Sequence[Task]) -> list[Result]:
        """All rounds of all tasks, each on a node of its own. RuntimeError where one failed."""


def ray_problem() -> str:
    """Why there are no Ray actors here; "" if there can be."""
    if importlib.util.find_spec("ray") is None:
        return (
            "Ray is not installed: .venv/bin/pip install --no-deps ray==2.60.0 "
            "(make bench-full does)"
        )
    return ""


@contextlib.contextmanager
def fleet(nodes: int) -> Iterator[Fleet]:
    """So many nodes, of the best kind there is; gone at the end."""
    if ray_problem():
        with _processes(nodes) as processes:
            yield processes
        return
    with _actors(nodes) as actors:
        yield actors


class Processes:
    """Nodes as processes that read tasks from their standard input."""

    kind = PROCESSES

    def __init__(self, started: Sequence[subprocess.Popen[str]]) -> None:
        self._started = started

    def run(self, tasks: Sequence[Task]) -> list[Result]:
        mine = self._started[: len(tasks)]
        for process, task in zip(mine, tasks, strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(task)) + "\n")
            process.stdin.flush()
        return [result for process in mine for result in _results(_line_of(process))]


def _line_of(process: subprocess.Popen[str]) -> str:
    """The next answer of a node; anything else it prints is passed over."""
    assert process.stdout is not None
    while select.select([process.stdout], [], [], SECONDS_MAX)[0]:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"a node ended, with status {process.wait(10)}")
        if line.startswith(("[{", "[]", '{"error"')):
            return line
    raise RuntimeError(f"a node gave no answer within {SECONDS_MAX:.0f} s")


def _results(line: str) -> list[Result]:
    found = json.loads(line)
    if isinstance(found, dict):
        raise RuntimeError(f"a node failed: {found['error']}")
    return [Result(**each) for each in found]


@contextlib.contextmanager
def _processes(nodes: int) -> Iterator[Processes]:
    paths = (str(REPOSITORY), os.environ.get("PYTHONPATH"))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "LMCACHE_LOG_LEVEL": "ERROR",
    }
    command = [sys.executable, "-W", "ignore", "-m", "bench.engine.node", "-"]
    started = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
            env=environment,
        )
        for _ in range(nodes)
    ]
    try:
        yield Processes(started)
    finally:
        for process in started:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End of input is the end of a node; one that works on is killed."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it has gone already
        process.stdin.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


class Actors:
    """Nodes as Ray actors."""

    kind = RAY

    def __init__(self, ray: Any, nodes: int) -> None:
        self._ray = ray
        actor = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_Actor)
        self._actors = [actor.remote() for _ in range(nodes)]

    def run(self, tasks: Sequence[Task]) -> list[Result]:
        mine = self._actors[: len(tasks)]
        pending = [
            actor.answer.remote(json.dumps(asdict(task)))
            for actor, task in zip(mine, tasks, strict=True)
        ]
        lines = self._ray.get(pending, timeout=SECONDS_MAX)
        return [result for line in lines for result in _results(line)]


class _Actor:
    """One node."""

    def answer(self, line: str) -> str:
        return answer(line)


@contextlib.contextmanager
def _actors(nodes: int) -> Iterator[Actors]:
    import ray

    address = os.environ.get("RAY_ADDRESS")
    alone = {} if address else {"num_cpus": max(nodes, os.cpu_count() or 1)}
    ray.init(
        address=address,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}},
        include_dashboard=False if address is None else None,
        log_to_driver=False,
        **alone,
    )
    try:
        yield Actors(ray, nodes)
    finally:
        ray.shutdown()
