"""Scratch folders of cases, which do not outlive a killed process for longer than to the next run.

A folder holds a file that its process keeps locked while it lives, and that names the boot and host
it lives on. Before a new folder is made, those beside it that nobody holds any more are removed: a
process that was killed cannot clean up, and memory is where scratch usually lies. Folders of other
machines, which a shared directory may show, are never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "bench-"
LOCK = ".held"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextlib.contextmanager
def scratch(name: str, directory: Path | None) -> Iterator[Path]:
    """A new folder below `directory` (None: the system's), removed at the end."""
    where = Path(directory or tempfile.gettempdir())
    remove_abandoned(where)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-", dir=where))
    try:
        with (folder / LOCK).open("w", encoding="utf-8") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            held.write(_here())
            held.flush()
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(where: Path) -> None:
    """Folders of processes of this machine that are gone. What cannot be removed is left."""
    for path in where.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):  # another's, or just going
            with path.open("r+", encoding="utf-8") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_ours = held.read() == _here()
            if is_ours:
                shutil.rmtree(path.parent, ignore_errors=True)


def problem(directory: Path | None) -> str:
    """Why no scratch can be made there; "" if it can."""
    where = Path(directory or tempfile.gettempdir())
    try:
        probe = tempfile.mkdtemp(prefix=PREFIX, dir=where)
        os.rmdir(probe)
    except OSError as error:
        return f"{where}: no scratch directory can be made there: {error.strerror}"
    return ""


def _here() -> str:
    """This boot of this machine."""
    try:
        boot = _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return f"{platform.node()} {boot}"
