"""Parts: processes of a fleet on this machine, each leading a session of its own, ended whole.

A part's children stay in its session, so that ending it ends them too, and the shared-memory
segments they had mapped are removed. Segments are noted while a part runs (`note_segments`), since
one that was killed can no longer be asked.

Must not know: what the parts are, and when to start or stop them (`node`, `head`).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from bench.demo.processes import Session, members, shared_segments, stop_sessions
from launch.commands import Command


class Part:
    """One running process. Not thread-safe."""

    def __init__(self, command: Command, log: Path, folder: Path) -> None:
        """Starts it in `folder`; its output is appended to `log`. Raises OSError."""
        environment = {**os.environ, **{k: v for k, v in command.environment.items() if v}}
        environment |= {"TMPDIR": str(folder)}
        for name, value in command.environment.items():
            if value is None:
                environment.pop(name, None)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command.words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
                env=environment,
            )
        self.log = log
        self.session = Session.led_by(self._process.pid)
        self._segments: set[str] = set()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> None:
        """Until it has ended. Raises subprocess.TimeoutExpired."""
        self._process.wait(seconds)

    @property
    def segments(self) -> set[str]:
        """Shared-memory segments seen so far."""
        return self._segments

    def note_segments(self) -> None:
        self._segments |= shared_segments(members([self.session]))


def stop_parts(parts: Iterable[Part], grace_seconds: float, *, beside: Iterable[Part] = ()) -> None:
    """Ends them side by side: SIGTERM, then SIGKILL; then their segments are removed.

    `beside`: parts that stay for now, but may be ending by themselves (a cancelled job's processes
    all get SIGTERM); what they map meanwhile is noted.
    """
    ending, others = list(parts), list(beside)
    if not ending:
        return

    def reap() -> None:
        for part in ending:
            _ = part.exit_code
        for part in others:
            part.note_segments()

    reap()
    segments = set().union(*(part.segments for part in ending))
    sessions = [part.session for part in ending]
    stop_sessions(sessions, grace_seconds=grace_seconds, reap=reap, segments=segments)
