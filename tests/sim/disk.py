"""The shared simulated disk: names, bytes, what a crash may undo, and what must never happen.

It is the servers' side of a file system: state changes here are what every client may come to see.
How and when a client sees them is `files.py`'s business. The disk also watches the rules that
hold for every byte written, whoever wrote it: a name is used once and by one client, a pack does
not change once its writer closed it (I1), the namespace never outgrows its cap.

Crash model: every write that is not settled happened, did not, or left garbage, each on its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tests.sim.quirks import Quirks
from tests.sim.world import Client, World

ONCE = ("packs/", "journals/", "snapshots/", "settings/")
"""Directories in which a name belongs to one writer and is never used again (I1)."""


REBOOT_SECONDS = 300.0
"""From a crash of every machine until somebody looks at what it left."""


@dataclass(slots=True)
class Write:
    """One write as the servers took it."""

    time: float
    offset: int
    data: bytes


class OpenFile(Protocol):
    """A handle open for writing, as far as the disk looks at it."""

    def is_others(self, client: Client) -> bool: ...


@dataclass(slots=True, eq=False)
class Inode:
    """A file, linked or not."""

    number: int
    path: str
    creator: str
    created: float
    data: bytearray = field(default_factory=bytearray)
    linked: bool = True
    closed: bool = False  # its creator closed it: from now on a pack is immutable
    doomed: bool = False  # a re-created name on a file system that then loses the data
    settled: bytes = b""  # what survives any crash
    unsettled: list[Write] = field(default_factory=list)


class Disk:
    """All files of one namespace. Touched by the baton's holder only."""

    def __init__(self, world: World, quirks: Quirks) -> None:
        self.world, self.quirks = world, quirks
        self.nodes: dict[str, Inode] = {}
        self.directories: dict[str, set[str]] = {"": set()}
        self.ever: dict[str, str] = {}
        self.unlinked: dict[str, float] = {}
        self.bytes_total = self.bytes_highest = 0
        self.cap_bytes: int | None = None
        self.capacity_bytes: int | None = None  # the device's size: beyond it NO_SPACE
        self.told_full: set[str] = set()  # clients that got a NO_SPACE
        self.violations: list[str] = []
        self.writers: dict[int, list[OpenFile]] = {}
        self.on_write: list[Callable[[Inode, str, int, int], None]] = []
        self.on_unlink: list[Callable[[str, str], None]] = []
        self._numbers = 0

    def violate(self, text: str) -> None:
        """Remember a broken rule and end the run."""
        line = f"{self.world.time:.6f} {text}"
        self.violations.append(line)
        self.world.say("disk", f"VIOLATION {text}")
        self.world.stop()

    # -- names ----------------------------------------------------------------------------------

    def create(self, client: Client, path: str) -> Inode:
        """A new inode under a free name; the caller has checked that it is free."""
        if path.startswith(ONCE) and path in self.ever:
            self.violate(f"{client} uses the name {path} again, first used by {self.ever[path]}")
        self._numbers += 1
        node = Inode(self._numbers, path, client.name, self.world.time)
        node.doomed = self.quirks.recreate_loses_data and path in self.unlinked
        self.ever.setdefault(path, client.name)
        self.nodes[path] = node
        self._link(path)
        return node

    def unlink(self, client: Client, path: str, writers: int) -> None:
        """Remove a name that exists. `writers`: handles of other clients still open for writing."""
        node = self.nodes.pop(path)
        directory, _, name = path.rpartition("/")
        self.directories[directory].discard(name)
        node.linked = False
        self.unlinked[path] = self.world.time
        self.bytes_total -= len(node.data)
        if writers and self.quirks.unlink_while_writing == "poisons":
            self.violate(f"{client} unlinked {path} while {writers} writers have it open")
        for call in self.on_unlink:
            call(path, client.name)

    def make_dir(self, path: str) -> None:
        """A directory below an existing one."""
        if path not in self.directories:
            self.directories[path] = set()
            self._link(path)

    def children(self, path: str) -> list[str]:
        """Base names in a directory."""
        return sorted(self.directories[path])

    def _link(self, path: str) -> None:
        directory, _, name = path.rpartition("/")
        self.directories[directory].add(name)

    # -- bytes ----------------------------------------------------------------------------------

    def extend(self, node: Inode, size: int) -> None:
        """Publish a size without its data."""
        grown = size - len(node.data)
        if grown > 0:
            node.data.extend(bytes(grown))
            self._account(node, grown)

    def write(self, client: str, node: Inode, offset: int, data: bytes) -> None:
        """The servers take a write."""
        self._check_write(client, node)
        self.extend(node, offset + len(data))
        if not node.doomed:
            node.data[offset : offset + len(data)] = data
        node.unsettled.append(Write(self.world.time, offset, data))
        for call in self.on_write:
            call(node, client, offset, len(data))

    def settle(self, node: Inode) -> None:
        """Everything written so far survives a crash."""
        node.settled = bytes(node.data)
        node.unsettled.clear()

    def fits(self, grown: int) -> bool:
        """Whether the device has room for so many more bytes."""
        return self.capacity_bytes is None or self.bytes_total + grown <= self.capacity_bytes

    def _account(self, node: Inode, grown: int) -> None:
        if not node.linked:
            return
        self.bytes_total += grown
        self.bytes_highest = max(self.bytes_highest, self.bytes_total)
        if self.cap_bytes is not None and self.bytes_total > self.cap_bytes:
            self.violate(f"{self.bytes_total} bytes are over the cap of {self.cap_bytes}")

    def _check_write(self, client: str, node: Inode) -> None:
        path = node.path
        if node.closed and path.startswith("packs/"):
            self.violate(f"{client} writes to {path} after it was closed (I1)")
        if path.startswith(ONCE) and node.creator != client:
            self.violate(f"{client} writes to {path}, which is {node.creator}'s (I1)")
        if not node.linked and self.quirks.unlink_while_writing == "poisons":
            self.violate(f"{client} writes into {path}, which is unlinked")

    # -- crashes --------------------------------------------------------------------------------

    def crashed(self, world: World, choice: random.Random) -> Disk:
        """A copy of this disk as a crash of every machine may leave it, for another world."""
        copy = Disk(world, self.quirks)
        copy._numbers = self._numbers
        for directory in self.directories:
            copy.directories.setdefault(directory, set())
            if directory:
                copy._link(directory)
        copy.ever, copy.unlinked = dict(self.ever), dict.fromkeys(self.unlinked, 0.0)
        for path, node in self.nodes.items():
            if not node.settled and node.unsettled and choice.random() < 0.1:
                continue  # not even its creation survived
            made = Inode(node.number, path, node.creator, -REBOOT_SECONDS, closed=True)
            made.doomed = node.doomed
            made.data = after_crash(node, self.quirks.unsettled, choice)
            made.settled = bytes(made.data)
            copy.nodes[path] = made
            copy._link(path)
            copy.bytes_total += len(made.data)
        return copy


def after_crash(node: Inode, outcomes: tuple[str, ...], choice: random.Random) -> bytearray:
    """The bytes of a file whose unsettled writes each came to one of `outcomes`."""
    data = bytearray(node.settled)
    for write in node.unsettled:
        fate = choice.choice((*outcomes, "kept", "hole"))
        if fate == "lost":
            continue
        end = write.offset + len(write.data)
        data.extend(bytes(max(0, end - len(data))))
        if fate == "kept":
            data[write.offset : end] = write.data
        elif fate == "partial":
            torn = choice.randrange(len(write.data) + 1)
            data[write.offset : write.offset + torn] = write.data[:torn]
        elif fate == "garbage":
            data[write.offset : end] = choice.randbytes(len(write.data))
        # "hole": the size came through, the data did not
    return data
