"""A directory whose operations take as long as a case wants: the throttle, or plainly a directory.

With the throttle, latency and bandwidth change while everything stays mounted, the page cache is
out of the way, and operations are counted. Without it (not built, no /dev/fuse) a case still runs
on the directory as it is, at whatever latency that has; `throttled` says so and `why` says why,
and the case records the other conditions as not measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.core.machine import file_system

MIB = 1 << 20
IN_MEMORY = ("tmpfs", "ramfs")
"""File systems that hold their bytes in memory anyway: no cache stands before them."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Milliseconds added to each operation, and a cap of the bandwidth (None: none)."""

    latency_ms: float = 0.0
    bandwidth_mb_s: float | None = None


class Mount(Protocol):
    """`path` is where contenders work; `backing` holds the same files without any throttle."""

    path: Path
    backing: Path
    throttled: bool
    why: str
    daemon_pid: int | None
    """Of the process that serves the mount."""

    def apply(self, conditions: Conditions) -> None:
        """From now on. Without a throttle only the plain conditions are possible (ValueError)."""

    def counters(self) -> dict[str, int]:
        """Operations since the mount, by kind; empty where nothing counts them."""


class Plain:
    """The directory as it is."""

    throttled = False
    daemon_pid: int | None = None

    def __init__(self, folder: Path, why: str) -> None:
        self.path = self.backing = folder
        self.why = why

    def apply(self, conditions: Conditions) -> None:
        if conditions != Conditions():
            raise ValueError(f"nothing throttles this directory: {self.why}")

    def counters(self) -> dict[str, int]:
        return {}


class Throttled:
    """A FUSE pass-through over `backing`."""

    throttled = True
    why = ""

    def __init__(self, throttle: Any, backing: Path, mountpoint: Path) -> None:
        self._throttle, self.backing, self.path = throttle, backing, mountpoint
        self.daemon_pid: int | None = getattr(throttle, "pid", None)

    def apply(self, conditions: Conditions) -> None:
        self._throttle.set(
            latency_ms=conditions.latency_ms, bandwidth_mb_s=conditions.bandwidth_mb_s
        )

    def counters(self) -> dict[str, int]:
        return dataclasses.asdict(self._throttle.counters())


@contextlib.contextmanager
def mounted(folder: Path, *, cache: bool = False) -> Iterator[Mount]:
    """A mount on `folder` (made if need be), unmounted at the end."""
    why = throttle_problem()
    folder.mkdir(parents=True, exist_ok=True)
    if why:
        plain = folder / "plain"
        plain.mkdir(exist_ok=True)
        yield Plain(plain, why)
        return
    throttle_type, _ = _throttle()
    backing, mountpoint = folder / "backing", folder / "mount"
    backing.mkdir(exist_ok=True)
    mountpoint.mkdir(exist_ok=True)
    with throttle_type(backing, mountpoint, cache=cache) as throttle:
        yield Throttled(throttle, backing, mountpoint)


def what_serves(mount: Mount) -> str:
    """Where the bytes of a load come from, as a report says it."""
    kind = file_system(mount.backing)
    place = "one mount" if mount.throttled else "a plain directory"
    if kind in IN_MEMORY:
        return f"{place}, page cache bypassed" if mount.throttled else f"{place} in memory ({kind})"
    over = "over" if mount.throttled else "on"
    return f"{place} {over} {kind}, this machine's page cache let go before each lookup"


def let_go_of_pages(folder: Path) -> None:
    """Of the files below: what is read next comes from where they lie, not from this machine's page
    cache. Where they lie in memory there is nothing to let go. Outside of any timing."""
    if file_system(folder) in IN_MEMORY:
        return
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if not path.is_file():
                continue
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(fd)  # a page not yet written stays
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def plain_bandwidth_mb_s(mount: Mount, readers: int = 4, size: int = 64 * MIB) -> float:
    """What plain readers of large blocks get from the mount together, nothing added. MB/s."""
    mount.apply(Conditions())
    paths = [mount.path / f"plain-{number}" for number in range(readers)]
    for path in paths:
        path.write_bytes(bytes(MIB) * (size // MIB))
    threads = [threading.Thread(target=_read_all, args=(path,)) for path in paths]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    for path in paths:
        path.unlink()
    return readers * size / seconds / 1e6


def _read_all(path: Path) -> None:
    into = bytearray(4 * MIB)
    with path.open("rb", buffering=0) as file:
        while file.readinto(into):
            pass


def _throttle() -> tuple[Any, Any]:
    """The instrument's class and its error. Imported late: a report needs neither."""
    module = importlib.import_module("bench.throttle")
    return module.Throttle, module.ThrottleUnavailable


@functools.cache
def throttle_problem() -> str:
    """Why there is no throttle here and what to do about it; "" if there is one. Tries a mount."""
    try:
        throttle_type, unavailable = _throttle()
    except (ImportError, AttributeError) as error:
        return f"no throttling file system: {error}"
    with tempfile.TemporaryDirectory(prefix="bench-throttle-") as scratch:
        backing, mountpoint = Path(scratch) / "backing", Path(scratch) / "mount"
        backing.mkdir()
        mountpoint.mkdir()
        try:
            with throttle_type(backing, mountpoint):
                return ""
        except unavailable as error:
            return str(error)
