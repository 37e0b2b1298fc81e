"""Measures the router on Ray Serve: what passing through Serve costs, with 1, 2 and 4 ingresses.

    python -m bench.relay.on_serve                # needs `pip install 'ray[serve]'`

Beside it the same load straight at a mock replica, and through one `sharedfs-router`. For each: the
mean and 99th percentile of milliseconds to the first byte of a stream, processor time for each
request (of Serve's proxy and the ingresses, or of the router), and requests a second. Rounds take
turns; medians over rounds are printed. It says nothing of decisions: mock replicas answer at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.relay.load import drive, requests
from bench.relay.processes import Router, cpu_seconds, free_port, replicas, running
from router.serve import build

REPLICAS = 4
GAP_MS = 5.0
BODY_BYTES = 2 << 10
CONNECTIONS = (1, 16)
INGRESSES = (1, 2, 4)
WARM = 50
NAMES = ("ray::ProxyActor", "ray::ServeReplica")
Figures = tuple[float, float, float, float]


def pids_of_serve() -> list[int]:
    """Serve's proxy and the ingresses on this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_text().startswith(NAMES):
                found.append(int(entry.name))
    return found


async def measure(pids: Sequence[int], port: int, connections: int, count: int) -> Figures:
    """(mean ms, p99 ms, us of processor for each request, requests a second)."""
    await drive(port, connections, requests(1, BODY_BYTES, 1, WARM))
    used, began = sum(map(cpu_seconds, pids)), time.perf_counter()
    tally = await drive(port, connections, requests(2, BODY_BYTES, 1, count))
    seconds, used = time.perf_counter() - began, sum(map(cpu_seconds, pids)) - used
    if tally.bad or len(tally.first_seconds) != count:
        raise RuntimeError(f"{tally.bad} of {count} requests failed")
    first = sorted(tally.first_seconds)
    p99 = first[int(len(first) * 0.99)]
    return statistics.mean(first) * 1e3, p99 * 1e3, used / count * 1e6, count / seconds


@contextlib.contextmanager
def ray_here(port: int) -> Iterator[None]:
    """Ray and Serve on this machine, listening on the port."""
    import ray
    from ray import serve

    with tempfile.TemporaryDirectory(prefix="sfs-ray-") as folder:
        ray.init(
            num_cpus=8,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=200 << 20,
            _temp_dir=folder,
        )
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            yield
        finally:
            serve.shutdown()
            ray.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.relay.on_serve")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=600, help="for each figure")
    options = parser.parse_args()
    rows: dict[tuple[str, int], list[Figures]] = {}

    def keep(name: str, pids: Sequence[int], port: int) -> None:
        for connections in CONNECTIONS:
            figures = asyncio.run(measure(pids, port, connections, options.requests))
            rows.setdefault((name, connections), []).append(figures)
            print(name, connections, *(f"{figure:.2f}" for figure in figures), flush=True)

    command = (sys.executable, "-m", "router", "--host", "127.0.0.1", "--port", "{port}")
    plain = Router("sharedfs-router", (*command, "--replicas", "{urls}"), joins_urls=True)
    serve_port = free_port()
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(replicas(REPLICAS, GAP_MS))
        pid, port = stack.enter_context(running(plain, ports, Path(os.devnull)))
        stack.enter_context(ray_here(serve_port))
        from ray import serve

        urls = ",".join(f"http://127.0.0.1:{each}" for each in ports)
        for _ in range(options.rounds):
            keep("no router", (), ports[0])
            keep("sharedfs-router", (pid,), port)
            for ingresses in INGRESSES:
                serve.run(build({"replicas": urls, "ingresses": str(ingresses)}))
                keep(f"Serve, {ingresses} ingress(es)", pids_of_serve(), serve_port)
    print("\n| | connections | mean ms | p99 ms | us each request | requests/s |")
    print("|---|---|---|---|---|---|")
    for (name, connections), figures in rows.items():
        mean, p99, cpu, rate = (statistics.median(each) for each in zip(*figures, strict=True))
        print(f"| {name} | {connections} | {mean:.2f} | {p99:.2f} | {cpu:.0f} | {rate:.0f} |")
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
