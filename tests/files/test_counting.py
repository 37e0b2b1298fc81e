"""Operation counts are exact, in order, bounded, and include what failed."""

from __future__ import annotations

from pathlib import Path

from sharedfs_backend.files import OPERATIONS, CountingFiles, FailureKind, LocalFiles
from tests.files.contract import fails


def counting(root: Path, log_max: int = 1000) -> CountingFiles:
    return CountingFiles(LocalFiles(str(root)), log_max=log_max)


def test_every_operation_is_counted_once_and_logged_in_order(tmp_path: Path) -> None:
    files = counting(tmp_path)
    files.make_dir("d")
    handle = files.create("d/a")
    files.write(handle, 4096, [b"ab", b"c"])
    files.flush(handle, 0, 4099)
    files.close(handle)
    handle = files.open_read("d/a")
    files.read(handle, 8, memoryview(bytearray(5)))
    files.close(handle)
    files.size("d/a")
    files.list("d")
    files.unlink("d/a")
    assert [tuple(found) for found in files.log] == [
        ("mkdir", "d", 0, 0),
        ("create", "d/a", 0, 0),
        ("write", "d/a", 4096, 3),
        ("flush", "d/a", 0, 4099),
        ("close", "d/a", 0, 0),
        ("open", "d/a", 0, 0),
        ("read", "d/a", 8, 5),
        ("close", "d/a", 0, 0),
        ("stat", "d/a", 0, 0),
        ("list", "d", 0, 0),
        ("unlink", "d/a", 0, 0),
    ]
    assert files.counts == {op: 2 if op == "close" else 1 for op in OPERATIONS}


def test_a_failed_operation_costs_one_too(tmp_path: Path) -> None:
    files = counting(tmp_path)
    fails(FailureKind.MISSING, "open", lambda: files.open_read("a"))
    assert files.counts == {"open": 1}


def test_more_parts_than_one_call_takes_count_as_more_writes(tmp_path: Path) -> None:
    files = counting(tmp_path)
    handle = files.create("a")
    files.write(handle, 0, [b"x"] * 2049)
    files.close(handle)
    assert files.counts["write"] == 3


def test_the_log_is_bounded_and_reset_forgets_all(tmp_path: Path) -> None:
    files = counting(tmp_path, log_max=2)
    for name in ("a", "b", "c"):
        files.make_dir(name)
    assert [found.path for found in files.log] == ["b", "c"]
    files.reset()
    assert (files.log, dict(files.counts)) == ([], {})
