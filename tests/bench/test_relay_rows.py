"""What `bench.relay` compares, and what it counts as one router's processor time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.relay.__main__ import CASES, COMPILED, PAIR, THEIRS, Samples, judge, routers
from bench.relay.processes import cpu_seconds, family

CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True); input()"


def test_with_a_compiled_copy_there_is_a_row_of_two_processes_of_it(tmp_path: Path) -> None:
    rows = {router.name: router for router in routers(tmp_path / "peers", tmp_path / "compiled")}
    assert rows[PAIR].command[-2:] == ("--workers", "2")
    assert rows[PAIR].command[:-2] == rows[COMPILED].command
    assert rows[PAIR].modules == rows[COMPILED].modules == str(tmp_path / "compiled")
    assert PAIR not in {router.name for router in routers(tmp_path / "peers", None)}


def test_the_processes_a_router_starts_count_as_its_own() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(inner=BUSY)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdin is not None and parent.stdout is not None
    with parent, parent.stdin:
        parent.stdout.readline()  # the child has used its share
        assert len(list(family(parent.pid))) == 2
        assert cpu_seconds(parent.pid) >= 0.29 + _main_thread_seconds(parent.pid)
        parent.stdin.write(b"\n")
    assert parent.returncode == 0


def _main_thread_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def test_two_processes_are_held_to_the_same_limits() -> None:
    theirs = Samples([100.0], [10.0], [1.0])
    for ours in (Samples([101.0], [10.0], [1.0]), Samples([100.0], [10.0], [1.01])):
        assert judge({str(CASES[0]): {PAIR: ours, THEIRS: theirs}}, []) == 1
    within = Samples([99.0], [11.9], [0.99])
    assert judge({str(CASES[0]): {PAIR: within, THEIRS: theirs}}, []) == 0
