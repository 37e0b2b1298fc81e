"""Latency, bandwidth and concurrency: what was asked is what it takes at least, and no queue."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from bench.throttle import CLASSES, Throttle, accuracy
from tests.bench.throttle.mounts import at_least, threads, until

MIB = 1 << 20


def acts(mount: Throttle, fd: int) -> dict[str, Callable[[], object]]:
    """One request of each class."""
    path = mount.mountpoint / "f"
    return {
        "metadata": lambda: os.stat(mount.mountpoint),
        "open": lambda: os.close(os.open(path, os.O_RDONLY)),
        "read": lambda: os.pread(fd, 10, 0),
        "write": lambda: os.pwrite(fd, b"x", 0),
        "close": lambda: os.close(os.dup(fd)),
    }


@pytest.fixture
def fd(mount: Throttle) -> int:
    return os.open(mount.mountpoint / "f", os.O_RDWR | os.O_CREAT)


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_has_a_latency_of_its_own(name: str, mount: Throttle, fd: int) -> None:
    mount.set(latency_ms={name: 60.0})
    assert at_least(0.06, acts(mount, fd)[name])
    mount.set(latency_ms={other: 60_000.0 for other in CLASSES if other != name})
    if name != "open":  # which looks the name up, and is closed
        acts(mount, fd)[name]()
    os.set_inheritable(fd, False)
    mount.set()
    os.close(fd)


def test_one_number_is_for_all_but_closes(mount: Throttle, fd: int) -> None:
    mount.set(latency_ms=2.5)
    found = mount.control.settings()
    asked = {name: found[f"latency_{name}_us"] for name in CLASSES}
    assert asked == dict.fromkeys(CLASSES, 2500) | {"close": 0}
    os.close(fd)


def test_64_requests_are_all_under_way_before_the_first_is_answered(
    mount: Throttle, fd: int
) -> None:
    mount.set(latency_ms={"read": 1500.0})
    before = mount.counters().read
    with threads(64, lambda: os.pread(fd, 1, 0)) as answers:
        until(lambda: mount.counters().read - before == 64)
        assert answers == []
    assert answers == [b""] * 64
    os.close(fd)


def test_an_answer_that_is_due_is_not_held_up_by_one_that_is_not(mount: Throttle, fd: int) -> None:
    mount.set(latency_ms={"read": 60_000.0})
    with threads(1, lambda: os.pread(fd, 1, 0)) as slow:
        until(lambda: mount.counters().read == 1)
        mount.set(latency_ms={"write": 20.0})
        os.pwrite(fd, b"x", 0)
        assert slow == []
        mount.close()  # or it would take its minute
    assert slow[0] in (errno.ECONNABORTED, errno.ENOTCONN)
    with pytest.raises(OSError):
        os.close(fd)


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_bandwidth_limit_is_one_for_all_who_read_or_write(
    kind: str, mount: Throttle, fd: int
) -> None:
    other = os.open(mount.mountpoint / "g", os.O_RDWR | os.O_CREAT)
    data = bytes(2 * MIB)
    os.pwrite(fd, data, 0)
    os.pwrite(other, data, 0)
    mount.set(bandwidth_mb_s=10.0, burst_ms=0.0)
    both = iter([fd, other])

    def move() -> None:
        one = next(both)
        if kind == "read":
            os.pread(one, 2 * MIB, 0)
        else:
            os.pwrite(one, data, 0)

    def all_of_it() -> None:
        with threads(2, move):
            pass

    assert at_least(4 * MIB / 10e6, all_of_it)
    mount.set()
    os.close(fd)
    os.close(other)


def test_metadata_can_be_rationed(mount: Throttle) -> None:
    mount.control.change({"metadata_per_second": 100, "burst_us": 0})
    assert at_least(0.1, lambda: [os.stat(mount.mountpoint) for _ in range(10)])


def test_jitter_spreads_latencies_the_same_way_for_the_same_seed(mount: Throttle) -> None:
    mount.set(latency_ms={"metadata": 1.0}, jitter_ms=1.0, seed=5)
    assert mount.control.settings()["jitter_us"] == 1000
    assert at_least(0.01, lambda: [os.stat(mount.mountpoint) for _ in range(40)])


def test_behaviour_is_stated_whole_and_an_unknown_name_changes_nothing(mount: Throttle) -> None:
    mount.set(latency_ms=1.0, bandwidth_mb_s=5.0, jitter_ms=0.5, quirks="gekkofs")
    with pytest.raises(ValueError):
        mount.set(latency_ms={"seek": 1.0})
    with pytest.raises(ValueError):
        mount.control.change({"no_such_setting": 1})
    assert mount.control.settings()["latency_read_us"] == 1000
    mount.set()
    given = {name: value for name, value in mount.control.settings().items() if value}
    assert given == {"direct_io": 1, "seed": 1, "burst_us": 1000}


def test_every_request_is_counted_once(mount: Throttle) -> None:
    before = mount.counters()
    (mount.mountpoint / "f").write_bytes(b"12345")
    (mount.mountpoint / "f").read_bytes()
    os.listdir(mount.mountpoint)
    found = mount.counters() - before
    assert (found.create, found.open, found.write, found.close, found.list) == (1, 1, 1, 2, 1)
    assert (found.bytes_written, found.bytes_read) == (5, 5)
    assert found.operations == found.metadata + 2 + found.read + 1 + 2


def test_the_accuracy_is_told_and_the_settings_are_put_back(mount: Throttle) -> None:
    mount.set(latency_ms={"close": 1.0})
    lines = mount.accuracy()
    assert {line.what.split()[0] for line in lines} >= {*CLASSES, "64", "jitter", "EIO"}
    assert all(line.got >= line.asked for line in lines if line.what.endswith("latency"))
    assert lines[-1].got == lines[-1].asked == 5
    assert all(len(str(line).splitlines()) == 1 for line in lines)
    assert mount.control.settings()["latency_close_us"] == 1000
    assert os.listdir(mount.mountpoint) == []
    assert accuracy.HEADER.split() == ["asked", "got", "worst"]
