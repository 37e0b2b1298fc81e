"""Loading: exact operations, every failure a miss of its kind, nothing touched after the end.

Past 400 lines because every way a load can end is here, once, with the operations it costs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sharedfs_backend.buffers import BufferPool
from sharedfs_backend.depth import ReadDepth
from sharedfs_backend.files import FailureKind
from sharedfs_backend.layout import Seal
from sharedfs_backend.misses import MissKind, Verdict
from sharedfs_backend.reader import PackReader
from sharedfs_backend.readplan import ChunkRead
from sharedfs_backend.readtask import ReadTask
from sharedfs_backend.rules import Rules
from sharedfs_backend.runtime import ThreadRuntime
from tests.datapath.support import MIB, World, compiled, content, destinations_of, reads_of


@pytest.fixture(params=["python", "compiled"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Verified and copied in Python, or in the compiled loops."""
    return World(str(tmp_path), loops=compiled() if request.param == "compiled" else None)


def load(world: World, reads: list[ChunkRead]) -> tuple[ReadTask, list[bytearray]]:
    """A load carried out to its end."""
    destinations = destinations_of(reads)
    task = world.reader.submit(reads, destinations, deadline=world.runtime.now() + 20)
    world.runtime.run()
    return task, destinations


def kinds(task: ReadTask) -> list[MissKind | None]:
    assert task.is_done
    return [None if miss is None else miss.kind for miss in task.outcomes]


# -- operations --------------------------------------------------------------------------------


def test_64_contiguous_chunks_cost_one_open_and_one_read_for_each_piece(world: World) -> None:
    chunks = [content(n, 4 * MIB) for n in range(64)]
    reads = reads_of(world.store(chunks))
    task, destinations = load(world, reads)
    assert all(task.loaded) and destinations == chunks
    assert world.files.counts == {"open": 1, "read": 64}


def test_no_open_when_warm(world: World) -> None:
    reads = reads_of(world.store([content(n, 512 << 10) for n in range(64)]))
    load(world, reads)
    world.files.reset()
    assert all(load(world, reads)[0].loaded)
    assert world.files.counts == {"read": 8}


def test_one_open_for_each_pack(world: World) -> None:
    packs = [world.store([content(n, 1000)], seq=n) for n in range(1, 4)]
    task, _ = load(world, reads_of(*packs))
    assert all(task.loaded)
    assert world.files.counts == {"open": 3, "read": 3}


def test_pieces_beyond_the_buffer_size_are_read_in_steps(tmp_path: Path) -> None:
    """Where operations cost next to nothing, a step stays in a core's own cache."""
    world = World(str(tmp_path), piece_bytes=MIB)
    sizes = [5 * MIB + 7, 10, 700_000, 900_000, 2 * MIB, MIB, 0, 1]
    chunks = [content(n, size) for n, size in enumerate(sizes)]
    reads = reads_of(world.store(chunks))
    task, destinations = load(world, reads)
    assert all(task.loaded) and destinations == chunks
    assert world.files.counts == {"open": 1, "read": 4 + 3 + 4}  # 4 MiB, 2.6 MiB, 3 MiB and a byte


@pytest.mark.parametrize("secret", [None, b"s" * 32])
def test_chunks_of_every_size_come_back_in_any_order(tmp_path: Path, secret: bytes | None) -> None:
    world = World(str(tmp_path), seal=Seal(secret))
    chunks = [content(n, size) for n, size in enumerate([0, 1, 4 * MIB + 1, 9 * MIB, 4096, 77])]
    reads = reads_of(world.store(chunks))[::-1]
    task, destinations = load(world, reads)
    assert all(task.loaded) and destinations == chunks[::-1]


def test_nothing_wanted_is_done_at_once(world: World) -> None:
    done: list[ReadTask] = []
    task = world.reader.submit([], [], deadline=0.0, on_done=done.append)
    assert task.is_done and done == [task]


