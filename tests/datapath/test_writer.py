"""Writing a pack: its operations in order, its bytes, and every way it can be given up."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sharedfs_backend.files import (
    FailureKind,
    FileFailure,
    Handle,
    HashedWrite,
    LocalFiles,
    Profile,
)
from sharedfs_backend.gate import Gate
from sharedfs_backend.layout import (
    TRAILER_BYTES,
    Seal,
    decode_header,
    decode_trailer,
    header_checksum,
    peek_header_bytes,
)
from sharedfs_backend.native import Extent, NativeHasher
from sharedfs_backend.packjob import CANCELLED, LATE, PackJob
from sharedfs_backend.rules import Rules
from tests.datapath.support import MIB, World, compiled, content


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(str(tmp_path))


def whole_file(world: World, job: PackJob) -> bytes:
    return Path(world.root, job.name.path).read_bytes()


def test_a_small_pack_costs_a_create_two_writes_and_a_close(world: World) -> None:
    job = world.job([content(n, 100_000) for n in range(5)])
    assert world.writer.write(job).written is not None
    assert world.ops == ["create", "write", "write", "close"]


def test_a_large_pack_is_written_in_pieces_then_header_then_trailer(world: World) -> None:
    job = world.job([content(n, 4 * MIB) for n in range(5)])
    assert world.writer.write(job).written is not None
    writes = [(op.offset, op.bytes) for op in world.files.log if op.op == "write"]
    start, end = job.place.payload_offset, job.place.total_bytes
    assert [offset for offset, _ in writes] == [
        start,
        start + 8 * MIB,
        start + 16 * MIB,
        0,
        end - TRAILER_BYTES,
    ]
    assert world.ops == ["create", *["write"] * 5, "close"]


@pytest.mark.parametrize("secret", [None, b"s" * 32])
@pytest.mark.parametrize(
    "sizes", [[0], [1, 4095, 4096, 4097], [5 * MIB + 3, 0, 100, 9 * MIB, 4 * MIB, 1]]
)
@pytest.mark.parametrize(("align_bytes", "piece_bytes"), [(4096, 4 * MIB), (512 << 10, MIB)])
@pytest.mark.parametrize("hashed_writes", [False, True])
def test_what_lies_on_disk_is_a_valid_pack(
    tmp_path: Path,
    secret: bytes | None,
    sizes: list[int],
    align_bytes: int,
    piece_bytes: int,
    hashed_writes: bool,
) -> None:
    world = World(
        str(tmp_path),
        seal=Seal(secret),
        piece_bytes=piece_bytes,
        loops=compiled() if hashed_writes else None,
        write_hashed=LocalFiles(str(tmp_path)).write_hashed if hashed_writes else None,
    )
    chunks = [content(n, size) for n, size in enumerate(sizes)]
    job = world.job(chunks, align_bytes=align_bytes)
    written = world.writer.write(job).written
    assert written is not None
    data, seal = whole_file(world, job), world.seal
    header = decode_header(data, seal)
    trailer = decode_trailer(data[-TRAILER_BYTES:], seal)
    assert trailer.header_checksum == header_checksum(data[: peek_header_bytes(data)])
    assert trailer.total_bytes == header.total_bytes == len(data) == written.commit.total_bytes
    assert len(data) % align_bytes == 0
    assert (header.rank, header.version, header.realm) == (3, 7, b"r" * 16)
    assert header.entries == written.commit.entries
    for row, chunk in zip(header.entries, chunks, strict=True):
        assert data[row.offset : row.offset + row.length] == chunk
        assert row.checksum == seal.chunk_checksum_of(chunk)
    assert written.payload_bytes == sum(sizes)


def test_a_pack_has_no_holes(world: World) -> None:
    job = world.job([content(n, 4 * MIB + 1) for n in range(5)], align_bytes=512 << 10)
    world.writer.write(job)
    writes = sorted((op.offset, op.bytes) for op in world.files.log if op.op == "write")
    end = 0
    for offset, length in writes:
        assert offset == end
        end += length
    assert end == job.total_bytes


def hashing_world(tmp_path: Path, write_hashed: HashedWrite) -> World:
    return World(str(tmp_path), piece_bytes=MIB, loops=compiled(), write_hashed=write_hashed)


def test_the_loops_write_large_pieces_without_holes(tmp_path: Path) -> None:
    offsets: list[tuple[int, int]] = []
    local = LocalFiles(str(tmp_path))

    def write(
        handle: Handle, offset: int, extents: Sequence[Extent], hasher: NativeHasher
    ) -> list[bytes] | None:
        offsets.append((offset, sum(length for _, length, _ in extents)))
        return local.write_hashed(handle, offset, extents, hasher)

    world = hashing_world(tmp_path, write)
    job = world.job([content(n, 4 * MIB + 1) for n in range(5)], align_bytes=512 << 10)
    assert world.writer.write(job).written is not None
    rest = [(op.offset, op.bytes) for op in world.files.log if op.op == "write"]
    end = 0
    for offset, length in sorted(offsets + rest):
        assert offset == end
        end += length
    assert end == job.total_bytes
    assert len(offsets) == 3 and len(rest) == 2


def test_a_failure_in_the_loops_loses_the_pack(tmp_path: Path) -> None:
    def fail(*_: object) -> list[bytes]:
        raise FileFailure(FailureKind.NO_SPACE, "write", "packs/x", "full")

    world = hashing_world(tmp_path, fail)
    outcome = world.writer.write(world.job([content(1, MIB)]))
    assert outcome.written is None and outcome.created
    assert outcome.reason == FailureKind.NO_SPACE.value
    assert world.ops == ["create", "close"]


def test_a_late_pack_stops_between_pieces_of_the_loops(tmp_path: Path) -> None:
    """I7: the clock is looked at before each, and before the trailer."""
    local = LocalFiles(str(tmp_path))

    def write(
        handle: Handle, offset: int, extents: Sequence[Extent], hasher: NativeHasher
    ) -> list[bytes] | None:
        late.runtime.seconds += 100
        return local.write_hashed(handle, offset, extents, hasher)

    late = hashing_world(tmp_path, write)
    outcome = late.writer.write(late.job([content(n, 8 * MIB) for n in range(4)]))
    assert outcome.written is None and outcome.reason == LATE
    assert late.runtime.seconds == 1200


def test_a_write_that_wakes_up_after_its_task_ended_touches_no_buffer(tmp_path: Path) -> None:
    """I7: the caller may have the memory back; nothing is hashed, no step follows."""
    local = LocalFiles(str(tmp_path), Profile(piece_bytes=MIB // 4))
    found: list[list[bytes] | None] = []
    gate = Gate()

    def write(
        handle: Handle, offset: int, extents: Sequence[Extent], hasher: NativeHasher
    ) -> list[bytes] | None:
        gate.try_shut()  # as if the first step hung until then
        found.append(local.write_hashed(handle, offset, extents, hasher))
        return found[-1]

    world = hashing_world(tmp_path, write)
    job = world.job([content(1, MIB)], gates=[gate])
    outcome = world.writer.write(job)
    assert (outcome.written, outcome.reason) == (None, CANCELLED)
    assert found == [None]
    assert len(whole_file(world, job)) == job.place.payload_offset + MIB // 4
    assert world.ops == ["create", "close"]


def test_a_missing_directory_is_made_once(world: World) -> None:
    Path(world.root, "packs/01").rmdir()
    assert world.writer.write(world.job([b"x"])).written is not None
    assert world.ops[:4] == ["create", "mkdir", "create", "write"]


@pytest.mark.parametrize(
    ("op", "kind", "ops", "created"),
    [
        ("create", FailureKind.EXISTS, ["create"], False),
        ("create", FailureKind.NO_SPACE, ["create"], False),
        ("create", FailureKind.IO, ["create"], True),
        ("write", FailureKind.NO_SPACE, ["create", "write", "close"], True),
        ("close", FailureKind.IO, ["create", "write", "write", "close"], True),
    ],
)
def test_a_failure_anywhere_loses_the_pack(
    world: World, op: str, kind: FailureKind, ops: list[str], created: bool
) -> None:
    world.faulty.fail(op, kind)
    outcome = world.writer.write(world.job([b"x" * 5000]))
    assert (outcome.written, outcome.created, outcome.reason) == (None, created, kind.value)
    assert outcome.failure is not None and outcome.failure.kind is kind
    assert world.ops == ops


def test_a_failed_trailer_loses_the_pack(world: World) -> None:
    world.faulty.fail("write", FailureKind.IO, after=1)
    job = world.job([b"x" * 5000])
    assert world.writer.write(job).written is None
    assert len(whole_file(world, job)) < job.total_bytes


def slow(world: World, seconds: float) -> None:
    """From now on the clock moves with every write."""

    def tick() -> None:
        world.runtime.seconds += seconds

    world.files.after_write = tick


def test_a_pack_finished_past_half_the_buffers_lifetime_has_no_trailer(world: World) -> None:
    """[m] Its bytes may be someone else's by now, under a valid checksum (I7)."""
    slow(world, 151.0)
    job = world.job([b"x" * 5000])
    outcome = world.writer.write(job)
    assert (outcome.written, outcome.created, outcome.reason) == (None, True, LATE)
    assert world.ops == ["create", "write", "close"]
    assert len(whole_file(world, job)) < job.total_bytes


