"""Supervisor: several router processes on one port; started, restarted and ended together.

The kernel spreads connections over all sockets that listen on the port with SO_REUSEPORT. The
supervisor holds the port with a socket that never listens, so that it is known and stays ours while
processes come and go, and a private directory in which they meet (`peers`). A process that dies is
started again after a pause; one that stands still, for which its number on the `board` stops
growing, is ended first. Signals reach the supervisor, which tells the workers and waits: SIGTERM
makes them drain, however often it comes, for a cancelled job's every process gets it, from whoever
cancels it and from here; for the second signal they get `END_NOW`.

It must not know what a worker does; how to start one is an argument.
"""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from router.board import Board, Cause, shared_board
from router.peers import socket_path
from router.settings import SettingsError

log = logging.getLogger(__name__)

RESTART_PAUSE_SECONDS = 1.0
START_LOOK_SECONDS = 0.05
END_LOOK_SECONDS = 0.02
GRACE_SECONDS = 5.0
"""On top of the drain: from its end until a worker is killed. As long has one that stands still."""
SILENT_SECONDS = 30.0
"""Without a beat for so long a worker stands still. Generous: a machine short of memory or time may
hold one up, and ending it cuts its streams."""

END_NOW = signal.SIGUSR1
"""To a worker: end the drain."""
ENDED_WELL = (0, -signal.SIGTERM, -signal.SIGHUP, -END_NOW)
"""All but the first: it was still starting, or had finished, and had nothing to drain."""

Start = Callable[[int, int, Path, Board], subprocess.Popen[bytes]]
"""Starts worker `number` on a port, meeting the others in a directory, its beats on the board."""


@dataclass(slots=True)
class Watched:
    """One worker as the supervisor sees it: once every `RESTART_PAUSE_SECONDS`, at most.

    Silence is counted in looks, not read off a clock: time in which the supervisor was stopped
    too, as all of a frozen machine, is one look and no reason to end anybody. It begins with the
    first beat: a start may be held up by a file system, and its process serves nobody yet."""

    process: subprocess.Popen[bytes]
    beats: int = 0
    silent_looks: int = 0
    was_silent: bool = False

    def look(self, beats: int) -> signal.Signals | None:
        """What to send it now that it has beaten so often."""
        self.silent_looks = self.silent_looks + 1 if beats and beats == self.beats else 0
        self.beats = beats
        if self.silent_looks == round(SILENT_SECONDS / RESTART_PAUSE_SECONDS):
            self.was_silent = True
            return signal.SIGTERM
        silent = SILENT_SECONDS + GRACE_SECONDS
        return (
            signal.SIGKILL if self.silent_looks == round(silent / RESTART_PAUSE_SECONDS) else None
        )


@contextmanager
def held_port(host: str, port: int) -> Iterator[int]:
    """The port, ours until the end, without a connection ever arriving here."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.socket(family, socket.SOCK_STREAM) as asking,
        socket.socket(family, socket.SOCK_STREAM) as holder,
    ):
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            if port:
                # The holder alone would share the port with any other router of this user.
                asking.bind((host, port))
                asking.close()
            holder.bind((host, port))
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {host}:{port}: {error}; try another --port or --host"
            ) from error
        yield holder.getsockname()[1]


def supervise(start: Start, *, host: str, port: int, workers: int, drain_seconds: float) -> int:
    """Runs `workers` processes until SIGTERM or SIGINT; 0 if all then ended by themselves, 2 if
    one could not start."""
    stopping = threading.Event()
    for known in (signal.SIGTERM, signal.SIGINT):
        signal.signal(known, lambda *_: stopping.set())

    def hung_up(*_: object) -> None:
        """A terminal sends more than one: the next is not the second order to end."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        stopping.set()

    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, hung_up)
    with (
        held_port(host, port) as at,
        tempfile.TemporaryDirectory(prefix="sharedfs-router-") as folder,
        shared_board() as board,
    ):
        running = [start(number, at, Path(folder), board) for number in range(workers)]
        while not _all_serve(Path(folder), workers):
            if any(process.poll() for process in running):
                _end(running, GRACE_SECONDS, stopping)
                return 2  # it has said why
            if stopping.wait(START_LOOK_SECONDS):
                return _end(running, drain_seconds + GRACE_SECONDS, stopping)
        log.info("listening on %s:%d with %d processes", host, at, workers)
        watched = [Watched(process) for process in running]
        while not stopping.wait(RESTART_PAUSE_SECONDS):
            for number, worker in enumerate(watched):
                if worker.process.poll() is None:
                    _prod(number, worker, board)
                    continue
                status = worker.process.returncode
                log.error("process %d ended with %d: started again", number + 1, status)
                board.starts(number)
                try:
                    process = start(number, at, Path(folder), board)
                except OSError as error:  # no memory or processes left: what ended it may pass
                    log.error("process %d cannot be started: %s", number + 1, error)
                    continue
                board.replaced(Cause.SILENT if worker.was_silent else Cause.DIED)
                watched[number] = Watched(process)
        running = [worker.process for worker in watched]
        return _end(running, drain_seconds + GRACE_SECONDS, stopping)


def _prod(number: int, worker: Watched, board: Board) -> None:
    """Ends one that stands still: told first, for it may come to itself and drain."""
    order = worker.look(board.beats(number))
    if order is not None:
        silent_seconds = worker.silent_looks * RESTART_PAUSE_SECONDS
        log.error("process %d stands still for %g s: %s", number + 1, silent_seconds, order.name)
        worker.process.send_signal(order)


def _all_serve(folder: Path, workers: int) -> bool:
    """A worker meets the others once its port answers."""
    return all(socket_path(folder, number).exists() for number in range(workers))


def _end(running: list[subprocess.Popen[bytes]], seconds: float, again: threading.Event) -> int:
    """Tells all to drain, to end whenever `again` is set; kills who has not after `seconds`."""
    again.clear()
    for process in running:
        process.terminate()
    until = time.monotonic() + seconds
    while any(process.poll() is None for process in running) and time.monotonic() < until:
        if again.wait(END_LOOK_SECONDS):
            again.clear()
            for process in running:
                process.send_signal(END_NOW)
    ended_well = True
    for process in running:
        if process.poll() is None:
            process.kill()
        ended_well &= process.wait() in ENDED_WELL
    return 0 if ended_well else 1
