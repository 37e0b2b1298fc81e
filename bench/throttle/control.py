"""Control of a throttled mount, from any process: settings, faults and counters, over its socket.

The socket is outside the mount, so that it answers while the mount hangs. Settings are whole
numbers with their unit in the name (see `SETTINGS` in src/throttle.h); `mount.Throttle` offers them
in people's units. One connection for each command: nothing to keep open, nothing to leak.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

CLASSES = ("metadata", "open", "read", "write", "close")
"""Of operations: what a latency or a fault applies to. A create is an open."""
ANY = "any"

ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Counters:
    """Requests that the kernel made since the mount began, by kind; a difference is one too.

    A path of n components that the kernel does not believe it knows costs n `lookup`.
    """

    lookup: int
    getattr: int
    setattr: int
    mkdir: int
    rmdir: int
    unlink: int
    rename: int
    link: int
    symlink: int
    readlink: int
    list: int
    statfs: int
    open: int
    create: int
    read: int
    write: int
    fsync: int
    fallocate: int
    close: int
    release: int
    bytes_read: int
    bytes_written: int
    failed: int
    """Requests that were made to fail."""
    hanging: int
    """Requests that hang now."""
    excl_races: int
    """Exclusive creations that succeeded although the name was taken."""
    names_recreated: int
    """Creations of a name that was unlinked before."""
    unlinked_while_written: int
    short_reads: int
    published: int
    """Files whose bytes became visible at close."""

    def __sub__(self, before: Counters) -> Counters:
        mine, other = asdict(self), asdict(before)
        return Counters(**{name: value - other[name] for name, value in mine.items()})

    def __str__(self) -> str:
        """Those that are not zero."""
        return " ".join(f"{name}={value}" for name, value in asdict(self).items() if value)

    @property
    def metadata(self) -> int:
        """Requests that paid the latency of metadata."""
        changes = self.setattr + self.mkdir + self.rmdir + self.unlink + self.rename
        rest = self.link + self.symlink + self.readlink + self.list + self.statfs
        return self.lookup + self.getattr + changes + rest

    @property
    def operations(self) -> int:
        """All of them, but for `release`, for which nobody waits."""
        data = self.read + self.write + self.fsync + self.fallocate
        return self.metadata + self.open + self.create + data + self.close


class Control:
    """See the module. Usable from any thread."""

    def __init__(self, socket_path: Path) -> None:
        self.socket_path = socket_path

    def change(self, settings: Mapping[str, int]) -> None:
        """Set these; ValueError for a name that is none."""
        self._command("set " + " ".join(f"{name}={value}" for name, value in settings.items()))

    def settings(self) -> dict[str, int]:
        """All of them, as they are."""
        return _numbers(self._command("get"))

    def counters(self) -> Counters:
        """All counters, now."""
        found = _numbers(self._command("counters"))
        return Counters(**{field.name: found[field.name] for field in fields(Counters)})

    def fail(self, error: str, *, of: str = ANY, at: int = 1, count: int = 1) -> None:
        """From the `at`-th operation of the class `of` on, counted from now, `count` operations (0:
        all) fail with the errno called `error`, "EIO" say. They take their latency, and no effect.
        """
        number = getattr(errno, error, 0)
        if not number:
            raise ValueError(f"{error!r} is the name of no errno")
        _check(at, count)
        self._command(f"fail {of} {number} {at} {count}")

    def hang(self, *, of: str = ANY, at: int = 1, count: int = 0) -> None:
        """The same, but they do not come back before `clear`, and are carried out then."""
        _check(at, count)
        self._command(f"fail {of} 0 {at} {count}")

    def clear(self) -> None:
        """No faults from now on; what hangs goes on."""
        self._command("clear")

    def _command(self, line: str) -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(str(self.socket_path))
            connection.sendall(line.encode() + b"\n")
            answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        if answer.startswith("error"):
            raise ValueError(f"{line}: {answer.strip()}")
        return answer


def _check(at: int, count: int) -> None:
    if at < 1 or count < 0:
        raise ValueError(f"at {at}, count {count}: operations count from 1, and 0 is all of them")


def _numbers(text: str) -> dict[str, int]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: int(value) for name, _, value in pairs}