def test_time_counts_from_submit_not_from_the_start_of_the_write(world: World) -> None:
    job = world.job([b"x" * 5000])
    world.runtime.seconds += 150.1
    assert world.writer.write(job).reason == LATE


def test_just_in_time_is_in_time(world: World) -> None:
    slow(world, 150.0)
    assert world.writer.write(world.job([b"x" * 5000])).written is not None


def test_without_its_rule_a_late_pack_is_published(tmp_path: Path) -> None:
    rules = replace(Rules(), check_clock_before_trailer=False)
    world = World(str(tmp_path), rules=rules)
    slow(world, 1e6)
    assert world.writer.write(world.job([b"x" * 5000])).written is not None


def test_a_late_pack_stops_between_its_pieces(world: World) -> None:
    slow(world, 100.0)
    assert world.writer.write(world.job([content(1, 40 * MIB)])).reason == LATE
    assert world.ops == ["create", "write", "write", "close"]


def test_a_shut_gate_abandons_the_pack_before_it_is_read(world: World) -> None:
    gate = Gate()
    gate.shut()
    outcome = world.writer.write(world.job([b"x", b"y"], gates=[Gate(), gate]))
    assert (outcome.written, outcome.reason) == (None, CANCELLED)
    assert world.ops == ["create", "close"]


