"""SimFiles: the `Files` protocol of one client on the shared simulated disk.

Every operation is a yield point twice: it starts (and may be killed, frozen or failed there), takes
virtual time until its effect on the servers, and again until it returns. What this client sees is
what its file system promises and no more: old listings, remembered absences, an open file that
does not grow, sizes without data, short reads with holes.

A client killed inside an operation leaves its effect to chance: whole, none, a part, or late.
Operations are counted by kind and by the tag of the task behind them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from sharedfs_backend.files.api import Buffer, Handle, checked_path
from sharedfs_backend.files.failure import FailureKind, FileFailure
from tests.sim.chaos import Chaos, Fault, When
from tests.sim.disk import Disk, Inode
from tests.sim.world import Client, SimKilled

T = TypeVar("T")
Names = list[str]
OPERATION_SECONDS = 0.001
# After a kill, writes already handed to the kernel reach the servers within so many seconds.
LATE_WRITE_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class SimHandle:
    """An open file of one client."""

    path: str
    inode: Inode
    writable: bool
    client: Client
    frozen: bytes | None = None  # close-to-open: what this handle sees
    calls: int = 0
    writing: bool = False  # a write has not reached the servers
    closed: bool = False

    def is_others(self, client: Client) -> bool:
        """Another process, frozen or not, may still write through it.

        A journal that says it has ended is written no more, though its close may take a while."""
        may_write = self.writing or not self.path.startswith("journals/")
        return self.client is not client and not self.client.dead and may_write


@dataclass(slots=True)
class _Pending:
    """A write in this client's page cache, not yet with the servers."""

    inode: Inode
    offset: int
    data: bytes
    done: bool = False


