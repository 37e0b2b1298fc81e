"""Measures the catalog at a million chunks and prints the figures beside what they must be.

    python -m bench.catalog                    # 10^6 chunks in packs of 16
    python -m bench.catalog --chunks 100000 --save catalog.json

Each case runs in a fresh process, so that resident memory is that case's own; results are saved
after each. Exit status 1 when a figure is worse than its limit. Times are this machine's: run it
where nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.catalog.cases import CASES, Numbers
from bench.catalog.data import write_snapshot

LIMITS = {
    "resident_with_ledger_bytes_per_chunk": 150.0,
    "load_total_s": 2.0,
    "lookup_512_hot_p50_us": 500.0,
    "lookup_512_first_p50_us": 2000.0,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.catalog", description=__doc__)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--pack-chunks", type=int, default=16)
    parser.add_argument("--save", type=Path, help="file for the results as JSON")
    parser.add_argument("--case", choices=sorted(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--snapshot", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(CASES[options.case](options.snapshot)))
        return 0
    results: Numbers = {}
    with tempfile.TemporaryDirectory() as scratch:
        snapshot = Path(scratch) / "snapshot"
        write_snapshot(snapshot, options.chunks, options.pack_chunks)
        print(f"{options.chunks:,} chunks, packs of {options.pack_chunks}, {machine()}")
        for case in CASES:
            numbers = measure(case, snapshot)
            results |= numbers
            show(case, numbers)
            if options.save:
                options.save.write_text(json.dumps(described(options, results), indent=2) + "\n")
    missed = [name for name, limit in LIMITS.items() if results[name] > limit]
    for name in missed:
        print(f"over its limit: {name} = {results[name]:,.1f}, may be {LIMITS[name]:,.0f}")
    return 1 if missed else 0


def measure(case: str, snapshot: Path) -> Numbers:
    command = [sys.executable, "-m", "bench.catalog", "--case", case, "--snapshot", str(snapshot)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    numbers: Numbers = json.loads(done.stdout.splitlines()[-1])
    return numbers


def show(case: str, numbers: Numbers) -> None:
    print(case)
    for name, value in numbers.items():
        limit = f"   at most {LIMITS[name]:,.0f}" if name in LIMITS else ""
        print(f"  {name:<42}{value:>14,.1f}{limit}", flush=True)


def described(options: argparse.Namespace, results: Numbers) -> dict[str, object]:
    return {
        "command": "python -m bench.catalog",
        "chunks": options.chunks,
        "pack_chunks": options.pack_chunks,
        "machine": machine(),
        "results": results,
    }


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {platform.machine()}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
