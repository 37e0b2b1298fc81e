"""With nothing asked of it, the throttled mount is the directory behind it; and it is torn down."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.throttle import Throttle, ThrottleUnavailable, available
from sharedfs_backend.files import NAMED, LocalFiles
from tests.bench.throttle.mounts import PATIENCE_SECONDS, Mount, until
from tests.files.contract import CHECKS, Check


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_store_s_file_contract_holds_on_a_mount(check: Check, mount: Throttle) -> None:
    check(LocalFiles(str(mount.mountpoint), NAMED["posix"]))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_holds_with_what_gekkofs_does_as_well(check: Check, mount: Throttle) -> None:
    """All but what is a chance there: reads that end early, and listings that lack an entry."""
    mount.set(quirks="gekkofs")
    mount.control.change({"short_read_ppm": 0, "listing_miss_ppm": 0})
    check(LocalFiles(str(mount.mountpoint), NAMED["gekkofs"]))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_holds_where_bytes_are_visible_at_close(check: Check, mount: Throttle) -> None:
    mount.set(quirks="nfs")
    check(LocalFiles(str(mount.mountpoint), NAMED["nfs"]))


def test_what_is_written_is_in_the_backing_directory(mount: Throttle) -> None:
    data = random.Random(3).randbytes(3 << 20)
    (mount.mountpoint / "d").mkdir()
    (mount.mountpoint / "d" / "f").write_bytes(data)
    assert (mount.backing / "d" / "f").read_bytes() == data
    assert (mount.mountpoint / "d" / "f").read_bytes() == data


def test_a_directory_with_the_number_of_a_file_that_went_is_a_directory(mount: Throttle) -> None:
    """ext4 gives the number at once; where the directory behind it never does, nothing is seen."""
    (mount.mountpoint / "file").write_bytes(b"known to the mount")
    (mount.backing / "file").unlink()
    (mount.mountpoint / "directory").mkdir()
    (mount.mountpoint / "directory" / "f").write_bytes(b"data")
    assert (mount.mountpoint / "directory" / "f").read_bytes() == b"data"


def test_renames_links_and_modes_work(mount: Throttle) -> None:
    root = mount.mountpoint
    (root / "a").write_bytes(b"first")
    (root / "b").write_bytes(b"second")
    os.rename(root / "a", root / "b")
    os.link(root / "b", root / "c")
    os.symlink("b", root / "s")
    os.chmod(root / "b", 0o640)
    os.utime(root / "b", (1, 2))
    found = os.stat(root / "c")
    assert (root / "s").read_bytes() == b"first" and os.readlink(root / "s") == "b"
    assert (found.st_mode & 0o777, found.st_mtime, found.st_nlink) == (0o640, 2, 2)
    assert sorted(os.listdir(root)) == ["b", "c", "s"]


def test_a_renamed_directory_keeps_its_files(mount: Throttle) -> None:
    root = mount.mountpoint
    (root / "d").mkdir()
    (root / "d" / "f").write_bytes(b"x")
    os.stat(root / "d" / "f")
    os.rename(root / "d", root / "e")
    assert (root / "e" / "f").read_bytes() == b"x"
    assert not (root / "d" / "f").exists()


def test_an_open_file_outlives_its_name(mount: Throttle) -> None:
    (mount.mountpoint / "f").write_bytes(b"still here")
    with (mount.mountpoint / "f").open("rb", buffering=0) as file:
        os.unlink(mount.mountpoint / "f")
        assert (os.fstat(file.fileno()).st_nlink, file.read()) == (0, b"still here")


def test_appending_and_truncating_work(mount: Throttle) -> None:
    path = mount.mountpoint / "f"
    path.write_bytes(b"0123456789")
    with path.open("ab") as file:
        file.write(b"ab")
    os.truncate(path, 11)
    assert path.read_bytes() == b"0123456789a"


def test_an_open_file_read_again_and_again_shows_what_becomes_of_it(mount: Throttle) -> None:
    mine, behind = mount.mountpoint / "file", mount.backing / "file"
    mine.write_bytes(b"a" * 5000)
    with open(mine, "rb", buffering=0) as file:
        for _ in range(3):  # the second read and those after it are answered from a mapping
            assert os.pread(file.fileno(), 9000, 1000) == b"a" * 4000
        with open(behind, "r+b") as other:
            other.seek(4999)
            other.write(b"b" * 5001)
        assert os.pread(file.fileno(), 9000, 4998) == b"a" + b"b" * 5001
        assert os.pread(file.fileno(), 2, 4998) == b"ab"
        os.truncate(behind, 4999)
        assert os.pread(file.fileno(), 9000, 4997) == b"aa"
        assert os.pread(file.fileno(), 10, 6000) == b""


def test_known_files_cost_no_descriptors(mount: Throttle) -> None:
    folder = mount.mountpoint / "d"
    folder.mkdir()
    for number in range(300):
        (folder / f"f{number}").write_bytes(b"x")
    assert sum(os.path.getsize(folder / f"f{number}") for number in range(300)) == 300
    assert len(os.listdir(f"/proc/{mount.pid}/fd")) < 50


def test_threads_that_make_read_and_remove_files_at_once_find_their_own(mount: Throttle) -> None:
    def work(seed: int) -> bool:
        source = random.Random(seed)
        good = True
        for number in range(40):
            path = mount.mountpoint / f"f{seed}-{number % 3}"
            data = source.randbytes(source.randrange(1, 200_000))
            path.write_bytes(data)
            good &= path.read_bytes() == data
            if source.random() < 0.3:
                os.rename(path, mount.mountpoint / f"g{seed}")
            elif source.random() < 0.5:
                os.unlink(path)
        return good

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_the_page_cache_is_left_out_unless_asked_for(mount_as: Mount) -> None:
    path = mount_as("direct").mountpoint / "f"
    path.write_bytes(b"x" * 8192)
    for _ in range(3):
        path.read_bytes()
    cached = mount_as("cached", cache=True)
    for _ in range(3):
        (cached.mountpoint / "f").read_bytes()
    assert cached.counters().read == 1


def test_a_mount_whose_owner_is_killed_goes_away(tmp_path: Path) -> None:
    if lacking := available.missing():
        pytest.skip(lacking)
    script = (
        "import sys, time; from pathlib import Path; from bench.throttle import Throttle\n"
        "t = Throttle(Path(sys.argv[1]), Path(sys.argv[2])); print(t.pid, flush=True)\n"
        "time.sleep(600)"
    )
    where = [str(tmp_path / "backing"), str(tmp_path / "mount")]
    owner = subprocess.Popen(
        [sys.executable, "-c", script, *where],
        stdout=subprocess.PIPE,
        cwd=available.FOLDER.parents[1],
    )
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline()
        assert available.is_mounted(Path(where[1]))
        owner.kill()
        owner.wait(PATIENCE_SECONDS)
    until(lambda: not available.is_mounted(Path(where[1])))


def test_a_mount_whose_process_was_killed_is_unmounted_all_the_same(tmp_path: Path) -> None:
    if lacking := available.missing():
        pytest.skip(lacking)
    one = Throttle(tmp_path / "backing", tmp_path / "a mount")
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: one._process.poll() is not None)
    assert available.is_mounted(one.mountpoint)
    one.close()
    assert not available.is_mounted(one.mountpoint)
    assert os.listdir(one.mountpoint) == []


def test_what_is_missing_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: True)
    monkeypatch.setattr(available, "PROGRAM", tmp_path / "throttlefs")
    found: dict[str, str | None] = dict.fromkeys(("fusermount3", "gcc", "make", "pkg-config"))
    monkeypatch.setattr("shutil.which", lambda tool: found[tool])
    said = []
    for tool in ("fusermount3", "gcc", "make", "pkg-config"):
        said.append(str(available.missing()).partition(": ")[2])
        found[tool] = "/usr/bin/" + tool
    assert said == [
        "apt install fuse3",
        "apt install gcc",
        "apt install make",
        "apt install pkg-config",
    ]
    with pytest.raises(ThrottleUnavailable):
        available.require()