def test_a_task_is_reported_exactly_once(world: World) -> None:
    reads = reads_of(world.store([b"x" * 100]))
    done: list[ReadTask] = []
    task = world.reader.submit(
        reads, destinations_of(reads), deadline=world.runtime.now() + 1, on_done=done.append
    )
    assert done == []
    world.runtime.run()
    task.cancel()
    world.reader.expire(world.runtime.now() + 100)
    world.reader.close()
    assert done == [task] and task.loaded == [True]


# -- failures ----------------------------------------------------------------------------------


def test_a_missing_pack_is_a_miss_that_condemns_the_pack(world: World) -> None:
    pack = world.store([b"x" * 100, b"y" * 100])
    Path(world.path(pack)).unlink()
    task, _ = load(world, reads_of(pack))
    assert kinds(task) == [MissKind.MISSING] * 2
    assert {miss.verdict for miss in task.outcomes if miss} == {Verdict.CONDEMN_PACK}


def test_all_pieces_of_a_missing_pack_cost_one_open(world: World) -> None:
    pack = world.store([content(n, 4 * MIB) for n in range(8)])
    Path(world.path(pack)).unlink()
    task, _ = load(world, reads_of(pack))
    assert kinds(task) == [MissKind.MISSING] * 8
    assert world.files.counts == {"open": 1}


def test_a_flipped_byte_condemns_its_chunk_alone(world: World) -> None:
    chunks = [content(n, 5 * MIB) for n in range(3)]
    pack = world.store(chunks)
    reads = reads_of(pack)
    with open(world.path(pack), "r+b") as file:
        file.seek(reads[1].offset + 4 * MIB + 9)
        file.write(bytes([chunks[1][4 * MIB + 9] ^ 1]))
    task, destinations = load(world, reads)
    assert kinds(task) == [None, MissKind.CHECKSUM, None]
    assert task.outcomes[1] is not None
    assert task.outcomes[1].verdict is Verdict.CONDEMN_CHUNK
    assert destinations[0] == chunks[0] and destinations[2] == chunks[2]


def test_a_truncated_pack_is_a_short_read_and_suspends(world: World) -> None:
    pack = world.store([b"x" * 100_000, b"y" * 100_000])
    reads = reads_of(pack)
    with open(world.path(pack), "r+b") as file:
        file.truncate(reads[1].offset + 5)
    assert kinds(load(world, reads[:1])[0]) == [None]
    task, _ = load(world, reads[1:])
    assert kinds(task) == [MissKind.SHORT]
    assert task.outcomes[0] is not None
    assert task.outcomes[0].verdict is Verdict.SUSPEND


def test_after_a_short_read_the_pack_is_opened_anew(world: World) -> None:
    """On NFS a handle sees no more of a file than when it was opened."""
    pack = world.store([b"x" * 100_000])
    path, reads = Path(world.path(pack)), reads_of(pack)
    whole = path.read_bytes()
    path.write_bytes(whole[:50_000])
    assert kinds(load(world, reads)[0]) == [MissKind.SHORT]
    path.write_bytes(whole)
    assert kinds(load(world, reads)[0]) == [None]
    assert world.files.counts["open"] == 2


@pytest.mark.parametrize(
    ("kind", "miss"),
    [
        (FailureKind.IO, MissKind.IO),
        (FailureKind.TIMEOUT, MissKind.TIMEOUT),
        (FailureKind.SICK, MissKind.SICK),
        (FailureKind.DENIED, MissKind.DENIED),
        (FailureKind.MISSING, MissKind.IO),
    ],
)
def test_a_failed_read_suspends(world: World, kind: FailureKind, miss: MissKind) -> None:
    reads = reads_of(world.store([b"x" * 100]))
    world.faulty.fail("read", kind)
    task, _ = load(world, reads)
    assert kinds(task) == [miss]
    assert task.outcomes[0] is not None
    assert task.outcomes[0].verdict is Verdict.SUSPEND


