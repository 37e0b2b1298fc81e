"""Each quirk does what it says, seen through the mount; some need two mounts of one directory."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench.throttle import Quirks, Throttle, named
from tests.bench.throttle.mounts import Mount, threads, until
from tests.files import quirks as quirk_file


def fails(number: int, act: object, *given: object) -> None:
    with pytest.raises(OSError) as caught:
        act(*given)  # type: ignore[operator] # a call
    assert caught.value.errno == number


def pair(mount_as: Mount, quirks: Quirks) -> tuple[Throttle, Throttle]:
    """Two clients of one directory, with the same quirks."""
    both = mount_as("one"), mount_as("two")
    for mount in both:
        mount.set(quirks=quirks)
    return both


def test_calls_are_refused_with_the_errno_that_was_asked_for(mount: Throttle) -> None:
    path = mount.mountpoint / "f"
    path.write_bytes(b"x")
    refuse = dict.fromkeys(("rename", "link", "chmod", "utime", "append"), "ENOTSUP")
    mount.set(quirks=Quirks(**refuse, fallocate="EBADF", direct="EINVAL"))  # type: ignore[arg-type] # names
    with path.open("r+b") as file:
        fails(errno.EBADF, os.posix_fallocate, file.fileno(), 0, 100)
    fails(errno.ENOTSUP, os.rename, path, mount.mountpoint / "g")
    fails(errno.ENOTSUP, os.link, path, mount.mountpoint / "g")
    fails(errno.ENOTSUP, os.symlink, "f", mount.mountpoint / "g")
    fails(errno.ENOTSUP, os.chmod, path, 0o600)
    fails(errno.ENOTSUP, os.utime, path)
    fails(errno.ENOTSUP, os.open, path, os.O_WRONLY | os.O_APPEND)
    fails(errno.EINVAL, os.open, path, os.O_RDONLY | os.O_DIRECT)
    assert os.listdir(mount.mountpoint) == ["f"]


def test_times_can_be_zero(mount: Throttle) -> None:
    mount.set(quirks=Quirks(zero_times=True))
    (mount.mountpoint / "f").write_bytes(b"x")
    found = os.stat(mount.mountpoint / "f")
    assert (found.st_mtime, found.st_ctime, found.st_size) == (0, 0, 1)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_two_clients_that_race_for_a_name_may_both_get_it(
    probability: float, mount_as: Mount
) -> None:
    one, two = pair(mount_as, Quirks(excl_race_probability=probability))
    one.set(latency_ms={"open": 200.0}, quirks=Quirks(excl_race_probability=probability))
    two.set(latency_ms={"metadata": 50.0}, quirks=Quirks(excl_race_probability=probability))
    two.hang(of="open")  # it has found the name missing, and is about to create it
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    with threads(1, lambda: os.close(os.open(two.mountpoint / "f", flags))) as other:
        until(lambda: two.counters().hanging == 1)
        os.close(os.open(one.mountpoint / "f", flags))
        two.clear()
    assert other == [None if probability else errno.EEXIST]
    assert two.counters().excl_races == int(probability)


def test_a_size_can_be_seen_before_the_bytes(mount_as: Mount) -> None:
    one, two = pair(mount_as, Quirks())
    one.set(quirks=Quirks(size_before_data_ms=1000.0))
    fd = os.open(one.mountpoint / "f", os.O_WRONLY | os.O_CREAT)
    with threads(1, lambda: os.pwrite(fd, b"x" * 5000, 0)) as written:
        until(lambda: os.stat(two.mountpoint / "f").st_size == 5000)
        early = (two.mountpoint / "f").read_bytes()
        assert written == []
    os.close(fd)
    assert early == bytes(5000)
    assert (two.mountpoint / "f").read_bytes() == b"x" * 5000


def test_bytes_become_visible_to_the_other_client_at_close(mount_as: Mount) -> None:
    one, two = pair(mount_as, Quirks(visible_at_close=True))
    fd = os.open(one.mountpoint / "f", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"hello", 3)
    os.pwrite(fd, b"HE", 3)
    assert (os.pread(fd, 100, 0), os.fstat(fd).st_size) == (b"\0\0\0HEllo", 8)
    assert os.stat(one.mountpoint / "f").st_size == 8
    assert (os.listdir(two.mountpoint), (two.mountpoint / "f").read_bytes()) == (["f"], b"")
    os.close(fd)
    assert (two.mountpoint / "f").read_bytes() == b"\0\0\0HEllo"


def test_a_second_client_s_append_survives_ours(mount_as: Mount) -> None:
    one, two = pair(mount_as, Quirks(visible_at_close=True))
    (one.mountpoint / "f").write_bytes(b"0123456789")
    ours = os.open(one.mountpoint / "f", os.O_WRONLY)
    os.pwrite(ours, b"AB", 0)
    with (two.mountpoint / "f").open("r+b") as file:
        file.seek(8)
        file.write(b"YZ+")
    os.close(ours)
    assert (two.mountpoint / "f").read_bytes() == b"AB234567YZ+"


def test_a_flush_makes_bytes_visible_too(mount_as: Mount) -> None:
    one, two = pair(mount_as, Quirks(visible_at_close=True))
    fd = os.open(one.mountpoint / "f", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"hello", 0)
    os.fsync(fd)
    assert (two.mountpoint / "f").read_bytes() == b"hello"
    os.close(fd)


def test_a_reader_does_not_see_beyond_the_size_it_opened_with(mount_as: Mount) -> None:
    one, two = pair(mount_as, Quirks(size_at_open=True))
    (one.mountpoint / "f").write_bytes(b"old")
    with (two.mountpoint / "f").open("rb", buffering=0) as before:
        with (one.mountpoint / "f").open("ab") as file:
            file.write(b" and new")
        assert os.pread(before.fileno(), 100, 0) == b"old"
    assert (two.mountpoint / "f").read_bytes() == b"old and new"


def test_a_name_found_missing_stays_missing_for_that_client(mount_as: Mount) -> None:
    one, two = pair(mount_as, Quirks(negative_ms=3_600_000))
    assert not (two.mountpoint / "f").exists()
    (one.mountpoint / "f").write_bytes(b"x")
    assert not (two.mountpoint / "f").exists()
    assert "f" in os.listdir(two.mountpoint)
    (two.mountpoint / "g").write_bytes(b"x")  # its own creations it knows
    assert (two.mountpoint / "g").exists()


def test_a_client_may_believe_an_old_size(mount_as: Mount) -> None:
    one, two = pair(mount_as, Quirks(attribute_ms=3_600_000, entry_ms=3_600_000))
    (one.mountpoint / "f").write_bytes(b"12345")
    assert os.stat(two.mountpoint / "f").st_size == 5
    with (one.mountpoint / "f").open("ab") as file:
        file.write(b"678")
    assert os.stat(two.mountpoint / "f").st_size == 5
    assert (two.mountpoint / "f").read_bytes() == b"12345678"


def test_a_listing_may_be_old_but_knows_this_client_s_own_names(mount_as: Mount) -> None:
    one, two = pair(mount_as, Quirks(listing_stale_ms=3_600_000))
    (one.mountpoint / "a").write_bytes(b"")
    assert os.listdir(two.mountpoint) == ["a"]
    (one.mountpoint / "b").write_bytes(b"")
    assert os.listdir(two.mountpoint) == ["a"]
    (two.mountpoint / "c").write_bytes(b"")
    assert sorted(os.listdir(two.mountpoint)) == ["a", "b", "c"]
    os.unlink(two.mountpoint / "c")
    assert sorted(os.listdir(two.mountpoint)) == ["a", "b"]
    (two.mountpoint / "d").mkdir()
    assert sorted(os.listdir(two.mountpoint)) == ["a", "b", "d"]
    os.rename(two.mountpoint / "a", two.mountpoint / "e")
    assert sorted(os.listdir(two.mountpoint)) == ["b", "d", "e"]


def test_a_listing_may_lack_entries(mount: Throttle) -> None:
    for number in range(100):
        (mount.mountpoint / f"f{number}").write_bytes(b"")
    mount.set(quirks=Quirks(listing_miss_probability=0.5))
    counts = {len(os.listdir(mount.mountpoint)) for _ in range(10)}
    assert all(0 < count < 100 for count in counts) and len(counts) > 1


def test_a_short_read_with_holes_is_no_prefix(mount: Throttle) -> None:
    path = mount.mountpoint / "f"
    path.write_bytes(b"x" * 8000)
    mount.set(quirks=Quirks(short_read_probability=1.0, short_read_holes=True))
    with path.open("rb", buffering=0) as file:
        got = os.pread(file.fileno(), 8000, 0)
    assert len(got) == 4000 and 0 < got.count(0) < 4000
    mount.set(quirks=Quirks(short_read_probability=1.0))
    with path.open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 8000, 0) == b"x" * 4000


def test_a_name_created_again_loses_its_data(mount: Throttle) -> None:
    mount.set(quirks=Quirks(recreate_loses_data=True))
    path = mount.mountpoint / "f"
    path.write_bytes(b"first")
    os.unlink(path)
    path.write_bytes(b"second")
    (mount.mountpoint / "g").write_bytes(b"another")
    assert path.read_bytes() == b"" and mount.counters().names_recreated == 1
    assert (mount.mountpoint / "g").read_bytes() == b"another"


def test_a_name_unlinked_while_it_is_written_is_poisoned(mount: Throttle) -> None:
    mount.set(quirks=Quirks(unlink_poisons=True))
    path = mount.mountpoint / "f"
    with path.open("wb"):
        os.unlink(path)
    path.write_bytes(b"again")
    assert path.read_bytes() == b"" and mount.counters().unlinked_while_written == 1
    os.unlink(path)
    (mount.mountpoint / "g").write_bytes(b"calm")
    os.unlink(mount.mountpoint / "g")
    (mount.mountpoint / "g").write_bytes(b"calm")
    assert (mount.mountpoint / "g").read_bytes() == b"calm"


def test_a_file_unlinked_by_another_client_can_no_longer_be_read(mount_as: Mount) -> None:
    one, two = pair(mount_as, Quirks(unlinked_read="ESTALE"))
    (one.mountpoint / "f").write_bytes(b"x")
    with (two.mountpoint / "f").open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 1, 0) == b"x"
        os.unlink(one.mountpoint / "f")
        fails(errno.ESTALE, os.pread, file.fileno(), 1, 0)


@pytest.mark.parametrize("name", quirk_file.names())
def test_every_file_system_of_the_quirk_file_can_be_mounted(name: str, mount: Throttle) -> None:
    mount.set(quirks=name)
    expected = named(name).settings()
    assert mount.control.settings().items() >= expected.items()
    path = mount.mountpoint / "f"
    path.write_bytes(b"x")
    assert path.stat().st_size == 1


def test_quirks_come_from_the_quirk_file() -> None:
    gekkofs, nfs = named("gekkofs"), named("nfs")
    assert named("posix") == Quirks()
    assert (gekkofs.rename, gekkofs.zero_times, gekkofs.short_read_holes) == ("ENOTSUP", True, True)
    assert (nfs.visible_at_close, nfs.size_at_open, nfs.negative_ms) == (True, True, 60_000)
    assert named("lustre").metadata_per_second == 1000


def test_a_quirk_out_of_bounds_is_refused() -> None:
    for wrong in ({"rename": "ENONSENSE"}, {"negative_ms": -1.0}, {"short_read_probability": 2.0}):
        with pytest.raises(ValueError):
            replace(Quirks(), **wrong).settings()


def test_the_folder_of_the_socket_is_removed(mount: Throttle) -> None:
    folder: Path = mount.control.socket_path.parent
    mount.close()
    assert not folder.exists()