def test_cancelling_waits_for_the_write_that_reads_the_buffers(world: World) -> None:
    """After the gate is shut no thread reads the buffers, and no trailer follows (I7)."""
    gate = Gate()
    job = world.job([b"x" * 5000], gates=[gate])
    arrived, release = world.faulty.hold("write")
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(world.writer.write(job)))
    thread.start()
    assert arrived.wait(10)
    assert not gate.shut(timeout_seconds=0.01)
    release.set()
    assert gate.shut(timeout_seconds=10)
    thread.join()
    assert outcomes[0].reason == CANCELLED
    assert world.ops == ["create", "write", "close"]


def test_dirty_bytes_are_flushed_as_it_goes(tmp_path: Path) -> None:
    world = World(str(tmp_path), dirty_bytes_max=10 * MIB)
    assert world.writer.write(world.job([content(1, 24 * MIB)])).written is not None
    assert world.ops == ["create", "write", "write", "flush", "write", "write", "write", "close"]
    flushes = [(op.offset, op.bytes) for op in world.files.log if op.op == "flush"]
    assert flushes[0] == (0, world.files.log[1].offset + 16 * MIB)
    assert world.dirty.bytes_dirty <= 10 * MIB


def test_the_dirty_budget_is_shared_by_all_packs(tmp_path: Path) -> None:
    world = World(str(tmp_path), dirty_bytes_max=MIB)
    world.writer.write(world.job([content(1, MIB - 50_000)], seq=1))
    assert "flush" not in world.ops
    world.writer.write(world.job([content(2, MIB // 2)], seq=2))
    assert "flush" in world.ops


def test_each_kind_of_loss_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.faulty.fail("write", FailureKind.IO)
    for seq in (1, 2):
        world.writer.write(world.job([b"x"], seq=seq))
    assert [record.getMessage().count("was not stored (io)") for record in caplog.records] == [1]
    assert world.writer.stats()["packs_lost_io"] == 2


def test_a_buffer_must_be_contiguous(world: World) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        world.job([memoryview(bytes(8))[::2]])  # type: ignore[list-item]  # what it refuses