def test_a_failed_open_suspends_everything_that_waited_for_it(world: World) -> None:
    reads = reads_of(world.store([content(n, 4 * MIB) for n in range(4)]))
    world.faulty.fail("open", FailureKind.IO, times=1)
    assert kinds(load(world, reads)[0]) == [MissKind.IO] * 4
    assert kinds(load(world, reads)[0]) == [None] * 4


def test_a_stale_handle_is_renewed_once(world: World) -> None:
    reads = reads_of(world.store([b"x" * 100]))
    load(world, reads)
    world.files.reset()
    world.faulty.fail("read", FailureKind.STALE, times=1)
    assert kinds(load(world, reads)[0]) == [None]
    assert world.ops == ["read", "close", "open", "read"]


def test_what_was_verified_is_not_touched_when_its_piece_is_read_anew(tmp_path: Path) -> None:
    """I2: the second time the file may say anything."""
    world = World(str(tmp_path), piece_bytes=MIB)
    chunks = [content(1, 5 * MIB), content(2, 3 * MIB // 2)]
    pack = world.store(chunks)
    reads = reads_of(pack)
    world.faulty.fail("read", FailureKind.STALE, after=5, times=1)  # in the second piece

    def damage() -> None:
        if world.files.counts["read"] == 5:
            with open(world.path(pack), "r+b") as file:
                file.seek(reads[0].offset + 4 * MIB)
                file.write(b"damage")

    world.files.after_read = damage
    task, destinations = load(world, reads)
    assert kinds(task) == [None, None]
    assert destinations == chunks


def test_a_handle_that_is_stale_again_suspends(world: World) -> None:
    reads = reads_of(world.store([b"x" * 100]))
    world.faulty.fail("read", FailureKind.STALE)
    task, _ = load(world, reads)
    assert kinds(task) == [MissKind.STALE]
    assert world.files.counts == {"open": 2, "read": 2, "close": 2}


def test_a_stale_handle_of_an_unlinked_pack_condemns_it(world: World) -> None:
    pack = world.store([b"x" * 100])
    load(world, reads_of(pack))
    Path(world.path(pack)).unlink()
    world.faulty.fail("read", FailureKind.STALE, times=1)
    assert kinds(load(world, reads_of(pack))[0]) == [MissKind.MISSING]


def test_a_buffer_of_the_wrong_size_is_never_touched(world: World) -> None:
    reads = reads_of(world.store([b"x" * 100, b"y" * 100]))
    destinations = [bytearray(99), bytearray(100)]
    task = world.reader.submit(reads, destinations, deadline=world.runtime.now() + 1)
    world.runtime.run()
    assert kinds(task) == [MissKind.WRONG_SIZE, None]
    assert destinations == [bytearray(99), b"y" * 100]


def test_a_read_only_destination_is_our_own_mistake(world: World) -> None:
    reads = reads_of(world.store([b"x" * 100]))
    with pytest.raises(ValueError, match="read-only"):
        world.reader.submit(reads, [bytes(100)], deadline=world.runtime.now() + 1)


def test_an_empty_chunk_needs_no_read_but_its_checksum(world: World) -> None:
    good = reads_of(world.store([b""]))[0]
    bad = good._replace(checksum=bytes(16))
    task, _ = load(world, [good, bad])
    assert kinds(task) == [None, MissKind.CHECKSUM]
    assert world.ops == []


def test_each_kind_is_counted_and_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    pack = world.store([b"x" * 100])
    Path(world.path(pack)).unlink()
    for _ in range(3):
        load(world, reads_of(pack))
    assert world.reader.stats()["miss_missing"] == 3
    (record,) = caplog.records
    assert pack.commit.name.path in record.getMessage()


# -- ending --------------------------------------------------------------------------------------


def test_a_load_past_its_deadline_is_a_miss_whatever_its_reads_do(world: World) -> None:
    reads = reads_of(world.store([b"x" * 100]))
    destinations = destinations_of(reads)
    task = world.reader.submit(reads, destinations, deadline=world.runtime.now() + 20)
    assert world.reader.expire(world.runtime.now() + 19) == task.deadline
    assert not task.is_done
    assert world.reader.expire(world.runtime.now() + 20) is None
    assert kinds(task) == [MissKind.DEADLINE]
    world.runtime.run()
    assert world.ops == [] and destinations == [bytes(100)]


def test_who_waits_is_released_at_the_deadline(world: World) -> None:
    reads = reads_of(world.store([b"x" * 100]))
    task = world.reader.submit(reads, destinations_of(reads), deadline=world.runtime.now())
    assert task.wait()[0] is not None
    assert kinds(task) == [MissKind.DEADLINE]


def submit(world: World, reads: list[ChunkRead]) -> tuple[ReadTask, list[bytearray]]:
    """A load that has not begun."""
    destinations = destinations_of(reads)
    task = world.reader.submit(reads, destinations, deadline=world.runtime.now() + 20)
    return task, destinations


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (lambda world, task: task.cancel(), MissKind.CANCELLED),
        (lambda world, task: world.reader.expire(task.deadline), MissKind.DEADLINE),
        (lambda world, task: world.reader.close(), MissKind.CLOSED),
    ],
)
def test_a_read_that_returns_after_the_end_touches_nothing(
    world: World, end: Callable[[World, ReadTask], None], kind: MissKind
) -> None:
    """I7: the hung read wakes up into a private buffer and finds the gate shut."""
    task, destinations = submit(world, reads_of(world.store([b"x" * 100])))
    world.files.after_read = lambda: end(world, task)
    world.runtime.run()
    assert kinds(task) == [kind]
    assert destinations == [bytes(100)]
    assert world.reader.stats()["workers_lost"] == world.reader.stats()["workers"] == 0


