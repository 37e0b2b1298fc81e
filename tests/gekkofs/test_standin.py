"""The stand-in does what the quirk file says of GekkoFS, and to nothing but its own prefix."""

from __future__ import annotations

import dataclasses
import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.files import quirks
from tests.gekkofs.standin import Standin, _names, missing, settings_of

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

COVERED = {
    # Quirk -> where it comes from here. What has no line is no quirk of one client's calls.
    "io_uring": "the kernel does not know the descriptor",
    "handles_in_client_memory": "the table",
    "unlink_while_reading": "a descriptor is a path",
    "short_read": "a name that is gone, and short_read_ppm",
    "dead_server": "hang",
    "listing_may_miss": "listing_miss_ppm",
    "one_writer_per_file": "nothing locks",
}

PRELUDE = """
import errno, fcntl, json, mmap, os, sys, time
root = sys.argv[1]
def tried(act):
    try:
        return act()
    except OSError as error:
        return errno.errorcode[error.errno]
def made(name, data=b"0123456789"):
    fd = os.open(root + "/" + name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.pwrite(fd, data, 0)
    return fd
"""


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[Standin]:
    with Standin(tmp_path, excl_race_ppm=0, poison_aborts=0, listing_stale_us=0) as made:
        yield made


def says(standin: Standin, code: str) -> Any:
    """What a process under the stand-in prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, str(standin.mount)],
        env=standin.environ(),
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_refusal_of_the_quirk_file_is_met(standin: Standin) -> None:
    found = says(
        standin,
        """
fd, p = made("a"), root + "/a"
real = os.open("/dev/null", os.O_WRONLY)
print(json.dumps({
    "rename": tried(lambda: os.rename(p, p + "b")), "link": tried(lambda: os.link(p, p + "b")),
    "symlink": tried(lambda: os.symlink(p, p + "b")),
    "vectored_io": tried(lambda: os.preadv(fd, [bytearray(1)], 0)),
    "mmap": tried(lambda: mmap.mmap(fd, 4)), "sendfile": tried(lambda: os.sendfile(real, fd, 0, 1)),
    "fadvise": tried(lambda: os.posix_fadvise(fd, 0, 1, os.POSIX_FADV_DONTNEED)),
    "fallocate": tried(lambda: os.posix_fallocate(fd, 0, 1)),
    "chmod": tried(lambda: os.chmod(p, 0o600)), "utime": tried(lambda: os.utime(p)),
    "xattr": tried(lambda: os.setxattr(p, "user.a", b"1")),
    "o_append": tried(lambda: os.open(p, os.O_WRONLY | os.O_APPEND)),
    "o_direct": tried(lambda: os.open(p, os.O_RDONLY | os.O_DIRECT)),
}))""",
    )
    table = dataclasses.asdict(quirks.load("gekkofs"))
    numbers = {
        name: getattr(errno, name)
        for name in {*found.values(), *map(str, table.values())}
        if hasattr(errno, name)
    }
    assert {key: numbers[value] for key, value in found.items()} == {
        key: numbers[table[key]] for key in found
    }


def test_a_file_system_without_quirks_refuses_nothing(tmp_path: Path) -> None:
    with Standin(tmp_path, **settings_of("posix")) as plain:
        assert says(
            plain,
            """
fd = made("a")
os.rename(root + "/a", root + "/b")
fd = os.open(root + "/b", os.O_RDWR)
print(json.dumps([os.pwritev(fd, [b"ab", b"c"], 0), os.pread(fd, 10, 0).decode()]))
""",
        ) == [3, "abc3456789"]


def test_descriptors_are_unknown_to_the_kernel(standin: Standin) -> None:
    assert says(
        standin,
        """
fd = made("a")
print(json.dumps([os.path.exists(f"/proc/self/fd/{fd}"), os.fstat(fd).st_size]))
""",
    ) == [False, 10]


def test_times_are_zero_and_the_block_size_counts_the_space(standin: Standin) -> None:
    assert says(
        standin,
        """
made("a")
found, space = os.stat(root + "/a"), os.statvfs(root)
print(json.dumps([found.st_mtime, found.st_ctime, space.f_frsize, space.f_bsize]))
""",
    ) == [0.0, 0.0, 0, 524288]


def test_a_lock_is_a_lie_that_drops_the_real_ones(standin: Standin, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("")
    assert (
        says(
            standin,
            f"""
real = os.open({str(tmp_path / "real")!r}, os.O_RDWR)
fcntl.flock(real, fcntl.LOCK_EX)
one, two = made("a"), os.open(root + "/a", os.O_RDWR)
fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
other = os.open({str(tmp_path / "real")!r}, os.O_RDWR)
fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
print(json.dumps("nobody held it"))
""",
        )
        == "nobody held it"
    )
    assert (standin.control["lies"], standin.control["locks_broken"]) == (2, 1)


def test_two_may_win_an_exclusive_creation(standin: Standin) -> None:
    race = 'print(json.dumps([made("a") > 0, tried(lambda: made("a")) != "EEXIST"]))'
    assert says(standin, race) == [True, False]
    standin.control["excl_race_ppm"] = 1_000_000
    assert says(standin, race.replace('"a"', '"b"')) == [True, True]


def test_data_of_a_name_created_again_vanishes(standin: Standin) -> None:
    assert says(
        standin,
        """
