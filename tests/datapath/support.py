"""What the tests of the data path share: a runtime run by hand, packs written and read through it.

`ManualRuntime` runs nothing until told to, on the test's own thread, and its clock stands still
until moved: every interleaving here is chosen, none is waited for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from sharedfs_backend import native
from sharedfs_backend.buffers import BufferPool
from sharedfs_backend.depth import ReadDepth
from sharedfs_backend.dirty import DirtyBudget
from sharedfs_backend.fdcache import FdCache
from sharedfs_backend.files import (
    Buffer,
    CountingFiles,
    Files,
    Handle,
    HashedWrite,
    LocalFiles,
)
from sharedfs_backend.gate import Gate
from sharedfs_backend.layout import LayoutDescriptor, PackName, Seal
from sharedfs_backend.native import Loops
from sharedfs_backend.packjob import PackJob, WrittenPack
from sharedfs_backend.reader import PackReader
from sharedfs_backend.readplan import ChunkRead
from sharedfs_backend.rules import Rules
from sharedfs_backend.runtime import Lane, LaneFull, Waiter
from sharedfs_backend.writer import PackWriter
from tests.files.faulty import FaultyFiles

MIB = 1 << 20
LAYOUT = LayoutDescriptor(("float16",), ((2, 8),), "KV_2LTD", 256)
WRITER = "0123456789abcdef"


class ManualRuntime:
    """A `Runtime` whose work waits in `queue` until `run`, and whose clock is `seconds`."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.queue: deque[Callable[[], None]] = deque()
        self.is_full = False

    def now(self) -> float:
        return self.seconds

    def random_bytes(self, count: int) -> bytes:
        return bytes(count)

    def submit(self, lane: Lane, work: Callable[[], None]) -> None:
        if self.is_full:
            raise LaneFull("the test says so")
        self.queue.append(work)

    def waiter(self) -> Waiter:
        return threading.Event()

    def close(self, timeout_seconds: float) -> None:
        self.queue.clear()

    def run(self) -> None:
        """Everything queued, and what that queues."""
        while self.queue:
            self.queue.popleft()()


class HookedFiles(CountingFiles):
    """Counting files; the test may do something once a read or write has moved its bytes."""

    def __init__(self, inner: Files) -> None:
        super().__init__(inner)
        self.after_read: Callable[[], None] = lambda: None
        self.after_write: Callable[[], None] = lambda: None

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        count = super().read(handle, offset, into)
        self.after_read()
        return count

    def write(self, handle: Handle, offset: int, parts: Sequence[Buffer]) -> None:
        super().write(handle, offset, parts)
        self.after_write()


def compiled() -> Loops:
    """The compiled loops, or a skip that says how to get them."""
    found = native.loops()
    if found is None:
        pytest.skip("the compiled loops were not built: apt install gcc, then install again")
    return found


def content(seed: int, size: int) -> bytes:
    """Bytes no other seed gives."""
    return np.random.default_rng(seed).bytes(size)


@dataclass
class World:
    """A namespace root with its file layers (faulty below counting) and a runtime."""

    root: str
    runtime: ManualRuntime = field(default_factory=ManualRuntime)
    seal: Seal = field(default_factory=Seal)
    piece_bytes: int = 4 * MIB
    depth_max: int = 4
    rules: Rules = field(default_factory=Rules)
    buffer_bytes_max: int = 64 * MIB
    pieces_max: int = 1000
    dirty_bytes_max: int = 1 << 40
    loops: Loops | None = field(default_factory=native.loops)
    write_hashed: HashedWrite | None = None
    local: Files | None = None

    def __post_init__(self) -> None:
        self.local = self.local or LocalFiles(self.root)
        for path in ("packs", *(f"packs/{shard:02x}" for shard in range(4))):
            self.local.make_dir(path)
        self.faulty = FaultyFiles(self.local)
        self.files = HookedFiles(self.faulty)
        self.dirty = DirtyBudget(self.dirty_bytes_max)
        self.writer = PackWriter(
            self.files,
            self.runtime,
            self.seal,
            piece_bytes=self.piece_bytes,
            dirty=self.dirty,
            write_hashed=self.write_hashed,
            loops=self.loops,
            rules=self.rules,
        )
        self.fds = FdCache(self.files, self.runtime.now, handles_max=8, patience_seconds=10.0)
        self.buffers = BufferPool(self.piece_bytes, self.buffer_bytes_max)
        self.reader = PackReader(
            self.files,
            self.runtime,
            self.seal,
            fds=self.fds,
            buffers=self.buffers,
            depth=ReadDepth(1, self.depth_max),
            loops=self.loops,
            pieces_max=self.pieces_max,
            rules=self.rules,
        )

    def job(
        self,
        chunks: Sequence[bytes | bytearray],
        seq: int = 1,
        gates: Sequence[Gate] | None = None,
        align_bytes: int = 4096,
    ) -> PackJob:
        return PackJob.plan(
            name=PackName(bytes([seq % 4]) * 16, WRITER, seq),
            realm=b"r" * 16,
            layout=LAYOUT,
            fingerprint=LAYOUT.fingerprint(self.seal),
            rank=3,
            version=7,
            keys=[number.to_bytes(16, "big") for number in range(len(chunks))],
            buffers=chunks,
            gates=gates or [Gate()] * len(chunks),
            submitted=self.runtime.now(),
            ttl_seconds=300.0,
            align_bytes=align_bytes,
        )

    def store(self, chunks: Sequence[bytes | bytearray], seq: int = 1) -> WrittenPack:
        """Chunks in a pack, written; counts start afresh."""
        written = self.writer.write(self.job(chunks, seq)).written
        assert written is not None
        self.files.reset()
        return written

    def path(self, written: WrittenPack) -> str:
        return f"{self.root}/{written.commit.name.path}"

    @property
    def ops(self) -> list[str]:
        """Names of the operations tried, in order."""
        return [operation.op for operation in self.files.log]


def reads_of(*packs: WrittenPack) -> list[ChunkRead]:
    """Every chunk of these packs, in order."""
    return [
        ChunkRead(pack.commit.name, row.offset, row.length, row.checksum)
        for pack in packs
        for row in pack.commit.entries
    ]


def destinations_of(reads: Sequence[ChunkRead]) -> list[bytearray]:
    return [bytearray(read.length) for read in reads]
