"""Leftovers: a scratch folder says whose it is, so that a later start can clear it away.

A node part that is killed, or whose node fails, leaves its folder and its processes' shared memory
behind. The folder holds its owner (pid and start time, so that a reused pid is nobody) and the
segments seen so far; whoever makes a folder on the same machine first removes those of the dead.
What cannot be read or removed is left: it may be another user's.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from bench.demo.processes import Session, read_stat, remove_segments

PREFIX = "sfs-"
OWNER = "owner.json"
SEGMENTS = "segments.json"


def make_scratch(parent: Path) -> Path:
    """A new folder of this process's, after those of the dead were removed.

    Its path is short, because engines put sockets into it and theirs are limited to 107 bytes.
    """
    clear_dead(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    owner = Session.led_by(os.getpid())
    (folder / OWNER).write_text(json.dumps([owner.sid, owner.start_ticks]))
    return folder


def note_segments(folder: Path, segments: Iterable[str]) -> None:
    """What to remove when this process should die without having done so."""
    whole = folder / f"{SEGMENTS}.new"  # who is killed while writing leaves the list before
    with suppress(OSError):
        whole.write_text(json.dumps(sorted(segments)))
        whole.replace(folder / SEGMENTS)


def clear_dead(parent: Path) -> list[Path]:
    """Removes folders whose owner is gone, and their segments; returns them."""
    removed = []
    for folder in sorted(parent.glob(f"{PREFIX}*")):
        try:
            pid, ticks = json.loads((folder / OWNER).read_text())
        except (OSError, ValueError):
            continue
        stat = read_stat(pid)
        if stat is not None and stat.start_ticks == ticks:
            continue
        with suppress(OSError, ValueError):
            remove_segments(json.loads((folder / SEGMENTS).read_text()))
        shutil.rmtree(folder, ignore_errors=True)
        removed.append(folder)
    return removed