os.close(made("a"))
os.unlink(root + "/a")
fd = made("a")
print(json.dumps([os.fstat(fd).st_size, os.pread(fd, 10, 0).decode()]))
""",
    ) == [10, "\0" * 10]
    assert standin.control["recreated"] == 1


def test_a_write_after_unlink_poisons_the_name_for_ever(standin: Standin) -> None:
    assert says(
        standin,
        """
fd = made("a")
os.unlink(root + "/a")
os.pwrite(fd, b"late", 10)
other = os.open(root + "/a", os.O_RDWR)
os.pwrite(other, b"new", 0)
print(json.dumps([os.fstat(other).st_size, os.pread(other, 14, 0).decode()]))
""",
    ) == [14, "\0" * 7]
    assert standin.control["poisoned"] == 1


def test_the_poison_can_take_the_daemon_with_it(standin: Standin) -> None:
    standin.control["poison_aborts"] = 1
    code = 'fd = made("a"); os.unlink(root + "/a"); os.pwrite(fd, b"late", 10); os.stat(root)'
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-c", PRELUDE + code, str(standin.mount)],
            env=standin.environ(),
            timeout=3,
            check=False,
        )
    assert standin.control["hang"] == 1


def test_a_read_whose_name_is_gone_is_short_with_a_hole(standin: Standin) -> None:
    assert says(
        standin,
        """
os.close(made("a", b"x" * 100))
fd = os.open(root + "/a", os.O_RDONLY)
os.unlink(root + "/a")
print(json.dumps([len(os.pread(fd, 80, 10)), b"x" in os.pread(fd, 80, 10)]))
""",
    ) == [40, False]


def test_a_size_is_published_before_its_bytes(standin: Standin) -> None:
    standin.control["size_before_data_us"] = 300_000
    assert says(
        standin,
        """
import threading
fd = os.open(root + "/a", os.O_RDWR | os.O_CREAT)
thread = threading.Thread(target=lambda: os.pwrite(fd, b"data", 0))
thread.start()
while not os.stat(root + "/a").st_size:
    time.sleep(0.001)
early = os.pread(fd, 4, 0).decode()
thread.join()
print(json.dumps([early, os.pread(fd, 4, 0).decode()]))
""",
    ) == ["\0" * 4, "data"]


def test_a_listing_may_lack_what_another_client_just_made(standin: Standin) -> None:
    standin.control["listing_stale_us"] = 60_000_000
    made = 'for n in range(40): os.close(made(f"n{n}"))\nprint(json.dumps(len(os.listdir(root))))'
    assert says(standin, made) == 40
    assert 0 < says(standin, "print(json.dumps(len(os.listdir(root))))") < 40


def test_a_forked_child_hangs_in_its_first_call(standin: Standin) -> None:
    assert (
        says(
            standin,
            """
import signal
pid = os.fork()
if not pid:
    os.listdir(root)
    os._exit(0)
time.sleep(0.5)
hung = os.waitpid(pid, os.WNOHANG)[0] == 0
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
print(json.dumps(hung))
""",
        )
        is True
    )


def test_an_operation_takes_its_latency(standin: Standin) -> None:
    standin.control["latency_us"] = 20_000
    assert (
        says(
            standin,
            """
before = time.monotonic()
for _ in range(5):
    os.stat(root)
print(json.dumps(time.monotonic() - before >= 0.1))
""",
        )
        is True
    )


def test_everything_else_is_left_alone(standin: Standin, tmp_path: Path) -> None:
    assert says(
        standin,
        f"""
other = {str(tmp_path)!r} + "/other"
fd = os.open(other, os.O_RDWR | os.O_CREAT)
os.rename(other, other + "2")
print(json.dumps([os.pwritev(fd, [b"ab"], 0), sorted(os.listdir(root))]))
""",
    ) == [2, []]


def test_every_quirk_of_the_file_is_covered_or_named() -> None:
    """A new quirk in the file is a failure here until the stand-in knows it."""
    told = set(settings_of())
    direct = {
        "timestamps": "zero_times",
        "locks": "locks_lie",
        "statvfs": "bsize_only",
        "excl_race_probability": "excl_race_ppm",
        "unlink_while_writing": "unlink_poisons",
        "unlink_while_writing_aborts_server": "poison_aborts",
        "vectored_io": "vectored_errno",
        "size_before_data": "size_before_data_us",
        "fork": "fork_hangs",
        "spawn": "vfork_aborts",
        "listing_stale_seconds": "listing_stale_us",
        "o_append": "append_errno",
        "o_direct": "direct_errno",
    }
    differs = {
        field.name
        for field in dataclasses.fields(quirks.Quirks)
        if getattr(quirks.load("gekkofs"), field.name) != getattr(quirks.load("posix"), field.name)
    } - {
        "name",
        "unsettled_outcomes",
        "open_round_trips",
        "stat_round_trips",
        "list_asks_all_servers",
    }
    known = {
        name
        for name in differs
        if direct.get(name) in told or name in told or f"{name}_errno" in told
    }
    assert differs - known - set(COVERED) == set()
    assert told <= set(_names()[0])
