"""Where the time goes: samples of what each thread does, and processor time by thread and process.

A sampler thread looks at every other thread's innermost Python frame each few milliseconds. A frame
that waits (a lock, a queue, a poll) counts as waiting; the rest is work, whether the interpreter or
C code called from that line does it. Beside it stands processor time from /proc, split into user
and system, so that copying in the kernel and a mount's daemon can be told from our own code.

The sampler itself costs a share of the time: a profile is taken in rounds of its own, never in
measured ones.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, TracebackType

EVERY_SECONDS = 0.002
LINES_MAX = 14
_WAITING = frozenset(
    {"wait", "acquire", "get", "poll", "select", "_wait_for_tstate_lock", "join"}
    | {"_timed", "_loop"}  # our driver and the adapter's dispatcher, in their polls
)
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Profile:
    """Seconds, and samples by place. `user`/`system` are of this process; `daemon` of the mount's
    process, if its id was given."""

    wall: float = 0.0
    user: float = 0.0
    system: float = 0.0
    daemon: float | None = None
    samples: int = 0
    waiting: int = 0
    places: Counter[str] = field(default_factory=Counter)

    def text(self, cores: int) -> str:
        """As a report shows it. Shares are of all samples of working threads."""
        busy = sum(self.places.values())
        lines = [
            f"{self.wall:.2f} s elapsed on {cores} cores; this process used {self.user:.2f} s of"
            f" processor time in user code and {self.system:.2f} s in the kernel"
            + (f"; the mount's daemon {self.daemon:.2f} s" if self.daemon is not None else ""),
            f"together {self._busy_cores():.2f} of {cores} cores; {self.waiting} of"
            f" {busy + self.waiting} thread samples were waiting",
        ]
        for place, count in self.places.most_common(LINES_MAX):
            lines.append(f"{count / max(1, busy):6.1%}  {place}")
        return "\n".join(lines)

    def _busy_cores(self) -> float:
        total = self.user + self.system + (self.daemon or 0.0)
        return total / self.wall if self.wall > 0 else 0.0


class Sampler:
    """Profiles what happens within its `with` block."""

    def __init__(self, daemon_pid: int | None = None, every_seconds: float = EVERY_SECONDS) -> None:
        self._profile = Profile()
        self._daemon_pid, self._every = daemon_pid, every_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-sampler", daemon=True)

    def __enter__(self) -> Profile:
        self._start = time.perf_counter()
        self._times = os.times()
        self._daemon_start = process_seconds(self._daemon_pid)
        self._thread.start()
        return self._profile

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        profile, times = self._profile, os.times()
        profile.wall = time.perf_counter() - self._start
        profile.user = times.user - self._times.user
        profile.system = times.system - self._times.system
        ended = process_seconds(self._daemon_pid)
        if ended is not None and self._daemon_start is not None:
            profile.daemon = ended - self._daemon_start

    def _run(self) -> None:
        own = threading.get_ident()
        while not self._stop.wait(self._every):
            frames = sys._current_frames()
            self._profile.samples += 1
            for code, line in ((f.f_code, f.f_lineno) for i, f in frames.items() if i != own):
                self._count(code, line)
            del frames

    def _count(self, code: CodeType, line: int) -> None:
        if code.co_name in _WAITING or "threading" in code.co_filename:
            self._profile.waiting += 1
            return
        self._profile.places[f"{_short(code.co_filename)}:{line} {code.co_name}"] += 1


def _short(filename: str) -> str:
    """The path from the package on, without anything of this machine."""
    parts = Path(filename).parts
    for root in ("sharedfs_backend", "bench", "lmcache", "site-packages", "python3.11"):
        if root in parts:
            at = len(parts) - 1 - parts[::-1].index(root)
            return "/".join(parts[at:])
    return parts[-1]


def process_seconds(pid: int | None) -> float | None:
    """Processor seconds a process used so far; None without one."""
    if pid is None:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_bytes(pid: int | str = "self") -> int:
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def open_descriptors(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def merged(profiles: Iterable[Profile]) -> Profile:
    """The sum of several, as of one long block."""
    whole = Profile()
    for one in profiles:
        whole.wall += one.wall
        whole.user += one.user
        whole.system += one.system
        if one.daemon is not None:
            whole.daemon = (whole.daemon or 0.0) + one.daemon
        whole.samples += one.samples
        whole.waiting += one.waiting
        whole.places += one.places
    return whole
