"""The GekkoFS stand-in as a test uses it: built, given a directory, told what to do, counted.

    with Standin(folder) as standin:
        subprocess.run(..., env=standin.environ())   # below standin.mount it is GekkoFS
        standin.control["hang"] = 1                  # at once, for every client

What it does comes from tests/quirks.toml (`settings_of`); what the file states as a fact without a
measure (how often a read is short, how long a size is ahead of its bytes) is off or small unless a
test asks for it. The page of settings and counters is laid out as src/standin.h says.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType

from tests.files import quirks

FOLDER = Path(__file__).resolve().parent
LIBRARY = FOLDER / "build" / "libgkfs_standin.so"
SIZE_BEFORE_DATA_US = 200


def missing() -> str | None:
    """What keeps it from being built here, and the remedy."""
    for tool, package in (("gcc", "gcc libc6-dev"), ("make", "make")):
        if shutil.which(tool) is None:
            return f"{tool} is missing: apt install {package}"
    return None


@cache
def built() -> Path:
    """The library, built if it is not current."""
    subprocess.run(["make", "-s", "-C", FOLDER], check=True)
    return LIBRARY


@cache
def _names() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(settings, counters), in the order in which they lie in the page."""
    text = (FOLDER / "src" / "standin.h").read_text()
    lists = re.findall(r"#define (SETTINGS|COUNTERS)\(X\)(.*?)\n\n", text, re.DOTALL)
    found = {name: tuple(re.findall(r"X\((\w+)\)", body)) for name, body in lists}
    return found["SETTINGS"], found["COUNTERS"]


def settings_of(name: str = "gekkofs") -> dict[str, int]:
    """What the file system `name` of the quirk file does, as the library is told."""
    found = quirks.load(name)
    number = quirks.error_number
    return {
        "rename_errno": number(found.rename),
        "link_errno": number(found.link),
        "symlink_errno": number(found.symlink),
        "vectored_errno": number(found.vectored_io),
        "mmap_errno": number(found.mmap),
        "sendfile_errno": number(found.sendfile),
        "fadvise_errno": number(found.fadvise),
        "fallocate_errno": number(found.fallocate),
        "chmod_errno": number(found.chmod),
        "utime_errno": number(found.utime),
        "xattr_errno": number(found.xattr),
        "append_errno": number(found.o_append),
        "direct_errno": number(found.o_direct),
        "zero_times": found.timestamps == "zero",
        "locks_lie": found.locks == "lies",
        "locks_break_others": found.locks_break_others,
        "bsize_only": found.statvfs == "bsize_only",
        "object_bytes": found.object_bytes,
        "excl_race_ppm": round(found.excl_race_probability * 1e6),
        "recreate_loses_data": found.recreate_loses_data,
        "unlink_poisons": found.unlink_while_writing == "poisons",
        "poison_aborts": found.unlink_while_writing_aborts_server,
        "size_before_data_us": SIZE_BEFORE_DATA_US if found.size_before_data else 0,
        "listing_stale_us": round(found.listing_stale_seconds * 1e6),
        "fork_hangs": found.fork == "hangs",
        "vfork_aborts": found.spawn == "aborts_with_vfork",
        "seed": 1,
    }


class Control:
    """The shared page: settings and counters by name."""

    def __init__(self, path: Path, settings: Mapping[str, int]) -> None:
        names, counters = _names()
        self._at = {name: 8 * place for place, name in enumerate((*names, *counters))}
        self._settings = frozenset(names)
        path.write_bytes(bytes(max(mmap.PAGESIZE, 8 * len(self._at))))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 0)
        for name, value in settings.items():
            self[name] = value

    def __getitem__(self, name: str) -> int:
        return int(struct.unpack_from("<q", self._page, self._at[name])[0])

    def __setitem__(self, name: str, value: int) -> None:
        if name not in self._settings:
            raise KeyError(f"{name} is no setting")
        struct.pack_into("<q", self._page, self._at[name], int(value))

    def close(self) -> None:
        self._page.close()


class Standin:
    """A mount of the stand-in, at `folder`/mnt. Many processes may use it at once."""

    def __init__(self, folder: Path, **changes: int) -> None:
        self.library = built()
        self.mount = folder / "mnt"
        self.backing = folder / "data"
        self._page = folder / "page"
        for path in (self.mount, self.backing, folder / "page.marks"):
            path.mkdir(parents=True)
        self.control = Control(self._page, settings_of() | changes)

    def environ(self) -> dict[str, str]:
        """Of a process that is to see it."""
        return dict(os.environ) | {
            "LD_PRELOAD": str(self.library),
            "GKFS_STANDIN_MOUNT": str(self.mount),
            "GKFS_STANDIN_BACKING": str(self.backing),
            "GKFS_STANDIN_CONTROL": str(self._page),
        }

    def __enter__(self) -> Standin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.control["hang"] = 0
        self.control.close()