class SimFiles:
    """One client's mount."""

    def __init__(self, client: Client, disk: Disk, chaos: Chaos) -> None:
        self.client, self.disk, self.chaos = client, disk, chaos
        self.world, self.quirks = client.world, disk.quirks
        self.counts: Counter[str] = Counter()
        self.by_tag: dict[str, Counter[str]] = {}
        self.handles: set[SimHandle] = set()
        self._listings: dict[str, tuple[float, Names]] = {}
        self._absent: dict[str, float] = {}
        self._pending: list[_Pending] = []

    # -- the protocol ---------------------------------------------------------------------------

    def create(self, path: str) -> Handle:
        checked_path(path, "create")
        return self._op("create", path, lambda: self._create(path))

    def open_read(self, path: str) -> Handle:
        checked_path(path, "open")
        return self._op("open", path, lambda: self._open(path, writable=False))

    def open_write(self, path: str) -> Handle:
        checked_path(path, "open")
        return self._op("open", path, lambda: self._open(path, writable=True))

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        file = self._enter(handle, "read")
        try:
            return self._op(
                "read",
                file.path,
                lambda: self._read(file, offset, into),
                offset=offset,
                size=into.nbytes,
                short=lambda: self._short_read(into, into.nbytes),
            )
        finally:
            file.calls -= 1

    def write(self, handle: Handle, offset: int, parts: Sequence[Buffer]) -> None:
        file = self._enter(handle, "write")
        if not file.writable:
            raise self._failure(FailureKind.IO, "write", file.path)
        grown = sum(memoryview(part).nbytes for part in parts)

        def act() -> None:
            self._write(file, offset, parts)
            file.writing = False

        file.writing = True
        try:
            self._op("write", file.path, act, offset=offset, size=grown)
        finally:
            file.writing = False
            file.calls -= 1

    def flush(self, handle: Handle, offset: int, length: int) -> None:
        file = self._enter(handle, "flush")
        try:
            self._op("flush", file.path, lambda: self._write_back(file.inode))
        finally:
            file.calls -= 1

    def close(self, handle: Handle) -> None:
        file = self._enter(handle, "close")
        if file.calls > 1:
            self.disk.violate(f"{self.client} closes {file.path} with calls in flight")
        file.closed = True
        self.handles.discard(file)
        try:
            self._op("close", file.path, lambda: self._close(file))
        finally:
            self._let_go(file)

    def unlink(self, path: str) -> None:
        checked_path(path, "unlink")
        self._op("unlink", path, lambda: self._unlink(path))

    def list(self, path: str) -> Names:
        if path:
            checked_path(path, "list")
        return self._op("list", path, lambda: self._list(path))

    def make_dir(self, path: str) -> None:
        if path:
            checked_path(path, "mkdir")
        self._op("mkdir", path, lambda: self._make_dir(path))

    def size(self, path: str) -> int:
        checked_path(path, "stat")
        return self._op("stat", path, lambda: len(self._find(path, "stat").data))

    def free_bytes(self) -> int | None:
        disk = self.disk
        free = None if disk.capacity_bytes is None else disk.capacity_bytes - disk.bytes_total
        return self._op("stat", "", lambda: free)

    # -- one operation --------------------------------------------------------------------------

    def _op(
        self,
        op: str,
        path: str,
        effect: Callable[[], T],
        *,
        offset: int = 0,
        size: int = 0,
        short: Callable[[], T] | None = None,
    ) -> T:
        world, task = self.world, self.world.current
        if self.client.dead:
            raise SimKilled(self.client.name)
        self.counts[op] += 1
        self.by_tag.setdefault(task.tag, Counter())[op] += 1
        world.say(
            task, f"{op} {path} @{offset} +{size}" if op in ("read", "write") else f"{op} {path}"
        )
        if task is world.main:
            return effect()
        fault = self.chaos.before(self.client, op, path)
        task.in_kernel = True
        try:
            self._travel(op, effect, fault)
            if fault is not None and fault.kind is not None and fault.when is When.BEFORE:
                raise self._failure(fault.kind, op, path, "injected")
            if op == "write" and not self.disk.fits(size):
                raise self._failure(FailureKind.NO_SPACE, op, path)
            result = effect()
        finally:
            task.in_kernel = False
        if world.random.random() < 0.5:
            world.sleep(world.random.random() * OPERATION_SECONDS)
        if fault is not None and fault.kind is not None:
            raise self._failure(fault.kind, op, path, "injected after the effect")
        if fault is not None and fault.short and short is not None:
            return short()
        return result

    def _travel(self, op: str, effect: Callable[[], object], fault: Fault | None) -> None:
        """The way of an operation to the servers; a kill on it leaves the effect to chance."""
        world = self.world
        seconds = world.random.random() * OPERATION_SECONDS + (fault.seconds if fault else 0.0)
        try:
            world.sleep(seconds)
        except SimKilled:
            if op not in ("read", "list", "stat", "open") and not world.closing:
                fate = world.random.random()
                if fate < 0.3:
                    self._quietly(effect)
                elif fate < 0.6:
                    late = world.time + world.random.random() * LATE_WRITE_SECONDS
                    world.at(late, lambda: self._quietly(effect))
            raise

    def _quietly(self, effect: Callable[[], object]) -> None:
        with suppress(FileFailure, SimKilled):  # the caller is dead: nobody hears of it
            effect()

    def _failure(
        self, kind: FailureKind, op: str, path: str, detail: str = "simulated"
    ) -> FileFailure:
        if kind is FailureKind.NO_SPACE:
            self.disk.told_full.add(self.client.name)
        return FileFailure(kind, op, path, detail)

    def _enter(self, handle: Handle, op: str) -> SimHandle:
        assert isinstance(handle, SimHandle)
        if self.client.dead:
            raise SimKilled(self.client.name)
        if handle.closed:
            self.disk.violate(f"{self.client} uses {handle.path} for {op} after closing it")
            raise self._failure(FailureKind.IO, op, handle.path, "closed handle")
        handle.calls += 1
        return handle

    # -- effects --------------------------------------------------------------------------------

    def _create(self, path: str) -> SimHandle:
        disk, now = self.disk, self.world.time
        if path.rpartition("/")[0] not in disk.directories:
            raise self._failure(FailureKind.MISSING, "create", path)
        node = disk.nodes.get(path)
        if node is not None:
            racing = now - node.created < OPERATION_SECONDS and node.creator != self.client.name
            if not (self.quirks.excl_races and racing and self.world.random.random() < 0.5):
                raise self._failure(FailureKind.EXISTS, "create", path)
        else:
            node = disk.create(self.client, path)
        self._absent.pop(path, None)
        self._listings.pop(path.rpartition("/")[0], None)
        return self._handle(path, node, writable=True)

    def _open(self, path: str, *, writable: bool) -> SimHandle:
        node = self._find(path, "open")
        handle = self._handle(path, node, writable=writable)
        if self.quirks.close_to_open and not writable:
            handle.frozen = self._own_view(node)
        return handle

    def _find(self, path: str, op: str) -> Inode:
        now = self.world.time
        if self._absent.get(path, -1.0) > now:
            raise self._failure(FailureKind.MISSING, op, path, "remembered as missing")
        node = self.disk.nodes.get(path)
        if node is None:
            if self.quirks.lookup_stale_seconds:
                self._absent[path] = (
                    now + self.world.random.random() * self.quirks.lookup_stale_seconds
                )
            raise self._failure(FailureKind.MISSING, op, path)
        return node

    def _handle(self, path: str, node: Inode, *, writable: bool) -> SimHandle:
        handle = SimHandle(path, node, writable, self.client)
        self.handles.add(handle)
        if writable:
            self.disk.writers.setdefault(node.number, []).append(handle)
        return handle

    def _own_view(self, node: Inode) -> bytes:
        """The servers' bytes with this client's own pending writes over them."""
        data = bytearray(node.data)
        for pending in self._pending:
            if pending.inode is node and not pending.done:
                end = pending.offset + len(pending.data)
                data.extend(bytes(max(0, end - len(data))))
                data[pending.offset : end] = pending.data
        return bytes(data)

    def _read(self, file: SimHandle, offset: int, into: memoryview) -> int:
        node = file.inode
        if not node.linked and node.creator != self.client.name:
            if self.quirks.unlink_while_reading == "ESTALE":
                raise self._failure(FailureKind.STALE, "read", file.path)
            if self.quirks.unlink_while_reading == "short":
                return self._short_read(into, into.nbytes)
        source = file.frozen if file.frozen is not None else node.data
        data = source[offset : offset + into.nbytes]
        into.cast("B")[: len(data)] = data
        return len(data)

    def _short_read(self, into: memoryview, had: int) -> int:
        """Less than there is and, where reads have holes, not even a prefix of it."""
        got = self.world.random.randrange(had) if had else 0
        if got and self.quirks.short_read_holes:
            hole = self.world.random.randrange(got)
            into.cast("B")[hole:got] = bytes(got - hole)
        return got

    def _write(self, file: SimHandle, offset: int, parts: Sequence[Buffer]) -> None:
        # Joined as the kernel copies them: a buffer reused meanwhile shows.
        data = b"".join(bytes(memoryview(part).cast("B")) for part in parts)
        node = file.inode
        if not data:
            return
        if not node.linked and self.quirks.unlink_while_writing == "ESTALE":
            raise self._failure(FailureKind.STALE, "write", file.path)
        if self.quirks.close_to_open:
            pending = _Pending(node, offset, data)
            self._pending.append(pending)
            seconds = self.world.random.random() * 2 * LATE_WRITE_SECONDS
            self.world.at(self.world.time + seconds, lambda: self._send(pending))
            return
        if self.quirks.size_before_data and not self.client.dead:
            self.disk.extend(node, offset + len(data))
            if self.world.current.client is self.client:
                self.world.sleep(self.world.random.random() * OPERATION_SECONDS)
        if self.client.dead and self.world.random.random() < 0.5:
            data = data[: self.world.random.randrange(len(data) + 1)]
        self.disk.write(self.client.name, node, offset, data)

    def _send(self, pending: _Pending) -> None:
        if not pending.done:
            pending.done = True
            self._pending.remove(pending)
            if pending.inode.linked:
                self.disk.write(self.client.name, pending.inode, pending.offset, pending.data)

    def _write_back(self, node: Inode) -> None:
        mine = [pending for pending in self._pending if pending.inode is node]
        self.world.random.shuffle(mine)
        for pending in mine:
            self._send(pending)

    def _let_go(self, file: SimHandle) -> None:
        """Whether close succeeded or not, the handle is gone."""
        if file.writable:
            self.disk.writers[file.inode.number].remove(file)

    def _close(self, file: SimHandle) -> None:
        self._write_back(file.inode)
        if file.writable:
            if self.quirks.close_settles:
                self.disk.settle(file.inode)
            if file.inode.creator == self.client.name:
                file.inode.closed = True

    def _unlink(self, path: str) -> None:
        node = self.disk.nodes.get(path)
        if node is None:
            raise self._failure(FailureKind.MISSING, "unlink", path)
        others = [h for h in self.disk.writers.get(node.number, ()) if h.is_others(self.client)]
        self._listings.pop(path.rpartition("/")[0], None)
        self.disk.unlink(self.client, path, len(others))

    def _list(self, path: str) -> Names:
        if path not in self.disk.directories:
            raise self._failure(FailureKind.MISSING, "list", path)
        now, stale = self.world.time, self.quirks.listing_stale_seconds
        taken, names = self._listings.get(path, (-1e9, []))
        if now - taken > stale * self.world.random.random():
            taken, names = now, self.disk.children(path)
            if self.quirks.listing_may_miss:
                names = [name for name in names if not self._may_miss(path, name)]
            self._listings[path] = (taken, names)
        shuffled = list(names)
        self.world.random.shuffle(shuffled)
        return shuffled

    def _may_miss(self, path: str, name: str) -> bool:
        node = self.disk.nodes.get(f"{path}/{name}" if path else name)
        if node is None or node.creator == self.client.name:
            return False
        young = self.world.time - node.created < self.quirks.listing_stale_seconds
        return young and self.world.random.random() < 0.5

    def _make_dir(self, path: str) -> None:
        if path and path.rpartition("/")[0] not in self.disk.directories:
            raise self._failure(FailureKind.MISSING, "mkdir", path)
        if path in self.disk.nodes:
            raise self._failure(FailureKind.EXISTS, "mkdir", path)
        self.disk.make_dir(path)
