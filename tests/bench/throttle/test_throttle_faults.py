"""Errors at the n-th operation and calls that hang: they come when asked, and go when told."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from bench.throttle import Throttle, available
from tests.bench.throttle.mounts import at_least, threads, until


def outcomes(count: int, fd: int) -> list[int]:
    """The errno of each of so many reads, 0 for none."""
    found = []
    for _ in range(count):
        try:
            os.pread(fd, 1, 0)
            found.append(0)
        except OSError as error:
            found.append(error.errno or -1)
    return found


@pytest.fixture
def path(mount: Throttle) -> Path:
    path = mount.mountpoint / "f"
    path.write_bytes(b"0123456789")
    return path


@pytest.mark.parametrize("name", ["EIO", "ENOSPC", "EDQUOT", "ESTALE"])
def test_the_third_and_fourth_read_fail(name: str, mount: Throttle, path: Path) -> None:
    number = getattr(errno, name)
    with path.open("rb", buffering=0) as file:
        mount.fail(name, of="read", at=3, count=2)
        assert outcomes(6, file.fileno()) == [0, 0, number, number, 0, 0]
    assert mount.counters().failed == 2


def test_a_failed_write_leaves_nothing_and_takes_its_time(mount: Throttle, path: Path) -> None:
    mount.set(latency_ms={"write": 40.0})
    mount.fail("ENOSPC", of="write", at=1, count=0)
    with path.open("r+b", buffering=0) as file:

        def write() -> None:
            with pytest.raises(OSError) as caught:
                file.write(b"XXX")
            assert caught.value.errno == errno.ENOSPC

        assert at_least(0.04, write)
    mount.clear()
    assert path.read_bytes() == b"0123456789"


def test_any_operation_can_be_the_nth(mount: Throttle, path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        mount.fail("EIO", at=2)
        os.stat(mount.mountpoint)
        assert outcomes(2, file.fileno()) == [errno.EIO, 0]


def test_a_failed_close_loses_what_was_not_visible_yet(mount: Throttle, path: Path) -> None:
    mount.control.change({"visible_at_close": 1})
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, b"new", 0)
    mount.fail("EIO", of="close")
    with pytest.raises(OSError):
        os.close(fd)
    assert path.read_bytes() == b"0123456789"


def test_what_hangs_goes_on_when_told_and_nothing_else_waits(mount: Throttle, path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        mount.hang(of="read", at=2)
        assert outcomes(1, file.fileno()) == [0]
        with threads(40, lambda: os.pread(file.fileno(), 4, 0)) as answers:
            until(lambda: mount.counters().hanging == 40)
            assert path.stat().st_size == 10
            assert answers == []
            mount.clear()
        assert answers == [b"0123"] * 40
        assert outcomes(1, file.fileno()) == [0]


def test_a_mount_that_hangs_can_be_closed(mount: Throttle, path: Path) -> None:
    mount.hang(of="metadata")
    with threads(3, lambda: path.stat().st_size) as answers:
        until(lambda: mount.counters().hanging == 3)
        mount.close()
    assert len(answers) == 3
    assert not available.is_mounted(mount.mountpoint)


def test_faults_are_told_apart_from_nonsense(mount: Throttle) -> None:
    for error, of in (("ENONSENSE", "read"), ("EIO", "seek")):
        with pytest.raises(ValueError):
            mount.fail(error, of=of)


@pytest.mark.parametrize(
    "settings",
    [
        {"latency_ms": -1.0},
        {"latency_ms": float("nan")},
        {"latency_ms": {"read": -1.0}},
        {"jitter_ms": -3.0},
        {"burst_ms": -1.0},
        {"bandwidth_mb_s": -1.0},
        {"bandwidth_mb_s": float("inf")},
        {"bandwidth_mb_s": 1e-9},
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], mount: Throttle) -> None:
    mount.set(latency_ms=2.0)
    before = mount.control.settings()
    with pytest.raises(ValueError, match=next(iter(settings))):
        mount.set(**settings)
    assert mount.control.settings() == before


def test_of_settings_that_are_not_all_understood_none_is_set(mount: Throttle) -> None:
    before = mount.control.settings()
    with pytest.raises(ValueError, match="no such setting"):
        mount.control.change({"latency_read_us": 5000, "no_such_setting": 1})
    assert mount.control.settings() == before


@pytest.mark.parametrize("when", [{"at": 0}, {"at": -1}, {"count": -1}])
def test_faults_at_operations_there_are_not_are_refused(
    when: dict[str, Any], mount: Throttle
) -> None:
    with pytest.raises(ValueError, match="count from 1"):
        mount.fail("EIO", **when)
    with pytest.raises(ValueError, match="count from 1"):
        mount.hang(**when)
