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
import tempfile
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from bench.core.machine import REPOSITORY

PR_SET_PDEATHSIG = 1
ANSWER_SECONDS = 300.0
END_SECONDS = 30.0
READ_BYTES = 1 << 16
COMPLAINT_BYTES = 1 << 14
"""Of what a child complained of, from the end: its last words are in there."""


class ChildFailed(Exception):
    """A child ended, or said nothing in time; the text has the end of what it complained of."""


class Child:
    """One process. A context manager: it ends with the block."""

    def __init__(self, module: str, arguments: Mapping[str, Any]) -> None:
        # A pipe that nobody reads would fill up. __exit__ closes it.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(dict(arguments))],
            cwd=REPOSITORY,
            env=os.environ | {"LMCACHE_LOG_LEVEL": "ERROR"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._heard = b""

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
        deadline = time.monotonic() + seconds
        while True:
            line = self._line(deadline)
            if line.startswith(b"{"):
                heard: dict[str, Any] = json.loads(line)
                return heard

    def _line(self, deadline: float) -> bytes:
        """The next one, which may have come together with the one before. Raises ChildFailed."""
        assert self._process.stdout is not None
        while b"\n" not in self._heard:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], left)
            more = os.read(self._process.stdout.fileno(), READ_BYTES) if ready else b""
            if not more:
                raise ChildFailed(self._complaint("ended" if ready else "said nothing"))
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    def _complaint(self, what: str) -> str:
        self._process.kill()
        self._process.wait()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - COMPLAINT_BYTES))
        errors = self._errors.read().decode(errors="replace")
        said = errors.strip().splitlines()[-1:] or ["without a word"]
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
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def arguments() -> dict[str, Any]:
    """In a child: what it was given. From here on it does not outlive its parent."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    given: dict[str, Any] = json.loads(sys.argv[1])
    return given


def say(answer: Mapping[str, Any]) -> None:
    """In a child: one line to the parent."""
    print(json.dumps(dict(answer)), flush=True)
