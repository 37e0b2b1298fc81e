"""The compiled loops against plain Python: the same bytes, the same digests, the same errors."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import random
from pathlib import Path

import numpy as np
import pytest
import xxhash

from sharedfs_backend import native
from sharedfs_backend.buffers import address_of
from sharedfs_backend.native import (
    HASHED,
    SKIPPED,
    UNIT_ENDS,
    Extent,
    Loaded,
    Loops,
    Part,
    steps,
)
from tests.datapath.support import compiled

STEP_BYTES = 64 * 1024
SIZES = [1, 63, 64, 65, 4096, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 3 * STEP_BYTES + 17]


@pytest.fixture
def loops() -> Loops:
    return compiled()


class Pieces:
    """Memory cut into extents with random sizes and marks, and what they should add up to."""

    def __init__(self, seed: int, count: int) -> None:
        rng = random.Random(seed)
        self.lengths = [rng.choice(SIZES) for _ in range(count)]
        self.marks = [rng.choice((SKIPPED, HASHED, UNIT_ENDS)) for _ in range(count)]
        self.content = np.random.default_rng(seed).bytes(sum(self.lengths))
        self.memory = np.zeros(sum(self.lengths) + 100 * count, np.uint8)
        self.at: list[int] = []
        end = 0
        for length in self.lengths:
            end += rng.randrange(100)  # of every alignment
            self.at.append(end)
            end += length

    @property
    def extents(self) -> list[Extent]:
        begin = address_of(self.memory)
        return [
            (begin + at, n, m) for at, n, m in zip(self.at, self.lengths, self.marks, strict=True)
        ]

    def filled(self) -> Pieces:
        for at, part in zip(self.at, self.parts(self.content), strict=True):
            self.memory[at : at + len(part)] = np.frombuffer(part, np.uint8)
        return self

    def parts(self, data: bytes) -> list[bytes]:
        ends = np.cumsum(self.lengths)
        return [data[end - n : end] for end, n in zip(ends, self.lengths, strict=True)]

    @property
    def found(self) -> list[bytes]:
        return [
            self.memory[at : at + n].tobytes() for at, n in zip(self.at, self.lengths, strict=True)
        ]

    @property
    def digests(self) -> list[bytes]:
        """By Python's xxhash."""
        digests: list[bytes] = []
        hasher = xxhash.xxh3_128()
        for part, mark in zip(self.parts(self.content), self.marks, strict=True):
            if mark != SKIPPED:
                hasher.update(part)
            if mark == UNIT_ENDS:
                digests.append(hasher.digest())
                hasher = xxhash.xxh3_128()
        return digests


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [1, 7, 40])
def test_reading_fills_the_extents_and_no_byte_beside(
    loops: Loops, tmp_path: Path, seed: int, count: int
) -> None:
    pieces = Pieces(seed, count)
    file = tmp_path / "file"
    file.write_bytes(b"?" * 13 + pieces.content)
    with file.open("rb") as opened:
        assert loops.read(opened.fileno(), 13, pieces.extents, STEP_BYTES, 0) == pieces.digests
    assert pieces.found == pieces.parts(pieces.content)
    assert int(pieces.memory.astype(np.int64).sum()) == sum(pieces.content)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [1, 7, 40])
def test_writing_writes_and_hashes_over_several_calls(
    loops: Loops, tmp_path: Path, seed: int, count: int
) -> None:
    pieces = Pieces(seed, count).filled()
    hasher = loops.hasher()
    half = count // 2
    with (tmp_path / "file").open("wb") as opened:
        digests: list[bytes] = []
        offset = 5
        for extents in (pieces.extents[:half], pieces.extents[half:]):
            digests += loops.write(opened.fileno(), offset, extents, STEP_BYTES, hasher) or []
            offset += sum(length for _, length, _ in extents)
    assert digests == pieces.digests
    assert (tmp_path / "file").read_bytes() == bytes(5) + pieces.content


