"""Loads whose pieces are read, verified and copied in one compiled call each, on real files."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sharedfs_backend.buffers import BufferPool
from sharedfs_backend.depth import ReadDepth
from sharedfs_backend.fdcache import FdCache
from sharedfs_backend.files import CheckedLoad, Handle, LocalFiles, WatchedFiles
from sharedfs_backend.misses import MissKind
from sharedfs_backend.native import Loaded, Part
from sharedfs_backend.reader import PackReader
from sharedfs_backend.readplan import ChunkRead
from sharedfs_backend.readtask import ReadTask
from sharedfs_backend.runtime import ThreadRuntime
from tests.datapath.support import MIB, World, compiled, content, destinations_of, reads_of

SIZES = [1, 5000, 4 * MIB, 6 * MIB + 17, 512 << 10, 512 << 10, 3]


class Loads:
    """A reader over watched real files. `before` runs in a worker just before each call."""

    def __init__(self, world: World, *, step_bytes: int = MIB, workers: int = 1) -> None:
        self.world = world
        self.files = WatchedFiles(LocalFiles(world.root), world.runtime)
        self.before: Callable[[], object] = lambda: None
        inner = LocalFiles(world.root)

        def load(
            handle: Handle, offset: int, buffer: int, step: int, parts: Sequence[Part], stop: int
        ) -> Loaded | None:
            self.before()
            return inner.load(handle, offset, buffer, step, parts, stop)

        self.load: CheckedLoad = self.files.watched_load(load)
        self.reader = PackReader(
            self.files,
            world.runtime,
            world.seal,
            fds=FdCache(self.files, world.runtime.now, handles_max=8, patience_seconds=10.0),
            buffers=BufferPool(step_bytes, 64 * MIB),
            depth=ReadDepth(workers, workers),
            loops=compiled(),
            load=self.load,
        )

    def submit(self, reads: list[ChunkRead]) -> tuple[ReadTask, list[bytearray]]:
        destinations = destinations_of(reads)
        deadline = self.world.runtime.now() + 20
        return self.reader.submit(reads, destinations, deadline=deadline), destinations


@pytest.fixture
def loads(tmp_path: Path) -> Loads:
    return Loads(World(str(tmp_path)))


def test_chunks_of_every_size_come_back_in_any_order(loads: Loads) -> None:
    chunks = [content(n, size) for n, size in enumerate(SIZES)]
    order = random.Random(1).sample(range(len(chunks)), len(chunks))
    reads = reads_of(loads.world.store(chunks))
    task, destinations = loads.submit([reads[n] for n in order])
    loads.world.runtime.run()
    assert task.loaded == [True] * len(chunks)
    assert destinations == [chunks[n] for n in order]


def test_a_call_counts_as_the_reads_it_consists_of(loads: Loads) -> None:
    written = loads.world.store([content(n, 4 * MIB) for n in range(3)])
    task, _ = loads.submit(reads_of(written))
    loads.world.runtime.run()
    assert all(task.loaded)
    assert loads.files.operations == {"open": 1, "read": 12}
    assert loads.reader.stats()["reads"] == 12


def test_a_flipped_byte_condemns_its_chunk_alone(loads: Loads) -> None:
    chunks = [content(n, 2 * MIB) for n in range(3)]
    written = loads.world.store(chunks)
    reads = reads_of(written)
    with open(loads.world.path(written), "r+b") as file:
        file.seek(reads[1].offset + 2 * MIB - 1)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    task, destinations = loads.submit(reads)
    loads.world.runtime.run()
    assert [miss and miss.kind for miss in task.outcomes] == [None, MissKind.CHECKSUM, None]
    assert destinations[0] == chunks[0] and destinations[2] == chunks[2]


def test_a_truncated_pack_is_short_and_opened_anew(loads: Loads) -> None:
    chunks = [content(n, 4 * MIB) for n in range(2)]
    written = loads.world.store(chunks)
    reads = reads_of(written)
    whole = Path(loads.world.path(written)).read_bytes()
    os.truncate(loads.world.path(written), reads[1].offset + 3 * MIB)
    task, _ = loads.submit(reads)
    loads.world.runtime.run()
    assert [miss and miss.kind for miss in task.outcomes] == [None, MissKind.SHORT]
    Path(loads.world.path(written)).write_bytes(whole)
    task, destinations = loads.submit(reads)
    loads.world.runtime.run()
    assert all(task.loaded) and destinations == chunks
    assert loads.files.operations["open"] == 2


def test_a_failed_call_is_a_failed_read(loads: Loads) -> None:
    written = loads.world.store([content(1, MIB)])
    os.chmod(loads.world.path(written), 0o600)

    def closed() -> None:
        for fd in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{fd}") == loads.world.path(written):
                    os.close(int(fd))
            except OSError:
                pass

    loads.before = closed
    task, destinations = loads.submit(reads_of(written))
    loads.world.runtime.run()
    assert [miss and miss.kind for miss in task.outcomes] == [MissKind.IO]
    assert destinations == [bytearray(MIB)]
    assert sum(loads.files.failures.values()) == 1


@pytest.mark.parametrize("how", ["cancel", "deadline", "close"])
def test_a_call_that_returns_after_the_end_touches_nothing(loads: Loads, how: str) -> None:
    written = loads.world.store([content(n, 4 * MIB) for n in range(2)])
    task, destinations = loads.submit(reads_of(written))

    def end() -> None:
        if how == "cancel":
            task.cancel()
        elif how == "deadline":
            loads.reader.expire(task.deadline)
        else:
            loads.reader.end_all()
        assert task.is_done

    loads.before = end
    loads.world.runtime.run()
    assert task.loaded == [False, False]
    assert destinations == [bytearray(4 * MIB)] * 2


def test_a_call_that_hangs_keeps_nobodys_memory(loads: Loads) -> None:
    """I7: memory may be given back, not only left alone. A bytearray in use cannot grow."""
    written = loads.world.store([content(n, MIB) for n in range(2)])
    task, destinations = loads.submit(reads_of(written))

    def end() -> None:
        task.cancel()
        for one in destinations:
            one.append(1)

    loads.before = end
    loads.world.runtime.run()
    assert [len(one) for one in destinations] == [MIB + 1] * 2


def test_one_chunk_is_cancelled_alone(loads: Loads) -> None:
    chunks = [content(n, 512 << 10) for n in range(4)]
    written = loads.world.store(chunks)
    task, destinations = loads.submit(reads_of(written))
    loads.before = lambda: task.cancel_chunk(1)
    loads.world.runtime.run()
    assert [miss and miss.kind for miss in task.outcomes] == [None, MissKind.CANCELLED, None, None]
    assert destinations == [chunks[0], bytearray(512 << 10), chunks[2], chunks[3]]


def test_loads_cancelled_at_any_moment_leave_memory_alone_from_then_on(tmp_path: Path) -> None:
    """I2, I7 on the real runtime: what is reported loaded is whole; what is cancelled stays put."""
    runtime = ThreadRuntime(read_workers_max=4)
    world = World(str(tmp_path))
    chunks = [content(n, MIB) for n in range(16)]
    reads = reads_of(world.store(chunks))
    world.runtime = runtime  # type: ignore[assignment]
    loads = Loads(world, step_bytes=256 << 10, workers=4)
    partly = 0
    for number in range(60):
        destinations = destinations_of(reads)
        task = loads.reader.submit(reads, destinations, deadline=runtime.now() + 20)
        threading.Event().wait(number / 10000)  # a little later each time
        task.cancel()
        frozen = [bytes(one) for one in destinations]
        for is_loaded, found, chunk in zip(task.loaded, frozen, chunks, strict=True):
            assert not is_loaded or found == chunk
        partly += any(
            any(found) and found != chunk for found, chunk in zip(frozen, chunks, strict=True)
        )
        again = loads.reader.submit(reads, destinations_of(reads), deadline=1e9)
        assert again.wait() == [None] * 16
        assert [bytes(one) for one in destinations] == frozen
    assert partly  # some were caught in the middle of a chunk
    assert loads.reader.stats()["workers_lost"] == 0
    loads.reader.close()
    runtime.close(5.0)
