"""How well the throttled mount keeps what it is asked: each control, asked against got.

Latencies are those of single calls, one after the other, each class alone; what the mount costs
with nothing asked is the first thing measured, and is part of every later figure. Then 64 calls at
once, a bandwidth limit with four readers or writers, jitter, and a fault at the n-th operation.
Load on the machine makes figures worse, never better: a line says how busy it was.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.throttle.mount import Throttle

LATENCIES_MS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
CALLS_MAX = 200
SECONDS_MAX = 0.4
"""For each latency of each class: so many calls, or as many as fit into this."""

CONCURRENT = 64
CONCURRENT_MS = 10.0
CONCURRENT_LIMIT_MS = 15.0
ROUNDS = 7
BANDWIDTHS_MB_S = (100.0, 400.0)
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Measured:
    """One control. `got` is a median, `worst` the 95th percentile or the slowest of a few."""

    what: str
    unit: str
    asked: float
    got: float
    worst: float
    note: str = ""

    def __str__(self) -> str:
        figures = f"{self.asked:9.3f} {self.got:9.3f} {self.worst:9.3f} {self.unit:5}"
        return f"{self.what:34} {figures} {self.note}".rstrip()


HEADER = f"{'':34} {'asked':>9} {'got':>9} {'worst':>9}"


def measure(mount: Throttle) -> list[Measured]:
    """All of it, in about half a minute. Nothing else should use the mount meanwhile."""
    before = mount.control.settings()
    scratch = mount.mountpoint / f"accuracy-{os.getpid()}"
    try:
        mount.set()
        scratch.write_bytes(bytes(MIB))
        with _opened(scratch) as fd:
            return [
                *_latencies(mount, scratch, fd),
                _concurrent(mount, scratch),
                *_bandwidths(mount, scratch),
                _jitter(mount, fd),
                _fault(mount, fd),
            ]
    finally:
        mount.clear()
        mount.control.change(before)
        with suppress(OSError):
            scratch.unlink()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


def _latencies(mount: Throttle, path: Path, fd: int) -> Iterator[Measured]:
    """A call of each class that is one request of it; other classes cost nothing meanwhile."""
    calls: dict[str, Callable[[], object]] = {
        "metadata": lambda: os.stat(mount.mountpoint),
        "open": lambda: os.close(os.open(path, os.O_RDONLY)),
        "read": lambda: os.pread(fd, 4096, 0),
        "write": lambda: os.pwrite(fd, bytes(4096), 0),
        "close": lambda: os.close(os.dup(fd)),
    }
    for name, call in calls.items():
        for asked in LATENCIES_MS:
            mount.set(latency_ms={name: asked})
            taken = _times(call)
            yield Measured(f"{name} latency", "ms", asked, statistics.median(taken), _high(taken))


def _times(call: Callable[[], object]) -> list[float]:
    """Milliseconds of single calls."""
    taken: list[float] = []
    end = time.perf_counter() + SECONDS_MAX
    while len(taken) < CALLS_MAX and (len(taken) < 5 or time.perf_counter() < end):
        begun = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begun) * 1e3)
    return taken


def _high(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


def _concurrent(mount: Throttle, path: Path) -> Measured:
    """From the moment all may begin to the end of the last; the fastest round is the mount's own,
    since a busy machine delays the callers too."""
    mount.set(latency_ms={"read": CONCURRENT_MS})
    fds = [os.open(path, os.O_RDONLY) for _ in range(CONCURRENT)]
    try:
        rounds = sorted(_together([_reader(fd) for fd in fds]) for _ in range(ROUNDS))
    finally:
        for fd in fds:
            os.close(fd)
    kept = "within" if rounds[0] <= CONCURRENT_LIMIT_MS else "NOT within"
    return Measured(
        f"{CONCURRENT} reads at once",
        "ms",
        CONCURRENT_MS,
        statistics.median(rounds),
        rounds[-1],
        f"fastest of {ROUNDS}: {rounds[0]:.2f}, {kept} {CONCURRENT_LIMIT_MS:g}",
    )


def _reader(fd: int) -> Callable[[], object]:
    return lambda: os.pread(fd, 4096, 0)


def _together(calls: list[Callable[[], object]]) -> float:
    """Milliseconds until all calls, each on a thread of its own, have ended."""
    barrier = threading.Barrier(len(calls) + 1)

    def work(call: Callable[[], object]) -> None:
        barrier.wait()
        call()

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    barrier.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - begun) * 1e3


def _bandwidths(mount: Throttle, path: Path) -> Iterator[Measured]:
    """Four files' worth in pieces of 1 MiB, about a third of a second of it."""
    piece = bytes(MIB)
    for name in ("read", "write"):
        for asked in BANDWIDTHS_MB_S:
            pieces = max(1, round(asked * 1e6 / 3 / 4 / MIB))
            mount.set()
            paths = [path.with_name(f"{path.name}-{number}") for number in range(4)]
            for one in paths:
                one.write_bytes(piece * pieces)
            mount.set(bandwidth_mb_s=asked)
            rates = [_rate(name, paths, pieces) for _ in range(3)]
            mount.set()
            for one in paths:
                one.unlink()
            yield Measured(
                f"{name} bandwidth, 4 at once", "MB/s", asked, statistics.median(rates), min(rates)
            )


def _rate(name: str, paths: list[Path], pieces: int) -> float:
    def work(path: Path) -> None:
        into = bytearray(MIB)
        with _opened(path) as fd:
            for number in range(pieces):
                if name == "read":
                    os.preadv(fd, [into], number * MIB)
                else:
                    os.pwrite(fd, into, number * MIB)

    with ThreadPoolExecutor(len(paths)) as pool:
        begun = time.perf_counter()
        list(pool.map(work, paths))
        return len(paths) * pieces * MIB / 1e6 / (time.perf_counter() - begun)


def _jitter(mount: Throttle, fd: int) -> Measured:
    """The spread of a uniform jitter: from its 5th to its 95th percentile are nine tenths."""
    mount.set(latency_ms={"read": 2.0}, jitter_ms=1.0)
    taken = sorted(_times(lambda: os.pread(fd, 4096, 0)))
    spread = (_high(taken) - taken[int(len(taken) * 0.05)]) / 0.9
    return Measured("jitter of 2 ms reads, whole width", "ms", 2.0, spread, taken[-1] - taken[0])


def _fault(mount: Throttle, fd: int) -> Measured:
    mount.set()
    mount.fail("EIO", of="read", at=5)
    for number in range(1, 10):
        try:
            os.pread(fd, 1, 0)
        except OSError:
            return Measured("EIO at read number", "", 5, number, number)
    return Measured("EIO at read number", "", 5, 0, 0, "did not come")