@pytest.mark.parametrize("seed", range(8))
def test_copying_hashes_and_copies_at_any_alignment(loops: Loops, seed: int) -> None:
    pieces = Pieces(seed, 30)
    source = np.frombuffer(b"?" * seed + pieces.content, np.uint8)
    digests = loops.copy(address_of(source) + seed, pieces.extents, loops.hasher())
    assert digests == pieces.digests
    for found, part, mark in zip(
        pieces.found, pieces.parts(pieces.content), pieces.marks, strict=True
    ):
        assert found == (bytes(len(part)) if mark == SKIPPED else part)


def test_a_short_file_is_no_data(loops: Loops, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 99)
    memory = np.zeros(100, np.uint8)
    with (tmp_path / "file").open("rb") as opened, pytest.raises(OSError) as caught:
        loops.read(opened.fileno(), 0, [(address_of(memory), 100, UNIT_ENDS)], STEP_BYTES, 0)
    assert caught.value.errno == errno.ENODATA


def test_errors_are_the_system_s(loops: Loops, tmp_path: Path) -> None:
    memory = np.zeros(100, np.uint8)
    extents = [(address_of(memory), 100, UNIT_ENDS)]
    with pytest.raises(OSError) as caught:
        loops.read(-1, 0, extents, STEP_BYTES, 0)
    assert caught.value.errno == errno.EBADF
    (tmp_path / "file").write_bytes(b"")
    with (tmp_path / "file").open("rb") as opened, pytest.raises(OSError) as caught:
        loops.write(opened.fileno(), 0, extents, STEP_BYTES, loops.hasher())
    assert caught.value.errno == errno.EBADF


def test_an_extent_without_bytes_is_refused(loops: Loops, tmp_path: Path) -> None:
    memory = np.zeros(100, np.uint8)
    extents = [(address_of(memory), 100, HASHED), (address_of(memory), 0, UNIT_ENDS)]
    (tmp_path / "file").write_bytes(bytes(100))
    with (tmp_path / "file").open("r+b") as opened:
        with pytest.raises(OSError) as caught:
            loops.read(opened.fileno(), 0, extents, STEP_BYTES, 0)
        assert caught.value.errno == errno.EINVAL
        with pytest.raises(OSError) as caught:
            loops.write(opened.fileno(), 0, extents, STEP_BYTES, loops.hasher())
        assert caught.value.errno == errno.EINVAL


def test_a_full_disk_is_reported(loops: Loops) -> None:
    memory = np.zeros(100, np.uint8)
    with open("/dev/full", "wb", buffering=0) as opened, pytest.raises(OSError) as caught:
        loops.write(
            opened.fileno(), 0, [(address_of(memory), 100, HASHED)], STEP_BYTES, loops.hasher()
        )
    assert caught.value.errno == errno.ENOSPC


def test_steps_are_counted_over_all_extents() -> None:
    assert steps([(0, 1, HASHED)], STEP_BYTES) == 1
    assert steps([(0, STEP_BYTES, HASHED), (0, 1, HASHED)], STEP_BYTES) == 2


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAREDFS_NATIVE", "0")
    assert native.loops.__wrapped__() is None


