"""Seeded worlds find no violation of I1-I9, and find one as soon as a delicate rule is missing.

Each test runs the command line in a process of its own with a fixed hash seed, so that a failure
printed here can be run again as printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields

import pytest

from sharedfs_backend.rules import Rules
from tests.protocol.catches import CATCHES
from tests.protocol.scenarios import SCENARIOS

SEEDS_EACH = int(os.environ.get("SHAREDFS_SEEDS_EACH", "12"))
"""Of each scenario; the nightly run takes hundreds."""
CATCH_SECONDS = 60
"""Within which a missing rule must be found."""


def run_sim(*arguments: str, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
    """`python -m tests.sim` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_seeds_of_a_scenario_hold_every_invariant(scenario: str) -> None:
    """I1 I2 I3 I4 I5 I6 I7 I9, on every file system in turn."""
    seeds = f"0:{SEEDS_EACH}"
    found = run_sim("--scenario", scenario, "--seeds", seeds, timeout_seconds=600)
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_rule_is_caught_somewhere() -> None:
    assert {field.name for field in fields(Rules)} == CATCHES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("rule", CATCHES)
def test_a_missing_rule_is_caught_within_a_minute(rule: str) -> None:
    scenario, fs, seeds = CATCHES[rule]
    arguments = ("--scenario", scenario, "--fs", fs, "--seeds", seeds, "--without", rule)
    found = run_sim(*arguments, timeout_seconds=CATCH_SECONDS)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "VIOLATION" in found.stdout