def test_without_the_gate_a_late_read_writes_into_reported_memory(tmp_path: Path) -> None:
    world = World(str(tmp_path), rules=replace(Rules(), gate_copies=False))
    task, destinations = submit(world, reads_of(world.store([b"x" * 100])))
    world.files.after_read = task.cancel
    world.runtime.run()
    assert destinations == [b"x" * 100]


def test_one_chunk_is_cancelled_alone(world: World) -> None:
    reads = reads_of(world.store([b"x" * 100, b"y" * 100]))
    destinations = destinations_of(reads)
    task = world.reader.submit(reads, destinations, deadline=world.runtime.now() + 20)
    task.cancel_chunk(0)
    world.runtime.run()
    assert kinds(task) == [MissKind.CANCELLED, None]
    assert destinations == [bytes(100), b"y" * 100]


def test_cancelling_the_last_chunk_ends_the_task(world: World) -> None:
    reads = reads_of(world.store([b"x" * 100, b"y" * 100]))
    task = world.reader.submit(reads, destinations_of(reads), deadline=world.runtime.now() + 20)
    task.cancel_chunk(0)
    task.cancel_chunk(1)
    assert kinds(task) == [MissKind.CANCELLED] * 2
    world.runtime.run()
    assert world.ops == []


def test_destinations_are_let_go_at_the_end(world: World) -> None:
    reads = reads_of(world.store([b"x" * 100]))
    _task, destinations = load(world, reads)
    destinations[0].clear()  # raises BufferError while anything still refers to its memory
    assert destinations == [b""]


def test_a_closed_reader_takes_nothing(world: World) -> None:
    reads = reads_of(world.store([b"x" * 100]))
    load(world, reads)
    world.reader.close()
    assert kinds(load(world, reads)[0]) == [MissKind.CLOSED]
    assert world.ops == ["open", "read", "close"]


# -- bounds --------------------------------------------------------------------------------------


def test_a_full_queue_is_a_miss_at_once(tmp_path: Path) -> None:
    world = World(str(tmp_path), pieces_max=2)
    reads = reads_of(world.store([content(n, 4 * MIB) for n in range(3)]))
    assert kinds(load(world, reads)[0]) == [MissKind.BUSY] * 3
    assert kinds(load(world, reads[:2])[0]) == [None] * 2


