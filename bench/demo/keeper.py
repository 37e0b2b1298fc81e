"""A small process that outlives a fleet's driver by a moment and clears up after it.

The driver tells it on standard input what it starts (`session SID TICKS`, `folder PATH`). The end
of that input, however the driver ended (return, exception, SIGKILL), means: end all members of
those sessions, remove the shared-memory segments they mapped and the folders named. It runs in a
session of its own, so Ctrl-C at the terminal reaches the driver only.

Must not know: engines, servers, the store. Prints one JSON line saying what it found left over.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
from pathlib import Path

from bench.demo.processes import Session, members, shared_segments, stop_sessions

WATCH_SECONDS = 2.0  # How often segments are noted, for processes that die without a word.
GRACE_SECONDS = 15.0


def main() -> int:
    """Runs until standard input ends, then clears up; the exit code is 0 when nothing is left."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    sessions: list[Session] = []
    folders: list[Path] = []
    segments: set[str] = set()
    pending = b""
    while True:
        ready, _, _ = select.select([0], [], [], WATCH_SECONDS)
        segments |= shared_segments(members(sessions))
        if not ready:
            continue
        data = os.read(0, 65536)
        if not data:
            break
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            kind, _, value = line.decode().partition(" ")
            if kind == "session":
                sid, ticks = value.split()
                sessions.append(Session(int(sid), int(ticks)))
            elif kind == "folder":
                folders.append(Path(value))
    left = len(members(sessions))
    removed = stop_sessions(sessions, grace_seconds=GRACE_SECONDS, segments=segments)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(BrokenPipeError):  # A driver that was killed reads no more.
        print(json.dumps({"processes_ended": left, "segments_removed": removed}), flush=True)
    return 1 if members(sessions) else 0


if __name__ == "__main__":
    raise SystemExit(main())
