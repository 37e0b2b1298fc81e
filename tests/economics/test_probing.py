"""A probe finds what a simulated mount costs, within its time, and leaves nothing but a directory.

The mount is the real temporary directory under a clock that moves by what each operation is made to
cost: widths of one thread give exact numbers; what threads overlap is not simulated.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from sharedfs_backend.economics import probing
from sharedfs_backend.economics.probing import PIECE_BYTES, Prober
from sharedfs_backend.files import Buffer, FailureKind, FileFailure, Handle, LocalFiles


class Slow:
    """LocalFiles whose operations move a clock."""

    def __init__(self, root: Path, open_seconds: float, bytes_per_second: float) -> None:
        self.inner = LocalFiles(str(root))
        self.time = 0.0
        self.open_seconds, self.bytes_per_second = open_seconds, bytes_per_second

    def now(self) -> float:
        return self.time

    def create(self, path: str) -> Handle:
        self.time += 2 * self.open_seconds
        return self.inner.create(path)

    def open_read(self, path: str) -> Handle:
        self.time += self.open_seconds
        return self.inner.open_read(path)

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        self.time += self.open_seconds + into.nbytes / self.bytes_per_second
        return self.inner.read(handle, offset, into)

    def write(self, handle: Handle, offset: int, parts: Sequence[Buffer]) -> None:
        size = sum(memoryview(part).nbytes for part in parts)
        self.time += size / self.bytes_per_second
        self.inner.write(handle, offset, parts)

    def size(self, path: str) -> int:
        self.time += self.open_seconds / 2
        return self.inner.size(path)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "FILE_BYTES", 2 * PIECE_BYTES)
    monkeypatch.setattr(probing, "FILES", 2)
    monkeypatch.setattr(probing, "WORKERS", (1, 1))


def prober(files: Slow, **changes: float) -> Prober:
    source = random.Random(1).randbytes
    return Prober(files, files.now, source, **changes)  # type: ignore[arg-type]  # __getattr__


def test_operations_and_bytes_are_told_apart(tmp_path: Path) -> None:
    tier = prober(Slow(tmp_path, 1e-3, 1e9)).probe("nfs")
    assert tier.open_seconds == pytest.approx(1e-3)
    assert tier.stat_seconds == pytest.approx(0.5e-3)
    assert tier.create_seconds == pytest.approx(2e-3, rel=0.01)
    assert tier.read_seconds == pytest.approx(1e-3, rel=0.01)
    assert tier.single_bytes_per_second == pytest.approx(
        PIECE_BYTES / (1e-3 + PIECE_BYTES / 1e9), rel=0.01
    )
    assert tier.file_system == "nfs" and not tier.is_cached


@pytest.mark.parametrize(
    ("small", "part", "single", "best", "expected"),
    [
        (10e-3, 10.15e-3, 75e6, 900e6, True),  # every request waits 10 ms, and a piece is several
        (1e-3, 1.75e-3, 0.8e9, 1e9, False),  # a link of 1 GB/s, filled
        (10e-3, 10.75e-3, 90e6, 0.95e9, False),  # the same, behind 10 ms: filled all the same
        (1e-3, 1.2e-3, 0.6e9, 2.5e9, False),  # two cores cannot take more
        (50e-6, 0.5e-3, 1.5e9, 1.8e9, False),  # a local disk
    ],
)
def test_bandwidth_is_blamed_on_latency_only_where_latency_limits_it(
    small: float, part: float, single: float, best: float, expected: bool
) -> None:
    assert probing.latency_limits(small, part, single, best) is expected


def test_a_very_slow_mount_is_given_few_samples_not_a_long_wait(tmp_path: Path) -> None:
    files = Slow(tmp_path, 3.0, 1e9)
    made = prober(files, seconds_max=24.0)
    assert made.probe().open_seconds == pytest.approx(3.0)
    assert made.made < 5 and files.time < 60


def test_nothing_is_left_but_an_empty_directory(tmp_path: Path) -> None:
    made = prober(Slow(tmp_path, 1e-6, 1e10))
    made.probe()
    assert [each.name for each in tmp_path.iterdir()] == [made.scratch]
    assert os.listdir(tmp_path / made.scratch) == []


def test_a_failing_mount_is_cleared_up_too(tmp_path: Path) -> None:
    class Full(Slow):
        def write(self, handle: Handle, offset: int, parts: Sequence[Buffer]) -> None:
            if self.inner.root and offset:
                raise FileFailure(FailureKind.NO_SPACE, "write", "b0", "full")
            super().write(handle, offset, parts)

    made = prober(Full(tmp_path, 1e-6, 1e10))
    with pytest.raises(FileFailure, match="full"):
        made.probe()
    assert os.listdir(tmp_path / made.scratch) == []


def test_pages_still_in_memory_are_reported(tmp_path: Path) -> None:
    made = prober(Slow(tmp_path, 1e-6, 1e10))
    made.is_cached = lambda handle, offset, into: True
    assert made.probe().is_cached
