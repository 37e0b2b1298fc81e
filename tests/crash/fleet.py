"""The crash test's driver: keeps processes running, kills some, and watches the directory.

    python -m tests.crash.fleet --seconds 600 --processes 4 [--kill-every 3] [--seed 1] [--root DIR]

Prints what happened as JSON; exits non-zero when a claim does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sharedfs_backend import tools
from tests.crash.work import CAP_BYTES, settings_for

START_SECONDS = 120.0
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Outcome:
    """What was seen. `stored_by_slot` counts chunks; bytes are those of the directory."""

    seconds: float = 0.0
    kills: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    stored_by_slot: list[int] = field(default_factory=list)
    quiet_seconds_max: list[float] = field(default_factory=list)
    bytes_max: int = 0
    walks: int = 0
    failed_loads: Counter[str] = field(default_factory=Counter)
    packs_dropped: int = 0
    lost_before_drop: list[str] = field(default_factory=list)
    """Packs that a load, begun before their drop, found missing."""
    problems_after: dict[str, int] = field(default_factory=dict)
    exits: list[str] = field(default_factory=list)


def tree_bytes(root: Path) -> int:
    """Bytes of all files below `root`, as far as they exist while walking."""
    total = 0
    stack = [str(root)]
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                stack.append(entry.path)
            else:
                try:
                    total += entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue  # unlinked while we walked
    return total


class Slot:
    """A place for one process after the other; adds up what they said last."""

    def __init__(
        self,
        root: Path,
        number: int,
        mode: str,
        dropped_at: dict[str, float],
        missing: list[tuple[str, float]],
    ) -> None:
        self._root, self._number, self._mode = root, number, mode
        self._dropped_at, self._missing = dropped_at, missing
        self.counts: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.stored_at = time.monotonic()
        self.quiet_seconds_max = 0.0
        self._last: dict[str, dict[str, float]] = {}
        self.process: subprocess.Popen[str] | None = None
        self.stderr = ""
        self.start()

    def start(self) -> None:
        self._last = {}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.crash.work",
                str(self._root),
                str(self._number),
                self._mode,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        threading.Thread(target=self._read_errors, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._hear(json.loads(line))

    def _hear(self, said: dict[str, Any]) -> None:
        now = time.monotonic()
        if "dropping" in said:
            for path in said["dropping"]:
                self._dropped_at.setdefault(path, said["at"])
        elif "missing" in said:
            self._missing.append((said["missing"], said["began"]))
        else:
            if said["counts"].get("stored", 0) > self._last.get("counts", {}).get("stored", 0):
                self.stored_at = now
            self.quiet_seconds_max = max(self.quiet_seconds_max, now - self.stored_at)
            self._last = said

    def _read_errors(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                if "Traceback" in line or self.stderr.count("\n") < 200:
                    self.stderr += line

    @property
    def has_spoken(self) -> bool:
        return bool(self._last)

    def kill(self) -> None:
        """kill -9; what it had said last is kept."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._take()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(60)
        time.sleep(0.2)  # its last line is on its way through the pipe
        self._take()
        return code

    def _take(self) -> None:
        self.counts.update({name: int(n) for name, n in self._last.get("counts", {}).items()})
        for name, value in self._last.get("stats", {}).items():
            if name.startswith("load_misses_"):
                self.misses[name] += int(value)


def wait_for_all(slots: list[Slot]) -> None:
    """Until every process has said something: on a busy machine a start takes a while."""
    end = time.monotonic() + START_SECONDS
    while any(not slot.has_spoken for slot in slots) and time.monotonic() < end:
        time.sleep(0.1)


def run(
    root: Path, seconds: float, processes: int, kill_every: float, seed: int, mode: str
) -> Outcome:
    """Run the fleet; see `check` for what must be true of the outcome."""
    source = random.Random(seed)
    outcome = Outcome(seconds=seconds)
    with tools.opened(settings_for(str(root)), create=True):
        pass
    dropped_at: dict[str, float] = {}
    missing: list[tuple[str, float]] = []
    slots = [
        Slot(root, seed * 100 + number, mode, dropped_at, missing) for number in range(processes)
    ]
    wait_for_all(slots)
    start = time.monotonic()
    next_kill = start + kill_every if kill_every else float("inf")
    while time.monotonic() - start < seconds:
        outcome.bytes_max = max(outcome.bytes_max, tree_bytes(root))
        outcome.walks += 1
        if time.monotonic() >= next_kill:
            slot = source.choice(slots)
            slot.kill()
            slot.start()
            outcome.kills += 1
            next_kill = time.monotonic() + source.uniform(0.5, 1.5) * kill_every
        time.sleep(0.05)
    codes = [slot.stop() for slot in slots]
    for slot, code in zip(slots, codes, strict=True):
        outcome.counts += slot.counts
        outcome.failed_loads += slot.misses
        outcome.stored_by_slot.append(slot.counts["stored"])
        outcome.quiet_seconds_max.append(round(slot.quiet_seconds_max, 1))
        if code not in (0, -signal.SIGTERM) or "Traceback" in slot.stderr:
            outcome.exits.append(f"{code}: {slot.stderr[-2000:]}")
    outcome.packs_dropped = len(dropped_at)
    outcome.lost_before_drop = [
        path for path, began in missing if began < dropped_at.get(path, float("inf"))
    ]
    outcome.problems_after = heal(root)
    return outcome


def heal(root: Path) -> dict[str, int]:
    """Give the protocol the time it asks for (a sweeper watching for a lease), then look."""
    settings = settings_for(str(root))
    tools.gc(settings, watch=True)
    report = tools.verify(settings)
    return dict(report.counts)


def check(outcome: Outcome) -> list[str]:
    """The claims that do not hold."""
    counts = outcome.counts
    claims = {
        "every load is byte-equal or a miss": counts["wrong"] == 0,
        "something was loaded and something stored": min(counts["loaded"], counts["stored"]) > 0
        or counts["asked"] == counts["offered"],
        "the directory never exceeded the cap": outcome.bytes_max <= CAP_BYTES,
        "found = loaded + missed": counts["found"] == counts["loaded"] + counts["missed"],
        "offered = stored + present + dropped": counts["offered"]
        == counts["stored"] + counts["present"] + counts["dropped"],
        "asked = found + offered": counts["asked"] == counts["found"] + counts["offered"],
        "misses are all counted by kind": counts["missed"] <= sum(outcome.failed_loads.values()),
        "every process kept storing": min(outcome.stored_by_slot) > 0,
        "no load that began before its pack's drop failed": not outcome.lost_before_drop,
        "packs were dropped": outcome.packs_dropped > 0,
        "nobody died by itself": not outcome.exits,
        "no orphan, no damage is left": not outcome.problems_after,
    }
    return [claim for claim, holds in claims.items() if not holds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--kill-every", type=float, default=3.0, help="mean seconds; 0: never")
    parser.add_argument("--mode", choices=("shared", "own"), default="shared")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--root", type=Path, default=None)
    options = parser.parse_args()
    root = options.root or Path(tempfile.mkdtemp(prefix="sharedfs-crash-"))
    try:
        outcome = run(
            root / "namespace",
            options.seconds,
            options.processes,
            options.kill_every,
            options.seed,
            options.mode,
        )
    finally:
        if options.root is None:
            shutil.rmtree(root, ignore_errors=True)
    broken = check(outcome)
    print(json.dumps({name: getattr(outcome, name) for name in Outcome.__slots__}, indent=1))
    print("\n".join(f"BROKEN: {claim}" for claim in broken) or "every claim holds")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
