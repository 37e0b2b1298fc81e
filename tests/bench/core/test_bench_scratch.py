"""Scratch of a process that was killed goes with the next run; nobody else's does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.core.scratch import LOCK, problem, scratch

DIES = """
import os, sys
from pathlib import Path
from bench.core.scratch import scratch
with scratch("toy", Path(sys.argv[1])) as folder:
    (folder / "data").write_bytes(b"x")
    os._exit(9)
"""
REPOSITORY = Path(__file__).resolve().parents[3]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", DIES, tmp_path], cwd=REPOSITORY, check=False)
    assert len(names(tmp_path)) == 1
    with scratch("other", tmp_path) as folder:
        assert names(tmp_path) == [folder.name]
    assert names(tmp_path) == []


def test_scratch_in_use_is_left_alone(tmp_path: Path) -> None:
    with scratch("toy", tmp_path) as first, scratch("toy", tmp_path) as second:
        assert names(tmp_path) == sorted([first.name, second.name])


def test_scratch_of_another_machine_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "bench-toy-x"
    other.mkdir()
    (other / LOCK).write_text("elsewhere 1234")
    (tmp_path / "bench-mine").mkdir()  # nothing of ours, whatever its name
    with scratch("toy", tmp_path):
        pass
    assert names(tmp_path) == ["bench-mine", "bench-toy-x"]


def test_a_place_where_nothing_can_be_made_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert problem(tmp_path) == ""
    assert "no scratch directory" in problem(tmp_path / "missing")
    assert "no scratch directory" in problem(tmp_path / "file")
    assert names(tmp_path) == ["file"]
