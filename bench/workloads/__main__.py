"""`python -m bench.workloads`: what each workload is made of; or one written as a trace file.

    python -m bench.workloads list [--seed 1]
    python -m bench.workloads write NAME FILE [--seed 1] [--scale 1]

The file has one JSON object a line, as published traces: other tools can replay it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.workloads.registry import WORKLOADS, make
from bench.workloads.workload import Workload


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.workloads", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listed = commands.add_parser("list", help="all of them, with their statistics")
    written = commands.add_parser("write", help="one of them as a trace file")
    written.add_argument("name", choices=list(WORKLOADS))
    written.add_argument("file", type=Path)
    written.add_argument("--scale", type=float, default=1.0)
    for each in (listed, written):
        each.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    if given.command == "list":
        for name in WORKLOADS:
            print(described(make(name, given.seed)))
        return 0
    workload = make(given.name, given.seed, scale=given.scale)
    given.file.write_text(as_trace(workload))
    print(described(workload))
    return 0


def described(workload: Workload) -> str:
    count = len(workload.requests)
    mean = workload.prompt_tokens / max(1, count)
    return (
        f"{workload.name}: {workload.statement}\n"
        f"    {count:,} requests, mean prompt {mean:,.0f} tokens, "
        f"{workload.distinct_blocks:,} distinct blocks, {workload.reuse:.1%} of blocks seen before"
    )


def as_trace(workload: Workload) -> str:
    """The requests as JSON lines."""
    return "".join(
        json.dumps(
            {
                "timestamp": round(each.at * 1000),
                "input_length": each.prompt_tokens,
                "output_length": each.output_tokens,
                "hash_ids": list(each.blocks),
            }
        )
        + "\n"
        for each in workload.requests
    )


if __name__ == "__main__":
    sys.exit(main())
