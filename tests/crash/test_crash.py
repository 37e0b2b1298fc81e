"""Processes that are killed at any moment, below a cap that forces sweeping (the short version).

The ten-minute version is `python -m tests.crash.fleet --seconds 600`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.fleet import check, run

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def test_four_processes_killed_at_random_serve_right_bytes_below_the_cap(tmp_path: Path) -> None:
    outcome = run(tmp_path / "namespace", 60.0, 4, 3.0, seed=1, mode="shared")
    assert check(outcome) == [], outcome
    assert outcome.kills > 5


def test_eight_writers_at_the_cap_all_keep_storing(tmp_path: Path) -> None:
    outcome = run(tmp_path / "namespace", 30.0, 8, 0.0, seed=2, mode="own")
    assert check(outcome) == [], outcome
    assert sum(outcome.stored_by_slot) * 256 * 1024 > 160 * 1024 * 1024, outcome
