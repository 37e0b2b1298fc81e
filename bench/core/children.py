"""Other processes of a measurement: started, spoken with in JSON lines, ended, each by its handle.

A child is a module of this package run with `python -m`; its first argument is a JSON object. It
writes one JSON object for each line of standard output and reads commands from standard input; its
end of input is its end. `time.monotonic()` means the same in all processes of a machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from bench.core.machine import REPOSITORY

PR_SET_PDEATHSIG = 1
ANSWER_SECONDS = 300.0
END_SECONDS = 30.0


class ChildFailed(Exception):
    """A child ended, or said nothing in time; the text has the end of what it complained of."""


class Child:
    """One process. A context manager: it ends with the block."""

    def __init__(self, module: str, arguments: Mapping[str, Any]) -> None:
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(dict(arguments))],
            cwd=REPOSITORY,
            env=os.environ | {"LMCACHE_LOG_LEVEL": "ERROR"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(dict(command)).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        """The next line. Raises ChildFailed. Lines that are no JSON (a library's chatter) are
        passed over."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], left)
            line = self._process.stdout.readline() if ready else b""
            if not line:
                raise ChildFailed(self._complaint("said nothing" if not ready else "ended"))
            if line.startswith(b"{"):
                heard: dict[str, Any] = json.loads(line)
                return heard

    def _complaint(self, what: str) -> str:
        self._process.kill()
        _, errors = self._process.communicate()
        said = errors.decode(errors="replace").strip().splitlines()[-1:] or ["without a word"]
        return f"a process of the measurement {what}: {said[0].replace(str(REPOSITORY), '.')}"

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:  # interrupted: nobody waits for its answer any more
            self._process.kill()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                stream.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def arguments() -> dict[str, Any]:
    """In a child: what it was given. From here on it does not outlive its parent."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    given: dict[str, Any] = json.loads(sys.argv[1])
    return given


def say(answer: Mapping[str, Any]) -> None:
    """In a child: one line to the parent."""
    print(json.dumps(dict(answer)), flush=True)
