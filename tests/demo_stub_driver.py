"""A driver that starts two stub replicas, says so, and waits to be ended. Arguments: logs folder.

With `--raise` it fails by itself as soon as they run.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

from bench.demo import processes
from bench.demo.fleet import Fleet
from bench.demo.replica_spec import Ports, ReplicaSpec

processes.ORPHAN_SECONDS = 0.5  # The stubs' children are stubborn by design.

STUB = str(Path(__file__).with_name("demo_stub.py"))


def server_command(spec: ReplicaSpec, ports: Ports) -> list[str]:
    return [sys.executable, STUB, str(ports.server_http), *spec.server_arguments]


def engine_command(spec: ReplicaSpec, ports: Ports) -> list[str]:
    return [sys.executable, STUB, str(ports.engine), *spec.engine_arguments]


def stub_fleet(logs: Path) -> Fleet:
    """Returns a fleet whose engines and servers are stubs."""
    return Fleet(logs, server_command=server_command, engine_command=engine_command)


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
    with stub_fleet(Path(sys.argv[1])) as running:
        replicas = running.start(ReplicaSpec("A", Path("m")), ReplicaSpec("B", Path("m")))
        pids = [pid for replica in replicas for pid in replica.pids.values()]
        print(json.dumps({"pids": pids, "scratch": str(running.scratch)}), flush=True)
        if "--raise" in sys.argv:
            raise RuntimeError("the driver's own mistake")
        time.sleep(600)


if __name__ == "__main__":
    main()
