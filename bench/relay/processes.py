"""Processes: routers and replicas started as children, and what the kernel says they used.

Processor time is the scheduler's own count in nanoseconds, over all threads of a process and its
children; resident memory is the sum of theirs. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

START_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Router:
    """A router's name in the table and how it is started."""

    name: str
    command: tuple[str, ...]
    """`{port}`, `{other}` (a second one), `{urls}` and `{ports}` (several words) are filled in."""
    joins_urls: bool = False
    """Whether URLs are one argument, with commas."""
    modules: str = ""
    """Where its Python looks for modules first."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def family(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def cpu_seconds(pid: int) -> float:
    """Processor time used so far by a process, its threads and its children."""
    total = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{member}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def resident_bytes(pid: int) -> int:
    """Memory of a process and its children."""
    page = os.sysconf("SC_PAGE_SIZE")
    pages = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
    return pages * page


@contextlib.contextmanager
def replicas(count: int, gap_ms: float) -> Iterator[list[int]]:
    """Mock replicas for the block's time; yields their ports."""
    command = [sys.executable, "-m", "bench.relay.mock"]
    command += ["--replicas", str(count), "--gap-ms", str(gap_ms)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None
    try:
        yield [int(port) for port in process.stdout.readline().split()]
    finally:
        process.stdin.close()
        process.wait(10)


@contextlib.contextmanager
def running(router: Router, ports: Sequence[int], log: Path) -> Iterator[tuple[int, int]]:
    """A router in front of the replicas; yields (pid, port) once it takes requests."""
    port, other = free_port(), free_port()
    urls = [f"http://127.0.0.1:{replica}" for replica in ports]
    urls = [",".join(urls)] if router.joins_urls else urls
    command: list[str] = []
    for word in router.command:
        filled = word.replace("{port}", str(port)).replace("{other}", str(other))
        command += {"{urls}": urls, "{ports}": [*map(str, ports)]}.get(word, [filled])
    paths = os.pathsep.join((router.modules, os.getcwd())) if router.modules else ""
    surroundings = {**os.environ, **({"PYTHONPATH": paths} if paths else {})}
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command, stdout=sink, stderr=sink, start_new_session=True, env=surroundings
        )
    try:
        await_health(port, process)
        yield process.pid, port
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def await_health(port: int, process: subprocess.Popen[bytes]) -> None:
    """Returns when the router lists its model; RuntimeError when it never does."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}: see the log")
        if lists_models(port):
            time.sleep(1.0)  # Health checks of all replicas have run once.
            return
        time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} did not start")


def lists_models(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
