"""Hold: one command on a node, kept until it is told to end, and ended whole.

    python -m launch.hold NAME COMMAND...      its log is FLEET_LOGS/NODE-NAME.log

For daemons that a job's step starts on every node (Ray). As the command's first word, `python` is
this one. It runs until this process's standard input ends, SIGTERM or SIGINT; one that ends by
itself (Ray's do where the head is slow to start) is started again a few times. Then its whole
session is ended. Exit status: 0 told to end, 1 it ended too often, 2 wrong arguments.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launch.commands import Command
from launch.leftovers import make_scratch
from launch.node import TICK_SECONDS, stop_event
from launch.parts import Part, stop_parts
from launch.restarts import Restarts

STOP_SECONDS = 10.0
RESTARTS_MAX = 5


def hold(start: Callable[[], Part], stop: Callable[[float], bool], restarts: Restarts) -> int:
    """Until `stop`, or until it has ended too often. Returns the exit status."""
    part = start()
    start_at: float | None = None
    try:
        while not stop(TICK_SECONDS):
            part.note_segments()
            if part.exit_code is None:
                continue
            if start_at is None:
                stop_parts([part], 0.0)  # what it left
                start_at = restarts.after_end(time.monotonic())
                if start_at is None:
                    return 1
            if time.monotonic() >= start_at:
                part, start_at = start(), None
        return 0
    finally:
        stop_parts([part], STOP_SECONDS)


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    given = list(sys.argv[1:] if words is None else words)
    if len(given) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    name, *command = given
    if command[0] == "python":
        command[0] = sys.executable
    stop = stop_event()
    node = os.environ.get("SLURMD_NODENAME", "node")
    scratch = make_scratch(Path(os.environ.get("FLEET_SCRATCH") or "/tmp"))
    log = Path(os.environ.get("FLEET_LOGS") or scratch) / f"{node}-{name}.log"
    try:
        status = hold(
            lambda: Part(Command(tuple(command)), log, scratch), stop.wait, Restarts(RESTARTS_MAX)
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if status:
        print(f"{node}: {name} ended too often; see {log}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
