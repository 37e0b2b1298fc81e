"""fio on a directory: what plain readers and writers get from it, with our block size and threads.

Each writing thread has a file of its own, as each of our packs has one writer; reading threads
share one file that was laid out before, each its own part of it. Figures are fio's own.
"""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN_SECONDS_MAX = 300.0
LAID_OUT = "laid-out"


@dataclass(frozen=True, slots=True)
class Plan:
    """Blocks in bytes; `total` over all threads, rounded down to whole blocks."""

    threads: int
    block: int
    total: int

    @property
    def each(self) -> int:
        return max(1, self.total // self.threads // self.block) * self.block


@dataclass(frozen=True, slots=True)
class Moved:
    """What fio reports: bytes, seconds, and processor seconds of its threads."""

    moved: int
    seconds: float
    cpu_seconds: float

    @property
    def mb_s(self) -> float:
        return self.moved / self.seconds / 1e6


class FioFailed(Exception):
    """fio ended with an error; the text has it."""


def lay_out(folder: Path, total: int) -> None:
    """The file that is read, unless it is there."""
    path = folder / LAID_OUT
    if path.exists() and path.stat().st_size == total:
        return
    block = random.Random(1).randbytes(1 << 20)
    with path.open("wb") as file:
        for _ in range(total // len(block)):
            file.write(block)


def run(folder: Path, operation: str, plan: Plan) -> Moved:
    """`operation` is "read" or "write". Raises FioFailed."""
    where = ["--create_on_open=1"]
    if operation == "read":
        where = [f"--filename={LAID_OUT}", f"--offset_increment={plan.each}"]
    command = [
        *("fio", "--name=ceiling", f"--rw={operation}", f"--directory={folder}"),
        *(f"--bs={plan.block}", f"--size={plan.each}", f"--numjobs={plan.threads}", "--thread"),
        *("--ioengine=psync", "--fallocate=none", "--invalidate=0", "--group_reporting"),
        *("--output-format=json", *where),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FioFailed(str(error)) from error
    if done.returncode:
        said = (done.stderr + done.stdout).strip().splitlines()[:1] or [""]
        raise FioFailed(f"fio: status {done.returncode} {said[0].replace(str(folder), '')}")
    return parsed(done.stdout, operation)


def parsed(output: str, operation: str) -> Moved:
    """From fio's JSON; what it prints around it is passed over."""
    report: dict[str, Any] = json.loads(output[output.index("{") :])
    (job,) = report["jobs"]
    side = job[operation]
    if job["error"] or not side["io_bytes"]:
        raise FioFailed(f"fio reports error {job['error']}, {side['io_bytes']} bytes")
    seconds = side["runtime"] / 1e3
    share = (job["usr_cpu"] + job["sys_cpu"]) / 100  # of the time of all its threads
    return Moved(side["io_bytes"], max(seconds, 1e-3), share * job["job_runtime"] / 1e3)
