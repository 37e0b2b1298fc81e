"""Runs simulated worlds from the command line; a failing seed prints itself and its transcript.

    python -m tests.sim --seed 17 --fs gekkofs --scenario capped          one run, its last steps
    python -m tests.sim --seeds 0:300 --fs all                            many; stops at a violation
    python -m tests.sim --seeds 0:50 --without check_clock_before_trailer a rule switched off

Starts itself again with a fixed PYTHONHASHSEED: a seed then fixes everything. Runs are shared out
among processes, one to a core; each run is one thread at a time.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.protocol.fleet import Outcome


@dataclass(frozen=True, slots=True)
class Run:
    """What one run depends on."""

    scenario: str
    fs: str
    seed: int
    without: str | None

    def __str__(self) -> str:
        return f"python -m tests.sim --seed {self.seed} --fs {self.fs} --scenario {self.scenario}"


def outcome_of(run: Run) -> tuple[Run, Outcome]:
    """The run, done; without its transcript if nothing was wrong."""
    from sharedfs_backend.rules import Rules
    from tests.protocol.fleet import Fleet
    from tests.protocol.scenarios import SCENARIOS

    rules = replace(Rules(), **{run.without: False}) if run.without else Rules()
    outcome = Fleet(replace(SCENARIOS[run.scenario], fs=run.fs, rules=rules), run.seed).run()
    if outcome.ok:
        outcome.transcript.clear()
    return run, outcome


def outcomes(runs: list[Run], jobs: int) -> Iterator[tuple[Run, Outcome]]:
    """All runs, as they end."""
    import tests.protocol.scenarios  # noqa: F401 # what it costs to import is paid once

    gc.freeze()
    gc.set_threshold(50_000)  # a run makes many small objects that live as long as it does
    if jobs == 1:
        yield from map(outcome_of, runs)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(outcome_of, runs)


def options_of(arguments: list[str]) -> argparse.Namespace:
    from tests.protocol.scenarios import SCENARIOS

    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", default="0:20", help="FIRST:END, END not included")
    parser.add_argument("--fs", default="all", help="a file system of the quirk file, or all")
    parser.add_argument("--scenario", default="all", help=f"{', '.join(SCENARIOS)}, or all")
    parser.add_argument("--without", help="switch this rule off and expect a violation")
    parser.add_argument("--transcript", type=int, default=60, help="lines to show of a failure")
    parser.add_argument("--grep", default="", help="show only transcript lines with this text")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a violation")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="processes (default: the cores)")
    return parser.parse_args(arguments)


def runs_of(options: argparse.Namespace) -> list[Run]:
    """Every seed takes one file system in turn; all of them when one seed is asked for."""
    from tests.protocol.scenarios import SCENARIOS
    from tests.sim import quirks

    first, _, end = options.seeds.partition(":")
    seeds = [options.seed] if options.seed is not None else list(range(int(first), int(end)))
    systems = quirks.names() if options.fs == "all" else [options.fs]
    names = list(SCENARIOS) if options.scenario == "all" else [options.scenario]
    return [
        Run(name, fs, seed, options.without)
        for seed in seeds
        for place, name in enumerate(names)
        for fs in (
            systems if options.seed is not None else [systems[(seed + place) % len(systems)]]
        )
    ]


def main() -> int:
    """0: as expected; 1: a violation (with --without: none found)."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])
    from tests.protocol.fleet import PROBLEM

    options = options_of(sys.argv[1:])
    runs = runs_of(options)
    logging.disable(logging.CRITICAL)
    started, done, failures, steps = time.monotonic(), 0, 0, 0
    counts: Counter[str] = Counter()
    stats: Counter[str] = Counter()
    for run, outcome in outcomes(runs, min(options.jobs, len(runs))):
        done, steps = done + 1, steps + outcome.steps
        counts.update(outcome.counts)
        stats.update(outcome.stats)
        if outcome.ok:
            continue
        failures += 1
        lines = [line for line in outcome.transcript if options.grep in line]
        print("\n".join(lines[-options.transcript :]) if options.transcript else "")
        print(f"VIOLATION: {outcome.violations[0]}")
        print(f"again: {run}{f' --without {run.without}' if run.without else ''}")
        if not options.keep_going:
            print(f"{done} runs, {time.monotonic() - started:.1f} s")
            caught = not outcome.violations[0].startswith(PROBLEM)
            return 0 if options.without and caught else 1
    seconds = time.monotonic() - started
    print(f"{done} runs, {steps} steps, {seconds:.1f} s, {failures} with a violation")
    print("  ".join(f"{key} {value}" for key, value in sorted(counts.items())))
    shown = sorted(key for key, value in stats.items() if value and not key.endswith("bytes"))
    print("  ".join(f"{key} {stats[key]}" for key in shown if "operations" not in key))
    return 1 if options.without or failures else 0


if __name__ == "__main__":
    sys.exit(main())
