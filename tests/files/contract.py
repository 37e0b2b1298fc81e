"""The contract of `Files`, written once: `check_...` functions run on every implementation.

Each takes a `Files` whose root exists and is empty, makes one claim, and closes what it opens.
`CHECKS` lists them all; a file system that promises less (see tests/quirks.toml) may leave out the
ones it names. Nothing here looks inside a handle or at a real directory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from sharedfs_backend.files import FailureKind, FileFailure, Files, Handle

Check = Callable[[Files], None]

ESCAPES = (
    "../a",
    "/etc/passwd",
    "a/../b",
    "a/./b",
    ".",
    "..",
    ".hidden",
    "a//b",
    "a/",
    "a\0b",
    "a b",
    "a\n",
    "\u00e9",
    "x" * 201,
    "",
)


def fails(kind: FailureKind, operation: str, act: Callable[[], object]) -> None:
    """`act` raises a FileFailure of that kind, naming that operation."""
    with pytest.raises(FileFailure) as caught:
        act()
    assert (caught.value.kind, caught.value.operation) == (kind, operation)


def put(files: Files, path: str, *parts: bytes, offset: int = 0) -> None:
    """A new file with the given content."""
    handle = files.create(path)
    files.write(handle, offset, parts)
    files.close(handle)


def get(files: Files, path: str, length: int, offset: int = 0) -> bytes:
    """What one read returns."""
    handle = files.open_read(path)
    try:
        return read(files, handle, offset, length)
    finally:
        files.close(handle)


def read(files: Files, handle: Handle, offset: int, length: int) -> bytes:
    into = bytearray(length)
    return bytes(into[: files.read(handle, offset, memoryview(into))])


def check_what_was_written_is_read_back(files: Files) -> None:
    put(files, "a", b"hello ", b"world")
    assert get(files, "a", 11) == b"hello world"


def check_parts_are_written_one_after_the_other_at_the_offset(files: Files) -> None:
    handle = files.create("a")
    files.write(handle, 4, [bytearray(b"cd"), memoryview(b"efg"), b"", b"h"])
    files.write(handle, 0, [b"....", b"CD"])
    files.close(handle)
    assert get(files, "a", 100) == b"....CDefgh"


def check_more_parts_than_one_call_takes_are_all_written(files: Files) -> None:
    parts = [bytes([number % 251]) * (1 + number % 3) for number in range(3000)]
    put(files, "a", *parts)
    assert get(files, "a", 10_000) == b"".join(parts)


def check_large_and_small_parts_mix(files: Files) -> None:
    parts = [b"h" * 100, b"A" * (3 << 20), b"x" * 7, b"B" * (2 << 20), b"t" * 5000]
    put(files, "a", *parts)
    assert files.size("a") == sum(map(len, parts))
    assert get(files, "a", 120) == b"h" * 100 + b"A" * 20
    assert get(files, "a", 100, offset=files.size("a") - 5010) == b"B" * 10 + b"t" * 90


def check_non_byte_buffers_are_written_whole(files: Files) -> None:
    words = memoryview(bytearray(range(64))).cast("I")
    handle = files.create("a")
    files.write(handle, 0, [words, words])
    files.close(handle)
    assert get(files, "a", 200) == bytes(range(64)) * 2


def check_a_write_of_nothing_writes_nothing(files: Files) -> None:
    handle = files.create("a")
    files.write(handle, 0, [])
    files.write(handle, 10, [b""])
    files.close(handle)
    assert files.size("a") == 0


def check_a_gap_reads_as_zeros(files: Files) -> None:
    put(files, "a", b"end", offset=5)
    assert get(files, "a", 100) == b"\0\0\0\0\0end"


def check_a_read_is_short_only_at_the_end(files: Files) -> None:
    put(files, "a", b"0123456789")
    handle = files.open_read("a")
    found = [read(files, handle, offset, 4) for offset in (0, 8, 10, 1000)]
    files.close(handle)
    assert found == [b"0123", b"89", b"", b""]


def check_a_read_touches_no_byte_behind_what_it_returns(files: Files) -> None:
    put(files, "a", b"abc")
    into = bytearray(b"........")
    handle = files.open_read("a")
    assert files.read(handle, 1, memoryview(into)[2:6]) == 2
    files.close(handle)
    assert bytes(into[:4]) == b"..bc" and bytes(into[6:]) == b".."


def check_a_taken_name_cannot_be_created(files: Files) -> None:
    put(files, "a", b"first")
    fails(FailureKind.EXISTS, "create", lambda: files.create("a"))
    assert get(files, "a", 10) == b"first"


def check_open_write_never_creates(files: Files) -> None:
    fails(FailureKind.MISSING, "open", lambda: files.open_write("a"))
    assert files.list("") == []


def check_open_write_changes_what_is_there(files: Files) -> None:
    put(files, "a", b"0123456789")
    handle = files.open_write("a")
    files.write(handle, 2, [b"XY"])
    files.close(handle)
    assert get(files, "a", 20) == b"01XY456789"


def check_missing_files_are_missing(files: Files) -> None:
    fails(FailureKind.MISSING, "open", lambda: files.open_read("a"))
    fails(FailureKind.MISSING, "unlink", lambda: files.unlink("a"))
    fails(FailureKind.MISSING, "stat", lambda: files.size("a"))
    fails(FailureKind.MISSING, "list", lambda: files.list("d"))


def check_a_missing_directory_is_missing(files: Files) -> None:
    fails(FailureKind.MISSING, "create", lambda: files.create("d/a"))
    fails(FailureKind.MISSING, "mkdir", lambda: files.make_dir("d/e"))


def check_an_unlinked_name_is_gone(files: Files) -> None:
    put(files, "a", b"x")
    files.unlink("a")
    assert files.list("") == []
    fails(FailureKind.MISSING, "open", lambda: files.open_read("a"))


def check_make_dir_is_content_with_an_existing_one(files: Files) -> None:
    files.make_dir("")
    files.make_dir("d")
    files.make_dir("d")
    files.make_dir("d/e")
    put(files, "d/e/f", b"x")
    assert (files.list(""), files.list("d"), files.list("d/e")) == (["d"], ["e"], ["f"])


def check_make_dir_over_a_file_fails(files: Files) -> None:
    put(files, "d", b"")
    fails(FailureKind.EXISTS, "mkdir", lambda: files.make_dir("d"))


def check_a_directory_lists_base_names(files: Files) -> None:
    files.make_dir("d")
    for name in ("a", "b.arrow", "0f"):
        put(files, f"d/{name}", b"")
    assert sorted(files.list("d")) == ["0f", "a", "b.arrow"]


def check_flush_leaves_the_content_alone(files: Files) -> None:
    handle = files.create("a")
    files.write(handle, 0, [b"x" * 10_000])
    files.flush(handle, 0, 8192)
    files.write(handle, 10_000, [b"y"])
    files.flush(handle, 0, 10_001)
    files.close(handle)
    assert get(files, "a", 20_000) == b"x" * 10_000 + b"y"


def check_a_closed_handle_is_of_no_use(files: Files) -> None:
    put(files, "b", b"other")
    handle = files.create("a")
    files.close(handle)
    other = files.open_write("b")  # a kernel would give it the same descriptor number
    for act in (
        lambda: files.close(handle),
        lambda: files.write(handle, 0, [b"x"]),
        lambda: files.read(handle, 0, memoryview(bytearray(1))),
        lambda: files.flush(handle, 0, 1),
    ):
        with pytest.raises(FileFailure):
            act()
    files.write(other, 0, [b"O"])
    files.close(other)
    assert get(files, "b", 10) == b"Other"


def check_a_handle_remembers_its_path(files: Files) -> None:
    files.make_dir("d")
    handle = files.create("d/a")
    assert handle.path == "d/a"
    files.close(handle)


def check_no_name_leaves_the_root(files: Files) -> None:
    for path in ESCAPES:
        fails(FailureKind.DENIED, "create", partial(files.create, path))
        fails(FailureKind.DENIED, "open", partial(files.open_read, path))
        fails(FailureKind.DENIED, "open", partial(files.open_write, path))
        fails(FailureKind.DENIED, "unlink", partial(files.unlink, path))
        fails(FailureKind.DENIED, "stat", partial(files.size, path))
        if path:
            fails(FailureKind.DENIED, "list", partial(files.list, path))
            fails(FailureKind.DENIED, "mkdir", partial(files.make_dir, path))


def check_free_space_is_a_number_or_unknown(files: Files) -> None:
    free = files.free_bytes()
    assert free is None or free > 0


CHECKS: tuple[Check, ...] = tuple(
    value for name, value in sorted(globals().items()) if name.startswith("check_")
)
