"""Runs simulated worlds from the command line; a failing seed prints itself and its transcript.

    python -m tests.sim --seed 17 --fs gekkofs --scenario capped          one run, its last steps
    python -m tests.sim --seeds 0:300 --fs all                            many; stops at a violation
    python -m tests.sim --seeds 0:50 --without check_clock_before_trailer a rule switched off

Starts itself again with a fixed PYTHONHASHSEED: a seed then fixes everything.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from dataclasses import replace


def main() -> int:
    """0: as expected; 1: a violation (with --without: none found)."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])
    from sharedfs_backend.rules import Rules
    from tests.protocol.fleet import PROBLEM, Fleet
    from tests.protocol.scenarios import SCENARIOS
    from tests.sim import quirks

    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", default="0:20", help="FIRST:END, END not included")
    parser.add_argument("--fs", default="all", help="a file system of the quirk file, or all")
    parser.add_argument("--scenario", default="all", help=f"{', '.join(SCENARIOS)}, or all")
    parser.add_argument("--without", help="switch this rule off and expect a violation")
    parser.add_argument("--transcript", type=int, default=60, help="lines to show of a failure")
    parser.add_argument("--grep", default="", help="show only transcript lines with this text")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a violation")
    options = parser.parse_args()

    first, _, end = options.seeds.partition(":")
    seeds = [options.seed] if options.seed is not None else list(range(int(first), int(end)))
    systems = quirks.names() if options.fs == "all" else [options.fs]
    names = list(SCENARIOS) if options.scenario == "all" else [options.scenario]
    rules = replace(Rules(), **{options.without: False}) if options.without else Rules()
    logging.disable(logging.CRITICAL)
    started, runs, failures, steps = time.monotonic(), 0, 0, 0
    counts: Counter[str] = Counter()
    stats: Counter[str] = Counter()
    for seed in seeds:
        for name in names:
            # Every seed takes one file system in turn; all of them when one seed is asked for.
            for fs in systems if options.seed is not None else [systems[seed % len(systems)]]:
                scenario = replace(SCENARIOS[name], fs=fs, rules=rules)
                outcome = Fleet(scenario, seed).run()
                runs, steps = runs + 1, steps + outcome.steps
                counts.update(outcome.counts)
                stats.update(outcome.stats)
                if outcome.ok:
                    continue
                failures += 1
                lines = [line for line in outcome.transcript if options.grep in line]
                print("\n".join(lines[-options.transcript :]) if options.transcript else "")
                print(f"VIOLATION: {outcome.violations[0]}")
                print(f"again: python -m tests.sim --seed {seed} --fs {fs} --scenario {name}")
                if not options.keep_going:
                    print(f"{runs} runs, {time.monotonic() - started:.1f} s")
                    caught = not outcome.violations[0].startswith(PROBLEM)
                    return 0 if options.without and caught else 1
    seconds = time.monotonic() - started
    print(f"{runs} runs, {steps} steps, {seconds:.1f} s, {failures} with a violation")
    print("  ".join(f"{key} {value}" for key, value in sorted(counts.items())))
    shown = sorted(key for key, value in stats.items() if value and not key.endswith("bytes"))
    print("  ".join(f"{key} {stats[key]}" for key in shown if "operations" not in key))
    return 1 if options.without or failures else 0


if __name__ == "__main__":
    sys.exit(main())
