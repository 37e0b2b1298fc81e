"""Reading in place: from this machine's memory straight to the caller's, verified there.

The same outcomes as through private buffers, and the same silence after the end (I7): the whole
suite of loads that matters is repeated here with a file layer that has the pages, has some of them,
or has none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sharedfs_backend.files import Handle, LocalFiles
from sharedfs_backend.files.profile import CachedReads, Profile
from sharedfs_backend.layout.seal import UNIT_BYTES
from sharedfs_backend.misses import MissKind
from sharedfs_backend.native import Extent, Loops
from sharedfs_backend.reader import PackReader
from sharedfs_backend.readplan import ChunkRead
from sharedfs_backend.readstep import native_fill, python_fill
from sharedfs_backend.readtask import ReadTask
from tests.datapath.support import MIB, World, compiled, content, destinations_of, reads_of

SIZES = [5 * MIB + 7, 10, 700_000, 900_000, 2 * MIB, MIB, 0, 1]


class Memory:
    """A mount that has `held` bytes of each read in memory (all with None), and remembers what it
    was asked. `fill` reads through it in Python, or in the compiled loops."""

    def __init__(self, world: World, loops: Loops | None) -> None:
        self.files = LocalFiles(world.root, Profile(cached_reads=CachedReads.MEMORY))
        self.is_compiled = loops is not None
        self.fill = python_fill(self.read, world.seal)
        if loops is not None:
            self.fill = native_fill(self.read_hashed)
        self.held: int | None = None
        self.asked: list[tuple[int, list[int]]] = []
        self.before: Callable[[], object] = lambda: None

    def read(self, handle: Handle, offset: int, into: Sequence[memoryview]) -> int:
        self.before()
        self.asked.append((offset, [view.nbytes for view in into]))
        if self.held is None:
            return self.files.read_cached(handle, offset, into)
        for view in into:
            view[:] = b"?" * view.nbytes  # what a partial answer may leave behind
        return self.held

    def read_hashed(
        self, handle: Handle, offset: int, extents: Sequence[Extent]
    ) -> list[bytes] | None:
        self.before()
        self.asked.append((offset, [length for _, length, _ in extents]))
        if self.held is None:
            return self.files.read_hashed(handle, offset, extents)
        for address, length, _ in extents:
            ctypes.memset(address, ord("?"), length)
        return None


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(str(tmp_path), piece_bytes=MIB, depth_max=64)


@pytest.fixture(params=["python", "compiled"])
def memory(request: pytest.FixtureRequest, world: World) -> Memory:
    memory = Memory(world, compiled() if request.param == "compiled" else None)
    world.reader = PackReader(
        world.files,
        world.runtime,
        world.seal,
        fds=world.fds,
        buffers=world.buffers,
        depth=world.reader._queue._depth,
        fill=memory.fill,
        loops=world.loops,
        rules=world.rules,
    )
    return memory


def submit(world: World, reads: list[ChunkRead]) -> tuple[ReadTask, list[bytearray]]:
    destinations = destinations_of(reads)
    deadline = world.runtime.now() + 20
    return world.reader.submit(reads, destinations, deadline=deadline), destinations


def test_what_is_in_memory_costs_no_other_read(world: World, memory: Memory) -> None:
    chunks = [content(n, size) for n, size in enumerate(SIZES)]
    task, destinations = submit(world, reads_of(world.store(chunks)))
    world.runtime.run()
    assert all(task.loaded) and destinations == chunks
    assert world.files.counts == {"open": 1}
    # Steps of a MiB (see the reader's own test), or one call for each piece.
    assert len(memory.asked) == (3 if memory.is_compiled else 4 + 3 + 4)
    assert world.reader.stats()["reads_in_place"] == 3  # pieces


@pytest.mark.parametrize(("shares", "wanted"), [(4, 1), (8, 2), (32, 4)])
def test_a_large_load_takes_fewer_calls(
    world: World, memory: Memory, shares: int, wanted: int
) -> None:
    """Up to four units in one, as long as every worker gets four pieces."""
    units = shares * world.reader.stats()["depth"]
    written = world.store([content(1, 4 * MIB)])
    reads = reads_of(written) * units
    task = world.reader.submit(
        [read._replace(offset=read.offset + n * UNIT_BYTES) for n, read in enumerate(reads)],
        [memoryview(bytearray(4 * MIB))] * units,
        deadline=world.runtime.now() + 20,
    )
    assert {len(piece.spans) for piece in task.queue.pending} == {wanted}


def test_padding_between_chunks_goes_to_no_chunk(world: World, memory: Memory) -> None:
    chunks = [content(1, 5000), content(2, 6000)]
    _task, destinations = submit(world, reads_of(world.store(chunks)))
    world.runtime.run()
    assert destinations == chunks
    assert [sizes for _, sizes in memory.asked] == [[5000, 8192 - 5000, 6000]]


@pytest.mark.parametrize("held", [0, 1, MIB - 1])
def test_what_is_not_all_in_memory_is_read_the_common_way(
    world: World, memory: Memory, held: int
) -> None:
    chunks = [content(n, size) for n, size in enumerate(SIZES)]
    memory.held = held
    task, destinations = submit(world, reads_of(world.store(chunks)))
    world.runtime.run()
    assert all(task.loaded) and destinations == chunks
    assert world.files.counts == {"open": 1, "read": 11}
    assert world.reader.stats()["reads_in_place"] == 0


def test_damage_is_a_miss_for_its_chunk_alone(world: World, memory: Memory) -> None:
    chunks = [content(n, 300_000) for n in range(3)]
    written = world.store(chunks)
    reads = reads_of(written)
    with open(world.path(written), "r+b") as file:
        file.seek(reads[1].offset + 17)
        file.write(bytes([chunks[1][17] ^ 1]))
    task, destinations = submit(world, reads)
    world.runtime.run()
    assert [miss and miss.kind for miss in task.outcomes] == [None, MissKind.CHECKSUM, None]
    assert destinations[0] == chunks[0] and destinations[2] == chunks[2]


def test_a_truncated_pack_is_a_short_read(world: World, memory: Memory) -> None:
    written = world.store([content(1, MIB)])
    with open(world.path(written), "r+b") as file:
        file.truncate(MIB // 2)
    task, _ = submit(world, reads_of(written))
    world.runtime.run()
    assert [miss and miss.kind for miss in task.outcomes] == [MissKind.SHORT]


def test_a_cancelled_load_gets_nothing_in_place(world: World, memory: Memory) -> None:
    """I7: the gate is shut before the read begins; nothing is written after the end."""
    task, destinations = submit(world, reads_of(world.store([content(1, MIB)])))
    task.cancel()
    world.runtime.run()
    assert memory.asked == []
    assert destinations == [bytearray(MIB)]


def test_a_chunk_cancelled_alone_does_not_stop_its_neighbours(world: World, memory: Memory) -> None:
    chunks = [content(1, 5000), content(2, 5000)]
    task, destinations = submit(world, reads_of(world.store(chunks)))
    task.cancel_chunk(0)
    world.runtime.run()
    assert memory.asked == []  # its buffer may be somebody else's: the common way leaves it out
    assert destinations == [bytearray(5000), chunks[1]]


def test_the_end_waits_for_a_read_in_place_under_way(world: World, memory: Memory) -> None:
    """I7: while bytes move, the gate counts the reader as inside."""
    inside: list[bool] = []
    task, _ = submit(world, reads_of(world.store([content(1, 5000)])))
    memory.before = lambda: inside.append(task.gate.try_shut())
    world.runtime.run()
    assert inside == [False]


def test_reads_from_memory_do_not_raise_the_depth(world: World, memory: Memory) -> None:
    before = world.reader.stats()["depth"]
    submit(world, reads_of(world.store([content(n, MIB) for n in range(40)])))
    world.runtime.run()
    assert world.reader.stats()["depth"] <= before


def test_reads_from_memory_tell_nothing_about_the_latency_of_the_others(
    world: World, memory: Memory
) -> None:
    """Every fourth piece is in memory; the mount takes 10 ms for each of the rest."""

    def take_10_ms() -> None:
        world.runtime.seconds += 0.01

    def some_held() -> None:
        memory.held = None if len(memory.asked) % 4 == 0 else 0

    memory.before, world.files.after_read = some_held, take_10_ms
    packs = [world.store([content(n, 5000)], seq=n) for n in range(20)]
    submit(world, reads_of(*packs))
    world.runtime.run()
    assert world.reader.stats()["reads_in_place"] == 5
    assert world.reader.stats()["depth"] > 4
