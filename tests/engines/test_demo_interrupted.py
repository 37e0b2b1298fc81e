"""Ctrl-C on the real demo leaves no process and no shared-memory segment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.demo.processes import Session, members, shared_segments
from bench.demo.replica_spec import REPOSITORY


def children(pid: int) -> list[int]:
    """Returns the children of a process, by the kernel's own list."""
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("signum", "loaded"),
    [(signal.SIGTERM, False), (signal.SIGINT, True)],
    ids=["SIGTERM while starting", "Ctrl-C with shared memory in use"],
)
def test_an_interrupted_demo_leaves_nothing_behind(
    model: Path, tmp_path: Path, signum: signal.Signals, loaded: bool
) -> None:
    assert model.is_dir()
    demo = subprocess.Popen(
        [sys.executable, "-u", "-m", "bench.demo", "--small"],
        cwd=REPOSITORY,
        env={**os.environ, "NAMESPACE": str(tmp_path / "namespace")},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert demo.stdout is not None
    sessions: list[Session] = []
    segments: set[str] = set()
    while len(sessions) < 5 or (loaded and not segments):
        assert demo.poll() is None
        sessions = [Session.led_by(pid) for pid in children(demo.pid)]
        segments = shared_segments(members(sessions))
        time.sleep(0.2)
    assert len(sessions) in (5, 6)  # Two servers, two engines, the keeper; perhaps the router.
    demo.send_signal(signum)
    with demo.stdout:
        output = demo.stdout.read()
    assert demo.wait(120) == 130
    assert b"stopped" in output
    assert members(sessions) == []
    assert not [path for path in segments if os.path.exists(path)]
