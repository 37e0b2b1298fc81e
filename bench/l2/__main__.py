"""`lmcache bench l2` with our plugin beside `fs` and `fs_native`, in turns, on one directory.

    python -m bench.l2 [--dir DIR] [--turns 5] [--rounds 4] [--save FILE] [--only fs_native,plugin]

Every turn runs each adapter once, in an order that changes, with `--no-skip-verify`; what counts is
the median over all rounds of all turns, so that noise of the machine meets all alike. DIR should
lie on a page cache (tmpfs, or a local disk fast enough not to throttle writers): then this measures
processor cost. Results are saved after each run. Warm-up rounds are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

OPERATIONS = ("Store", "Lookup", "Load")
ADAPTERS = ("fs", "fs_native", "plugin")
WARMUP_ROUNDS = 2
RUN_SECONDS_MAX = 600
REPOSITORY = Path(__file__).resolve().parents[2]
_ROUND = re.compile(r"\[(Store|Lookup|Load)\] Round (\d+): ([\d.]+) ms")


@dataclass(frozen=True, slots=True)
class Case:
    """Keys for each submit, and the size of each."""

    keys: int
    kib: int

    def __str__(self) -> str:
        return (
            f"{self.keys} x {self.kib / 1024:g} MiB"
            if self.kib >= 1024
            else (f"{self.keys} x {self.kib} KiB")
        )


CASES = (Case(64, 4096), Case(256, 512))


@dataclass(slots=True)
class Samples:
    """Milliseconds by round, for one case and adapter."""

    by_operation: dict[str, list[float]] = field(
        default_factory=lambda: {operation: [] for operation in OPERATIONS}
    )

    def median(self, operation: str) -> float:
        return statistics.median(self.by_operation[operation])


def adapter_json(adapter: str, root: str) -> str:
    """The adapter as LMCache's command line wants it."""
    if adapter != "plugin":
        return json.dumps({"type": adapter, "base_path": root})
    return json.dumps(
        {
            "type": "plugin",
            "module_path": "sharedfs_backend.mp",
            "class_name": "SharedFSL2Adapter",
            "adapter_params": {"root": os.path.join(root, "namespace")},
        }
    )


def run_once(adapter: str, case: Case, rounds: int, root: str) -> dict[str, list[float]]:
    """Milliseconds of the measured rounds by operation. RuntimeError unless the data verified."""
    command = [
        *(sys.executable, "-m", "lmcache.cli.main", "bench", "l2", "--no-skip-verify"),
        *("--l2-adapter", adapter_json(adapter, root)),
        *("--num-keys", str(case.keys), "--data-size-kb", str(case.kib)),
        *("--rounds", str(rounds), "--warmup-rounds", str(WARMUP_ROUNDS)),
        *("--lookup-max-hit-rate", "1.0", "--l1-align-bytes", "4096"),
    ]
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )
    if done.returncode or "data verified OK" not in done.stdout:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    found: dict[str, list[float]] = {operation: [] for operation in OPERATIONS}
    for operation, number, milliseconds in _ROUND.findall(done.stdout):
        if int(number) > WARMUP_ROUNDS:
            found[operation].append(float(milliseconds))
    return found


def table(results: dict[str, dict[str, Samples]], adapters: list[str]) -> str:
    """Medians in milliseconds; the ratio is our speed over fs_native's (above 1: faster)."""
    lines = [
        "| case | operation | " + " | ".join(f"{name}, ms" for name in adapters) + " | ratio |"
    ]
    lines.append("|---" * (len(adapters) + 3) + "|")
    for case, by_adapter in results.items():
        for operation in OPERATIONS:
            cells = [f"{by_adapter[name].median(operation):.2f}" for name in adapters]
            ratio = "-"
            if "plugin" in adapters and "fs_native" in adapters:
                native, ours = (
                    by_adapter[name].median(operation) for name in ("fs_native", "plugin")
                )
                ratio = f"{native / ours:.2f}"
            lines.append(f"| {case} | {operation} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", default=None, help="where to make the scratch directory")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--save", type=Path, default=None, help="JSON, written after each run")
    parser.add_argument("--only", default=",".join(ADAPTERS), help="adapters, comma-separated")
    given = parser.parse_args()
    adapters = given.only.split(",")
    if unknown := sorted(set(adapters) - set(ADAPTERS)):
        parser.error(f"--only: no adapter {', '.join(unknown)}; there are {', '.join(ADAPTERS)}")
    if given.dir is not None and not Path(given.dir).is_dir():
        parser.error(f"--dir: {given.dir} is no directory")
    results = {str(case): {name: Samples() for name in adapters} for case in CASES}
    for turn in range(given.turns):
        for case in CASES:
            for name in adapters if turn % 2 else adapters[::-1]:
                root = tempfile.mkdtemp(prefix="bench-l2-", dir=given.dir)
                try:
                    found = run_once(name, case, given.rounds, root)
                finally:
                    shutil.rmtree(root, ignore_errors=True)
                for operation, milliseconds in found.items():
                    results[str(case)][name].by_operation[operation] += milliseconds
                print(f"turn {turn + 1}: {case}, {name}: done", file=sys.stderr)
                if given.save:
                    given.save.write_text(
                        json.dumps(
                            {
                                key: {name: one.by_operation for name, one in value.items()}
                                for key, value in results.items()
                            },
                            indent=1,
                        )
                    )
    print(table(results, adapters))
    return 0


if __name__ == "__main__":
    sys.exit(main())
