"""GlusterFS on the loopback device, without its management daemon: one brick, any number of mounts.

A brick process serves a directory over TCP; each mount is a FUSE client of it. With a `DelayProxy`
between them the mount is a network file system some milliseconds away. Needs root and the Debian
packages glusterfs-server and glusterfs-client. Everything runs in the foreground, as children, and
ends with `close`.

    with Gluster(folder) as volume:
        first, second = volume.mount("first"), volume.mount("second")    # two clients
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from bench.throttle.available import is_mounted

UNCACHED = ("--direct-io-mode=enable",)
"""The kernel caches no pages of a mount, as on the throttled one."""
BELIEVES_NOTHING = ("--entry-timeout=0", "--attribute-timeout=0")
"""No name or attribute is believed for a second: two clients see each other at once."""
START_SECONDS = 30.0
STOP_SECONDS = 10.0

_SERVER = """
volume posix
  type storage/posix
  option directory {directory}
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
  option rpc-auth-allow-insecure on
  option auth.addr.brick.allow 127.0.0.1
  option auth-path brick
  subvolumes brick
end-volume
"""
_CLIENT = """
volume client
  type protocol/client
  option transport-type tcp
  option remote-host 127.0.0.1
  option remote-port {port}
  option remote-subvolume brick
end-volume
"""


class GlusterUnavailable(RuntimeError):
    """There can be no GlusterFS here; the message says what to do."""


def missing() -> str | None:
    """What is lacking, and the remedy."""
    if os.geteuid() != 0:
        return "mounting GlusterFS needs root"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be used: load the fuse module, or start the container with it"
    for program, package in (
        ("glusterfsd", "glusterfs-server"),
        ("glusterfs", "glusterfs-client"),
    ):
        if shutil.which(program) is None:
            return f"{program} is missing: apt install {package}"
    return None


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Gluster:
    """A brick on `folder`/brick, served on `port`. Raises GlusterUnavailable."""

    def __init__(self, folder: Path) -> None:
        if lacking := missing():
            raise GlusterUnavailable(lacking)
        self.folder = folder
        self.port = free_port()
        self._children: list[subprocess.Popen[bytes]] = []
        self._mountpoints: list[Path] = []
        self.brick = folder / "brick"
        """What the clients see, from behind: not through any cache, nor any delay."""
        self.brick.mkdir(parents=True)
        text = _SERVER.format(directory=self.brick, port=self.port)
        (folder / "server.vol").write_text(text)
        try:
            self._run("glusterfsd", "server", "-p", str(folder / "server.pid"))
            self._wait(self._listens, "the brick does not listen")
        except BaseException:
            self.close()
            raise

    def mount(
        self, name: str, port: int | None = None, *, options: Sequence[str] = UNCACHED
    ) -> Path:
        """Another client, which reaches the brick at `port` (its own where none is given)."""
        mountpoint = self.folder / name
        mountpoint.mkdir()
        text = _CLIENT.format(port=self.port if port is None else port)
        (self.folder / f"{name}-client.vol").write_text(text)
        self._mountpoints.append(mountpoint)
        self._run("glusterfs", f"{name}-client", *options, str(mountpoint))
        self._wait(lambda: is_mounted(mountpoint), "the mount does not come up")
        self._wait(lambda: _usable(mountpoint), "the mount does not answer")
        return mountpoint

    def close(self) -> None:
        """Unmount and end everything, in the order that lets nobody wait."""
        for mountpoint in self._mountpoints:
            if is_mounted(mountpoint):
                subprocess.run(["umount", "-l", mountpoint], check=False)
        for child in reversed(self._children):
            child.terminate()
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def __enter__(self) -> Gluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, program: str, volume: str, *more: str) -> None:
        """In the foreground, in a session of its own: Ctrl-C must not end the brick before its
        mounts are taken away."""
        files = ["-f", str(self.folder / f"{volume}.vol"), "-l", str(self.folder / f"{volume}.log")]
        self._children.append(
            subprocess.Popen(
                [program, "-N", *files, *more],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        return True

    def _wait(self, true: object, otherwise: str) -> None:
        assert callable(true)
        end = time.monotonic() + START_SECONDS
        while not true():
            if time.monotonic() > end or any(child.poll() is not None for child in self._children):
                logs = "\n".join(path.read_text() for path in self.folder.glob("*.log"))
                raise GlusterUnavailable(f"{otherwise}: {logs[-2000:]}")
            time.sleep(0.05)


def _usable(mountpoint: Path) -> bool:
    try:
        (mountpoint / "probe").write_bytes(b"x")
        (mountpoint / "probe").unlink()
    except OSError:
        return False  # it is mounted before it is connected
    return True