def test_a_lane_that_takes_no_work_is_a_miss_at_once(world: World) -> None:
    reads = reads_of(world.store([b"x" * 100]))
    world.runtime.is_full = True
    assert kinds(load(world, reads)[0]) == [MissKind.BUSY]


def test_no_more_workers_are_started_than_the_depth_allows(world: World) -> None:
    reads = reads_of(world.store([content(n, 4 * MIB) for n in range(20)]))
    world.reader.submit(reads, destinations_of(reads), deadline=world.runtime.now() + 20)
    assert len(world.runtime.queue) == world.depth_max
    world.reader.submit(reads, destinations_of(reads), deadline=world.runtime.now() + 20)
    assert len(world.runtime.queue) == world.depth_max


def test_workers_lost_in_hung_calls_are_replaced_while_buffers_last(tmp_path: Path) -> None:
    world = World(str(tmp_path), depth_max=1, buffer_bytes_max=8 * MIB)
    packs = [world.store([b"x" * 100], seq=seq) for seq in (1, 2)]
    first, _ = submit(world, reads_of(packs[0]))

    def hang() -> None:
        """The first read hangs; meanwhile its task ends, and another is served to its end."""
        world.files.after_read = lambda: None
        world.reader.expire(first.deadline)
        assert world.reader.stats()["workers_lost"] == 1
        assert kinds(load(world, reads_of(packs[1]))[0]) == [None]

    world.files.after_read = hang
    world.runtime.run()
    assert kinds(first) == [MissKind.DEADLINE]
    assert world.reader.stats()["workers_lost"] == 0


def test_buffers_are_bounded_and_given_back(world: World) -> None:
    reads = reads_of(world.store([content(n, 4 * MIB) for n in range(20)]))
    load(world, reads)
    assert world.reader.stats()["buffer_bytes"] <= world.depth_max * 4 * MIB
    assert world.buffers.acquire() is not None


# -- real threads --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "expire", "close"])
def test_ending_waits_for_the_copy_under_way(world: World, how: str) -> None:
    """I7: nobody is told that the task is over while a copy into its memory is going on."""
    done: list[ReadTask] = []
    reads = reads_of(world.store([b"x" * 100]))
    task = world.reader.submit(
        reads, destinations_of(reads), deadline=world.runtime.now() + 20, on_done=done.append
    )
    ends = {
        "cancel": task.cancel,
        "expire": lambda: world.reader.expire(task.deadline),
        "close": world.reader.close,
    }
    with task.gate.enter(0) as is_open:
        assert is_open
        thread = threading.Thread(target=ends[how])
        thread.start()
        thread.join(0.02)
        assert thread.is_alive() and done == [] and not task.is_done
    thread.join(10)
    assert done == [task] and not thread.is_alive()


def test_loads_cancelled_at_any_moment_leave_memory_alone_from_then_on(tmp_path: Path) -> None:
    """I2, I7 on the real runtime: what is reported loaded is whole; what is cancelled stays put."""
    runtime = ThreadRuntime(read_workers_max=4)
    world = World(str(tmp_path))
    chunks = [content(n, MIB) for n in range(16)]
    reads = reads_of(world.store(chunks))
    reader = PackReader(
        world.files,
        runtime,
        world.seal,
        fds=world.fds,
        buffers=BufferPool(256 << 10, 4 * MIB),
        depth=ReadDepth(2, 4),
    )
    for number in range(30):
        destinations = destinations_of(reads)
        task = reader.submit(reads, destinations, deadline=runtime.now() + 20)
        for _ in range(number * 20):
            threading.Event().is_set()  # a little later each time
        task.cancel()
        frozen = [bytes(one) for one in destinations]
        for is_loaded, found, chunk in zip(task.loaded, frozen, chunks, strict=True):
            assert not is_loaded or found == chunk
        assert reader.submit(reads, destinations_of(reads), deadline=1e9).wait() == [None] * 16
        assert [bytes(one) for one in destinations] == frozen
    assert reader.stats()["workers_lost"] == 0
    reader.close()
    runtime.close(5.0)
