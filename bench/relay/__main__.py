"""Measures this router beside vllm-router and sglang-router, in front of the same mock replicas.

    python -m bench.relay --venv DIR                        # makes DIR with the peers if need be
    python -m bench.relay --venv DIR --rounds 5 --prefixes 200000 --save relay.json

For each body size and number of connections: processor time of the router for each request and for
each further chunk of a stream, less what it uses idle, and the median time to the first byte that
it adds. Each is warmed up first; routers take turns within each round; what is printed are medians
over rounds. Exit status 1 where a limit is missed. Absolute times are this machine's: run it where
nothing else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import uvloop

from bench.relay.load import drive, requests
from bench.relay.processes import Router, cpu_seconds, replicas, resident_bytes, running

PEERS = ("vllm-router==0.1.17", "sglang-router==0.3.2")
OURS, COMPILED = "ours, ttft", "ours, ttft, compiled"
PAIR = f"{COMPILED}, 2 processes"
ALONE = "ours, relay alone"
THEIRS, DIRECT = "vllm-router, round robin", "no router"
REPLICAS = 4
GAP_MS = 5.0
"""Between two chunks: far enough apart that each is read and written on its own."""
FEW, MANY = 1, 41
"""Chunks in a stream: the difference tells what one costs."""
WARM_REQUESTS, WARM_BYTES = 2000, 64 << 10
"""To each router before anything is measured: what it remembers is then as full as in service, and
grows no more into memory nobody has touched yet."""
IDLE_SECONDS = 3.0
CHUNK_FACTOR_MAX = 1.2
PREFIX_BYTES_MAX = 20 << 20
PREFIX_STEPS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """What clients do."""

    body_bytes: int
    connections: int
    requests: int
    streams: int
    """Long streams, for the cost of chunks."""

    def __str__(self) -> str:
        return f"{self.body_bytes >> 10} KB, {self.connections} connections"


CASES = (
    Case(2 << 10, 1, 1500, 25),
    Case(2 << 10, 32, 4000, 192),
    Case(64 << 10, 1, 800, 25),
    Case(64 << 10, 32, 2000, 192),
)


@dataclass(slots=True)
class Samples:
    """One figure for each round."""

    request_us: list[float] = field(default_factory=list)
    chunk_us: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)


def routers(peers: Path, compiled: Path | None) -> list[Router]:
    """The routers compared, ours first."""
    known = _routers(peers)
    if compiled is not None:
        first = known[0]
        command = (first.command[0], "-P", *first.command[1:])
        modules = str(compiled.resolve())
        known.insert(1, Router(COMPILED, command, True, modules))
        known.insert(2, Router(PAIR, (*command, "--workers", "2"), True, modules))
        alone = next(each for each in known if each.name == ALONE)
        command = (alone.command[0], "-P", *alone.command[1:])
        place = known.index(alone) + 1
        known.insert(place, Router(f"{ALONE}, compiled", command, False, modules))
    return known


def _routers(peers: Path) -> list[Router]:
    ours = (sys.executable, "-m", "router", "--host", "127.0.0.1", "--port", "{port}")
    flags = ("--host", "127.0.0.1", "--port", "{port}", "--worker-urls", "{urls}")
    sglang = (str(peers / "bin" / "python"), "-m", "sglang_router.launch_router", *flags)
    vllm = (str(peers / "bin" / "vllm-router"), *flags)
    return [
        Router(OURS, (*ours, "--replicas", "{urls}"), joins_urls=True),
        Router(
            "ours, round robin",
            (*ours, "--policy", "round-robin", "--replicas", "{urls}"),
            joins_urls=True,
        ),
        Router(
            ALONE,
            (sys.executable, "-m", "bench.relay.alone", "{port}", "{ports}"),
        ),
        Router(THEIRS, (*vllm, "--policy", "round_robin", "--prometheus-port", "{other}")),
        Router(
            "vllm-router, cache aware",
            (*vllm, "--policy", "cache_aware", "--prometheus-port", "{other}"),
        ),
        Router(
            "sglang-router, round robin",
            (*sglang, "--policy", "round_robin", "--prometheus-port", "{other}"),
        ),
    ]


def prepare(folder: Path) -> None:
    """Makes the peers' own environment, once."""
    if not (folder / "bin" / "vllm-router").exists():
        print(f"installing {', '.join(PEERS)} into {folder}", flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "pip", "install", "-q", *PEERS], check=True)


async def measure(
    pid: int | None, port: int, case: Case, idle_rate: float, seed: int
) -> tuple[float, float, float]:
    """(us for each request, us for each chunk, median ms to the first byte)."""

    async def cost(count: int, chunks: int, seed: int) -> tuple[float, list[float]]:
        source = requests(seed, case.body_bytes, chunks, count)
        began, used = time.perf_counter(), cpu_seconds(pid) if pid else 0.0
        tally = await drive(port, case.connections, source)
        used = cpu_seconds(pid) - used if pid else 0.0
        used -= idle_rate * (time.perf_counter() - began)
        if tally.bad or len(tally.first_seconds) != count:
            raise RuntimeError(f"{tally.bad} of {count} requests failed: see the log")
        return used / count * 1e6, tally.first_seconds

    short, first = await cost(case.requests, FEW, seed)
    long, _ = await cost(case.streams, MANY, seed + 1)
    return short, (long - short) / (MANY - FEW), statistics.median(first) * 1e3


async def settle(pid: int) -> float:
    """Processor seconds a router uses in a second without requests."""
    used = cpu_seconds(pid)
    await asyncio.sleep(IDLE_SECONDS)
    return (cpu_seconds(pid) - used) / IDLE_SECONDS