def test_other_checksums_than_python_s_are_not_used(
    loops: Loops, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(xxhash, "xxh3_128_digest", lambda _: b"another")
    monkeypatch.delenv("SHAREDFS_NATIVE", raising=False)
    with caplog.at_level(logging.WARNING):
        assert native.loops.__wrapped__() is None
    assert "its checksums are not those of" in caplog.text


def test_a_broken_library_is_not_used(
    loops: Loops, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "_loops.so"
    broken.write_bytes(b"no library")
    with caplog.at_level(logging.WARNING):
        assert native._load(broken) is None
    assert "_loops.so is not used" in caplog.text
    assert os.path.exists(broken)


def test_whole_units_are_copied_without_a_hasher(loops: Loops) -> None:
    source = np.frombuffer(np.random.default_rng(1).bytes(300_000), np.uint8)
    target = np.zeros_like(source)
    extents = [(address_of(target), 200_000, UNIT_ENDS)]
    extents.append((address_of(target) + 200_000, 100_000, UNIT_ENDS))
    digests = loops.copy(address_of(source), extents)
    assert digests == [
        xxhash.xxh3_128_digest(part.tobytes()) for part in np.split(source, [200_000])
    ]
    assert (target == source).all()


class LoadedPieces(Pieces):
    """Pieces as a load takes them: each a whole unit, or padding; one door each."""

    def __init__(self, seed: int, count: int, loops: Loops) -> None:
        super().__init__(seed, count)
        self.padding = [mark == SKIPPED for mark in self.marks]
        self.doors = loops.doors(count)
        self.stop = np.zeros(1, np.uint8)

    @property
    def load_parts(self) -> list[Part]:
        begin = address_of(self.memory)
        return [
            (0 if is_padding else begin + at, length, self.doors.address(number))
            for number, (at, length, is_padding) in enumerate(
                zip(self.at, self.lengths, self.padding, strict=True)
            )
        ]

    def load(self, loops: Loops, path: Path, step_bytes: int = STEP_BYTES) -> Loaded:
        buffer = np.zeros(step_bytes + 64, np.uint8)
        path.write_bytes(b"?" * 13 + self.content)
        with path.open("rb") as file:
            where, stop = address_of(buffer), address_of(self.stop)
            found = loops.load(file.fileno(), 13, where, step_bytes, self.load_parts, stop)
        assert not buffer[step_bytes:].any()
        return found

    def expected(self, shut: set[int]) -> list[bytes | None]:
        parts = self.parts(self.content)
        return [
            None if self.padding[number] or number in shut else xxhash.xxh3_128_digest(part)
            for number, part in enumerate(parts)
        ]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [1, 7, 40])
@pytest.mark.parametrize("step_bytes", [1000, STEP_BYTES])
def test_loading_moves_what_no_door_keeps_out(
    loops: Loops, tmp_path: Path, seed: int, count: int, step_bytes: int
) -> None:
    pieces = LoadedPieces(seed, count, loops)
    shut = set(random.Random(seed).sample(range(count), count // 3))
    assert all(pieces.doors.shut_part(number) for number in shut)
    loaded = pieces.load(loops, tmp_path / "file", step_bytes)
    assert loaded.digests == pieces.expected(shut)
    wanted = [
        bytes(length) if digest is None else part
        for length, digest, part in zip(
            pieces.lengths, loaded.digests, pieces.parts(pieces.content), strict=True
        )
    ]
    assert pieces.found == wanted
    assert int(pieces.memory.astype(np.int64).sum()) == sum(map(sum, wanted))  # nothing beside
    assert loaded.read_seconds > 0 and loaded.busy_seconds > 0
    assert 0 < loaded.quickest_seconds <= loaded.read_seconds
    assert pieces.doors.is_free()


def test_a_stopped_load_touches_nothing(loops: Loops, tmp_path: Path) -> None:
    pieces = LoadedPieces(1, 7, loops)
    pieces.stop[0] = 1
    assert pieces.load(loops, tmp_path / "file").digests == [None] * 7
    assert not pieces.memory.any()


def test_a_load_of_less_than_there_should_be_says_so(loops: Loops, tmp_path: Path) -> None:
    pieces = LoadedPieces(1, 7, loops)
    pieces.content = pieces.content[:-1]
    with pytest.raises(OSError) as caught:
        pieces.load(loops, tmp_path / "file")
    assert caught.value.errno == errno.ENODATA
    with pytest.raises(OSError) as caught:
        loops.load(-1, 0, address_of(pieces.memory), 4096, pieces.load_parts, 0)
    assert caught.value.errno == errno.EBADF


def test_doors_tell_who_is_inside(loops: Loops) -> None:
    doors = loops.doors(3)
    inside = ctypes.c_int32.from_address(doors.address(1))
    inside.value += 2
    assert not doors.is_free() and not doors.is_free(1) and doors.is_free(0)
    assert doors.shut_part(0) and not doors.shut_part(1) and not doors.shut()
    assert inside.value == 3
    inside.value -= 2
    assert doors.is_free() and doors.shut()
