"""What LocalFiles adds to the contract: its system calls, short writes, links, dirty pages."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharedfs_backend.files import (
    NAMED,
    FailureKind,
    FileFailure,
    LocalFiles,
    local,
    plain,
    writeback,
)
from sharedfs_backend.files.api import WRITE_PARTS_MAX
from sharedfs_backend.files.profile import CachedReads, FlushMethod
from tests.files.contract import fails, get, put

PROFILES = {"vectored": NAMED["posix"], "plain": replace(NAMED["posix"], vectored=False)}


@pytest.fixture(params=PROFILES)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalFiles]:
    yield LocalFiles(str(tmp_path), PROFILES[request.param])


def few_bytes(limit: int) -> Callable[[int, Any, int], int]:
    """A write call that writes at most `limit` bytes."""

    def write(fd: int, data: Any, offset: int) -> int:
        joined = b"".join(data) if isinstance(data, list | tuple) else bytes(data)
        return os.pwrite(fd, joined[:limit], offset)

    return write


def test_a_short_write_is_carried_on(monkeypatch: pytest.MonkeyPatch, files: LocalFiles) -> None:
    monkeypatch.setattr(os, "pwritev", few_bytes(3))
    monkeypatch.setattr(local, "pwrite_from", few_bytes(3))
    put(files, "a", b"", b"01", b"2345", b"6", b"789")
    assert get(files, "a", 20) == b"0123456789"


@pytest.mark.parametrize("vectored", [True, False])
def test_a_fifo_in_a_files_place_is_an_empty_file_on_a_local_disk(
    tmp_path: Path, vectored: bool
) -> None:
    os.mkfifo(tmp_path / "a")
    files = LocalFiles(str(tmp_path), replace(NAMED["local"], vectored=vectored))
    assert get(files, "a", 20) == b""


@pytest.mark.parametrize("name", sorted(NAMED.keys() - {"local"}))
def test_only_on_a_local_disk_is_a_read_told_not_to_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """On Lustre it would fail while another client holds the lock on what it wrote."""
    files, flags = LocalFiles(str(tmp_path), NAMED[name]), list[int]()
    put(files, "a", b"x")
    real = os.open

    def noted(path: str, given: int, mode: int) -> int:
        flags.append(given & os.O_NONBLOCK)
        return real(path, given, mode)

    monkeypatch.setattr(os, "open", noted)
    assert get(files, "a", 1) == b"x" and flags == [0]


def test_a_write_that_writes_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, files: LocalFiles
) -> None:
    monkeypatch.setattr(os, "pwritev", few_bytes(0))
    monkeypatch.setattr(local, "pwrite_from", few_bytes(0))
    handle = files.create("a")
    fails(FailureKind.IO, "write", lambda: files.write(handle, 0, [b"x"]))
    files.close(handle)


def test_one_write_is_one_call_up_to_the_limit_of_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[int] = []
    real = os.pwritev

    def counted(fd: int, parts: Any, offset: int) -> int:
        calls.append(len(parts))
        return real(fd, parts, offset)

    monkeypatch.setattr(os, "pwritev", counted)
    files = LocalFiles(str(tmp_path), NAMED["posix"])
    put(files, "a", *[b"x"] * WRITE_PARTS_MAX)
    put(files, "b", *[b"x"] * (WRITE_PARTS_MAX + 1))
    assert calls == [WRITE_PARTS_MAX, WRITE_PARTS_MAX, 1]


def test_plain_writes_join_small_parts_and_leave_large_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[int] = []
    real = plain.pwrite_from

    def counted(fd: int, data: memoryview, offset: int) -> int:
        calls.append(data.nbytes)
        return real(fd, data, offset)

    monkeypatch.setattr(local, "pwrite_from", counted)
    put(LocalFiles(str(tmp_path), PROFILES["plain"]), "a", *[b"x" * 1000] * 9, b"y" * (4 << 20))
    assert calls == [9000, 4 << 20]


def test_a_symbolic_link_in_a_files_place_is_refused(files: LocalFiles, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_bytes(b"secret")
    (tmp_path / "a").symlink_to(outside)
    fails(FailureKind.DENIED, "open", lambda: files.open_read("a"))
    fails(FailureKind.DENIED, "open", lambda: files.open_write("a"))
    fails(FailureKind.EXISTS, "create", lambda: files.create("a"))


def test_a_read_only_buffer_is_our_own_mistake(files: LocalFiles) -> None:
    put(files, "a", b"xyz")
    handle = files.open_read("a")
    with pytest.raises((TypeError, ValueError, BufferError)):
        files.read(handle, 0, memoryview(b"..."))
    files.close(handle)


def test_reading_a_directory_fails(files: LocalFiles) -> None:
    files.make_dir("d")
    handle = files.open_read("d")
    fails(FailureKind.IO, "read", lambda: files.read(handle, 0, memoryview(bytearray(1))))
    files.close(handle)


def test_a_failed_close_is_reported_and_the_handle_is_gone(
    monkeypatch: pytest.MonkeyPatch, files: LocalFiles
) -> None:
    handle = files.create("a")
    real = os.close

    def close(fd: int) -> None:
        real(fd)
        raise OSError(errno.EDQUOT, "quota")

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", close)
        fails(FailureKind.NO_SPACE, "close", lambda: files.close(handle))
    fails(FailureKind.IO, "close", lambda: files.close(handle))


def test_interrupted_plain_calls_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [-1, -1, 2]
    monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EINTR)
    monkeypatch.setattr(plain, "_pread", lambda *_: answers.pop(0))
    assert plain.pread_into(0, memoryview(bytearray(4)), 0) == 2
    assert answers == []


@pytest.mark.parametrize("method", FlushMethod)
def test_flush_uses_the_call_its_profile_names(
    method: FlushMethod, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []

    def sync_range(*_: object) -> int:
        calls.append("range")
        return 0

    monkeypatch.setattr(writeback, "_sync_file_range", sync_range)
    monkeypatch.setattr(os, "fdatasync", lambda *_: calls.append("datasync"))
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: calls.append("drop"))
    files = LocalFiles(str(tmp_path), replace(NAMED["posix"], flush=method))
    handle = files.create("a")
    files.flush(handle, 0, 10)
    files.close(handle)
    expected = {"none": [], "range": ["range", "drop"], "datasync": ["datasync", "drop"]}
    assert calls == expected[method.value]


def test_flush_without_sync_file_range_syncs_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(writeback, "_sync_file_range", None)
    monkeypatch.setattr(os, "fdatasync", lambda *_: calls.append("datasync"))
    files = LocalFiles(str(tmp_path), replace(NAMED["posix"], fadvise=False))
    handle = files.create("a")
    files.flush(handle, 0, 10)
    files.close(handle)
    assert calls == ["datasync"]


def test_a_failed_flush_is_a_failure(files: LocalFiles) -> None:
    handle = files.create("a")
    os.close(handle.fd)
    with pytest.raises(FileFailure) as caught:
        files.flush(handle, 0, 10)
    assert (caught.value.operation, caught.value.kind) == ("flush", FailureKind.IO)


def test_free_bytes_survives_a_missing_fragment_size(
    monkeypatch: pytest.MonkeyPatch, files: LocalFiles
) -> None:
    class Found:
        f_bavail, f_frsize, f_bsize = 3, 0, 524288

    monkeypatch.setattr(os, "statvfs", lambda _: Found)
    assert files.free_bytes() == 3 * 524288


def test_free_bytes_is_unknown_where_statvfs_is(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path / "missing"), replace(NAMED["posix"], statvfs=False))
    assert files.free_bytes() is None


@pytest.mark.parametrize("how", [CachedReads.NOWAIT, CachedReads.MEMORY])
def test_a_cached_read_fills_its_buffers_or_brings_nothing(
    tmp_path: Path, how: CachedReads
) -> None:
    files = LocalFiles(str(tmp_path), replace(NAMED["local"], cached_reads=how))
    (tmp_path / "a").write_bytes(b"0123456789")
    handle = files.open_read("a")
    into = [memoryview(bytearray(3)), memoryview(bytearray(4))]
    found = files.read_cached(handle, 1, into)
    assert found in (0, 7)  # 0 where the file system knows no such read, or the page is gone
    assert found == 0 or b"".join(into) == b"1234567"
    assert how is CachedReads.NOWAIT or found == 7
    files.close(handle)
    assert files.read_cached(handle, 1, into) == 0  # no failure: the read that follows tells