async def flatness(pid: int, port: int, prefixes: int) -> list[int]:
    """Resident bytes after each step of that many different prompts."""
    sizes = []
    for step in range(PREFIX_STEPS):
        await drive(port, 32, requests(1000 + step, 2048, FEW, prefixes // PREFIX_STEPS))
        sizes.append(resident_bytes(pid))
    return sizes


async def main(options: argparse.Namespace) -> int:
    task = asyncio.current_task()
    assert task is not None
    # Else the routers, each in a session of its own, would outlive us.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    results: dict[str, dict[str, Samples]] = {str(case): {} for case in CASES}
    idle: dict[str, float] = {}
    memory: list[int] = []
    chosen = [
        router
        for router in routers(options.venv, options.compiled)
        if any(part in router.name for part in options.only.split("|"))
    ]
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(replicas(REPLICAS, GAP_MS))
        up: dict[str, tuple[int | None, int]] = {DIRECT: (None, ports[0])}
        for router in chosen:
            up[router.name] = stack.enter_context(running(router, ports, options.log))
        for name, (pid, port) in up.items():
            await drive(port, 32, requests(-1, WARM_BYTES, FEW, WARM_REQUESTS))
            idle[name] = await settle(pid) if pid else 0.0
        for number in range(options.rounds):
            for case in CASES:
                order = list(up)
                turn = number % len(order)
                for name in order[turn:] + order[:turn]:
                    pid, port = up[name]
                    figures = await measure(pid, port, case, idle[name], number)
                    samples = results[str(case)].setdefault(name, Samples())
                    for values, figure in zip(
                        (samples.request_us, samples.chunk_us, samples.first_ms),
                        figures,
                        strict=True,
                    ):
                        values.append(figure)
                save(options, results, idle, memory)
            print(f"round {number + 1} of {options.rounds} done", flush=True)
        ours = up.get(OURS)
        if options.prefixes and ours is not None and ours[0] is not None:
            memory = await flatness(ours[0], ours[1], options.prefixes)
            save(options, results, idle, memory)
    show(results, idle, memory, options.prefixes)
    return judge(results, memory)


def save(
    options: argparse.Namespace,
    results: Mapping[str, Mapping[str, Samples]],
    idle: Mapping[str, float],
    memory: list[int],
) -> None:
    if options.save is not None:
        value = {
            "machine": machine(),
            "date": time.strftime("%Y-%m-%d"),
            "rounds": {c: {n: asdict(s) for n, s in by.items()} for c, by in results.items()},
            "idle_cpu": dict(idle),
            "resident_bytes": memory,
        }
        options.save.write_text(json.dumps(value, indent=1) + "\n")


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def show(
    results: Mapping[str, Mapping[str, Samples]],
    idle: Mapping[str, float],
    memory: list[int],
    prefixes: int,
) -> None:
    """Prints tables in Markdown."""
    print(f"\n{machine()}, load {os.getloadavg()[0]:.1f}\n")
    for case, by_name in results.items():
        base = statistics.median(by_name[DIRECT].first_ms)
        print(f"| {case} | us each request | us each chunk | ms added | idle % |")
        print("|---|---|---|---|---|")
        for name, samples in by_name.items():
            if name == DIRECT:
                print(f"| {name} | | | ({base:.2f}) | |")
                continue
            added = statistics.median(samples.first_ms) - base
            print(
                f"| {name} | {statistics.median(samples.request_us):.0f}"
                f" | {statistics.median(samples.chunk_us):.1f} | {added:.2f}"
                f" | {idle[name] * 100:.1f} |"
            )
        print()
    if memory:
        steps = ", ".join(f"{size / 2**20:.1f}" for size in memory)
        print(f"resident MiB over {prefixes:,} different prompts, in {PREFIX_STEPS} steps: {steps}")


def judge(results: Mapping[str, Mapping[str, Samples]], memory: list[int]) -> int:
    """The exit status, and a line for each limit that was missed."""
    missed = []
    for case, by_name in results.items():
        for name in (OURS, COMPILED, PAIR):
            if name in by_name and THEIRS in by_name:
                missed += _judge(f"{case}: {name}", by_name[name], by_name[THEIRS])
    # The first step fills the bounded tables.
    if memory and max(memory[1:]) - memory[0] > PREFIX_BYTES_MAX:
        missed.append(f"memory grew by {(max(memory[1:]) - memory[0]) / 2**20:.0f} MiB")
    for line in missed:
        print(f"over its limit: {line}")
    return 1 if missed else 0


def _judge(which: str, ours: Samples, theirs: Samples) -> list[str]:
    """The limits one of our rows is over; prints where it stands."""
    limits = (
        ("us each request", ours.request_us, theirs.request_us, 1.0),
        ("us each chunk", ours.chunk_us, theirs.chunk_us, CHUNK_FACTOR_MAX),
        ("ms to the first byte", ours.first_ms, theirs.first_ms, 1.0),
    )
    missed = []
    for what, got, limit, factor in limits:
        ratio = statistics.median(got) / statistics.median(limit)
        print(f"{which}: {what}: {ratio:.2f} of vllm-router's")
        if ratio > factor:
            missed.append(f"{which}: {what}: {ratio:.2f}, may be {factor}")
    return missed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m bench.relay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--venv", type=Path, required=True, help="environment of the peers")
    parser.add_argument("--compiled", type=Path, help="also: what `make compile-router` made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefixes", type=int, default=0, help="also: memory over so many prompts")
    parser.add_argument("--only", default="", help="only routers whose names hold A or B: A|B")
    parser.add_argument("--save", type=Path, help="file for the results as JSON")
    parser.add_argument("--log", type=Path, default=Path("/dev/null"), help="the routers' output")
    chosen = parser.parse_args()
    prepare(chosen.venv)
    try:
        sys.exit(uvloop.run(main(chosen)))
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)
