"""Striping: how Lustre lays out the files of a directory, set with `lfs setstripe` at creation.

A directory's default layout is copied into each file when the file is created, so it is set once,
before there are packs; files that exist keep theirs. Without it every pack lies on one server, and
a load is as quick as that one. Nothing depends on it: where `lfs` is missing, too old or refuses,
the answer says so in a sentence with the command to run by hand, and packs work as they are.

`lfs` is a process of its own and may hang as its mount may: it gets a deadline. None is started
under GekkoFS' preload client, where a child hangs or aborts. Knows nothing of packs or namespaces.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence

from sharedfs_backend.files.mounts import preload_client

PROGRESSIVE = tuple(["-E", "32M", "-c", "1", "-S", "4M", "-E", "-1", "-c", "4", "-S", "4M"])
"""Small packs on one server: one object to make. Of larger ones the rest goes over four, where the
pieces of one load (4 MiB, a stripe) are read from all of them at the same time."""
PLAIN = tuple(["-c", "4", "-S", "4M"])
"""For Lustre before 2.10, which has no progressive layouts."""
NONE = ("-d",)
"""Takes the default layout away again: the file system's own counts."""

LFS_SECONDS = 10.0

Run = Callable[[Sequence[str]], tuple[int, str]]
"""Runs words, returns (exit status, what was said)."""


def stripe(
    directories: Sequence[str],
    layouts: Sequence[Sequence[str]] = (PROGRESSIVE, PLAIN),
    *,
    run: Run | None = None,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Give `directories` the first of `layouts` that is accepted. Empty, or what went wrong."""
    run = run or run_lfs
    library = preload_client(environ)
    if library is not None:
        return _by_hand(directories, layouts, f"no process is started under {library}")
    said = ""
    for layout in layouts:
        status, said = run([*_setstripe(layout), *directories])
        if status == 0:
            return ""
    return _by_hand(directories, layouts, said)


def _by_hand(directories: Sequence[str], layouts: Sequence[Sequence[str]], reason: str) -> str:
    command = shlex.join([*_setstripe(layouts[0]), directories[0]])
    rest = f" {shlex.quote(directories[0])}/*" if len(directories) > 1 else ""
    return f"striping is not set ({reason}); to set it by hand: {command}{rest}"


def _setstripe(layout: Sequence[str]) -> list[str]:
    return ["lfs", "setstripe", *layout]


def run_lfs(words: Sequence[str]) -> tuple[int, str]:
    """Runs a command; a missing or hanging one is a failure like any other."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LFS_SECONDS,
            check=False,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        return 127, f"there is no command {words[0]} here"
    except subprocess.TimeoutExpired:
        return 124, f"{words[0]} did not answer within {LFS_SECONDS:g} s"
    except OSError as error:
        return 126, f"{words[0]}: {error.strerror}"
    lines = done.stdout.strip().splitlines()
    return done.returncode, lines[0] if lines else f"{words[0]} ended with {done.returncode}"
