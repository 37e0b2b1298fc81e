"""ProxyProcess: a DelayProxy in a process of its own, so that it takes no time from who measures.

The child is `python -m bench.proxy serve`; its delay is a line on its standard input, and it ends
when that does, so it cannot outlast us.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType

REPOSITORY = Path(__file__).resolve().parents[2]
STOP_SECONDS = 10.0


class ProxyProcess:
    """Forwards `port` to `target_port`, both on the loopback address."""

    def __init__(self, target_port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.proxy", "serve", str(target_port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        self.port = int(self._answer())

    def delay(self, milliseconds: float) -> None:
        """Of each direction, for what comes from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{milliseconds}\n")
        self._process.stdin.flush()
        self._answer()

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> ProxyProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError("the proxy ended")
        return line.strip()
