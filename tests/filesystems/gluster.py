"""A GlusterFS of one brick over loopback, without its management daemon; several mounts of it.

    with Gluster(folder) as volume:
        first, second = volume.mount(), volume.mount()    # two clients

Two mounts are two clients. The brick and every mount are processes started here and ended by their
process id; a mount is taken away before its process goes. Needs root and /dev/fuse.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

START_SECONDS = 30.0
STOP_SECONDS = 10.0

SERVER = """
volume posix
    type storage/posix
    option directory {brick}
end-volume
volume locks
    type features/locks
    subvolumes posix
end-volume
volume threads
    type performance/io-threads
    subvolumes locks
end-volume
volume brick
    type debug/io-stats
    subvolumes threads
end-volume
volume server
    type protocol/server
    option transport-type tcp
    option transport.address-family inet
    option transport.socket.bind-address 127.0.0.1
    option transport.socket.listen-port {port}
    option auth.addr.brick.allow 127.0.0.1
    option auth-path brick
    subvolumes brick
end-volume
"""

CLIENT = """
volume client
    type protocol/client
    option transport-type tcp
    option transport.address-family inet
    option remote-host 127.0.0.1
    option remote-port {port}
    option remote-subvolume brick
end-volume
"""


def missing() -> str | None:
    """What keeps it from being run here, and the remedy."""
    for tool, package in (("glusterfsd", "glusterfs-server"), ("glusterfs", "glusterfs-client")):
        if shutil.which(tool) is None:
            return f"{tool} is missing: apt install {package}"
    if os.geteuid():
        return "GlusterFS is mounted by root only"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be used: load the fuse module, or start the container with it"
    return None


class Gluster:
    """See the module. `folder` must allow trusted extended attributes: a disk and tmpfs do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = _free_port()
        self._mounts: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        brick = folder / "brick"
        brick.mkdir(parents=True)
        (folder / "server.vol").write_text(SERVER.format(brick=brick, port=self._port))
        (folder / "client.vol").write_text(CLIENT.format(port=self._port))
        try:
            self._start("glusterfsd", "server", "-p", str(folder / "server.pid"))
            _wait(lambda: _listens(self._port), "the brick does not listen", self._log("server"))
        except BaseException:
            self.close()
            raise

    def mount(self) -> Path:
        """One more client; its mount point."""
        name = f"client{len(self._mounts)}"
        point = self._folder / name
        point.mkdir()
        self._mounts.append(point)
        # Names and attributes are not believed for a second: two clients see each other at once.
        words = ("--entry-timeout=0", "--attribute-timeout=0", str(point))
        self._start("glusterfs", "client", *words, log=name)
        _wait(lambda: os.path.ismount(point), f"{point} is not mounted", self._log(name))
        return point

    def _start(self, program: str, volume: str, *words: str, log: str = "") -> None:
        file, to = self._folder / f"{volume}.vol", self._log(log or volume)
        command = [program, "-N", "-f", str(file), "-l", str(to), *words]
        # A session of its own: Ctrl-C must not end the brick before its mounts are taken away.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self._processes.append(process)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def close(self) -> None:
        """Unmount, end the processes, wait for them."""
        for point in self._mounts:
            subprocess.run(["umount", "-l", point], check=False, capture_output=True)
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> Gluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(done: object, what: str, log: Path) -> None:
    assert callable(done)
    deadline = time.monotonic() + START_SECONDS
    while not done():
        if time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-2000:] if log.exists() else "no log"
            raise RuntimeError(f"{what} after {START_SECONDS:g} s: {tail}")
        time.sleep(0.05)
