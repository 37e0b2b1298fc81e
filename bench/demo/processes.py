"""Processes of a fleet: found by session, stopped whole, together with their shared memory.

Everything a fleet starts leads a session of its own, so its children are found by session id
whatever they are called (environment and command line are no help: engines overwrite both). A
session is identified by its leader's pid and start time, so that a reused pid is never taken for
ours. Shared-memory segments are recognised by being mapped by such a process, and removed only when
no process maps them any more.

Must not know: engines, servers, the store. Linux only (/proc).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

SHM_DIR = "/dev/shm/"
POLL_SECONDS = 0.1
ORPHAN_SECONDS = 5.0  # For what an ended leader left: Python's trackers remove semaphores then.
KILL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ProcStat:
    """The few fields of /proc/PID/stat that identify a process."""

    pid: int
    state: str
    session: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Session:
    """A session that we created: its leader's pid, and when that process started."""

    sid: int
    start_ticks: int

    @classmethod
    def led_by(cls, pid: int) -> Session:
        """Returns the session of a process just started with start_new_session."""
        stat = read_stat(pid)
        if stat is None:
            # Gone already: nothing can be in its session but what it started before.
            return cls(pid, 0)
        return cls(pid, stat.start_ticks)


def parse_stat(text: str) -> ProcStat:
    """Returns the fields of one /proc/PID/stat line; the command in it may hold any character."""
    pid, rest = text.split(" (", 1)
    fields = rest.rsplit(") ", 1)[1].split()
    return ProcStat(int(pid), fields[0], int(fields[3]), int(fields[19]))


def read_stat(pid: int) -> ProcStat | None:
    """Returns what the kernel says of a process, or None when there is none."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except (OSError, ValueError, IndexError):
        return None


def members(sessions: Iterable[Session]) -> list[int]:
    """Returns the pids alive (zombies are not) in sessions that are still the ones we created."""
    stats = [s for name in os.listdir("/proc") if name.isdigit() and (s := read_stat(int(name)))]
    return select_members(sessions, stats)


def select_members(sessions: Iterable[Session], stats: Iterable[ProcStat]) -> list[int]:
    """Pure part of `members`: a session whose leader's pid was reused has no members of ours."""
    everything = list(stats)
    started = {s.pid: s.start_ticks for s in everything}
    ours = {
        s.sid: s.start_ticks for s in sessions if started.get(s.sid, s.start_ticks) == s.start_ticks
    }
    return [
        s.pid
        for s in everything
        if s.session in ours and s.state not in "ZX" and s.start_ticks >= ours[s.session]
    ]


def shared_segments(pids: Iterable[int]) -> set[str]:
    """Returns the paths below /dev/shm of the files that these processes have mapped."""
    inodes: set[int] = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:
            continue  # The process ended; its segments were seen before or are gone with it.
        inodes |= mapped_inodes(maps)
    with os.scandir(SHM_DIR) as entries:
        return {entry.path for entry in entries if entry.inode() in inodes}


def mapped_inodes(maps: str) -> set[int]:
    """Returns the inodes of the files below /dev/shm in the text of a /proc/PID/maps.

    By inode, because the path need not be the file's: a semaphore is made under another name.
    """
    return {int(line.split()[4]) for line in maps.splitlines() if SHM_DIR in line}


def remove_segments(segments: Iterable[str]) -> list[str]:
    """Removes the segments that no living process maps; returns those removed."""
    wanted = {s for s in segments if os.path.exists(s)}
    if not wanted:
        return []
    alive = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    removed = []
    for path in sorted(wanted - shared_segments(alive)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            removed.append(path)
    return removed


def signal_all(sessions: Iterable[Session], signum: int) -> int:
    """Sends a signal to every member; returns how many there were."""
    pids = members(sessions)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
    return len(pids)


def stop_sessions(
    sessions: Iterable[Session],
    *,
    grace_seconds: float,
    reap: Callable[[], object] = lambda: None,
    segments: set[str] | None = None,
) -> list[str]:
    """Ends every member (SIGTERM, then SIGKILL), removes their segments; returns those removed.

    The leaders are asked first: they know how to end their children in order, and have
    `grace_seconds` for it; what they leave has ORPHAN_SECONDS. `reap` collects our own children.
    """
    sessions = list(sessions)
    segments = set(segments or ())

    def left() -> set[int]:
        """The members alive. Processes map segments until their last moment: note them here."""
        reap()
        pids = members(sessions)
        segments.update(shared_segments(pids))
        return set(pids)

    leaders = left() & {session.sid for session in sessions}
    if grace_seconds > 0:
        for pid in leaders:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not leaders & left(), grace_seconds)
        wait_for(lambda: not left(), ORPHAN_SECONDS)
    while left():
        signal_all(sessions, signal.SIGSTOP)  # Frozen, none can map another one unseen.
        left()
        signal_all(sessions, signal.SIGKILL)
        wait_for(lambda: not left(), KILL_SECONDS)
    return remove_segments(segments)


def wait_for(done: Callable[[], bool], seconds: float) -> bool:
    """Returns whether `done` came true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
