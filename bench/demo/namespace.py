"""Which directory the demo uses as its namespace, and what lies in it afterwards.

The default lies below `.demo/` and is made anew for each run. A directory given by the user is
never emptied and nothing in it is deleted: an existing namespace is used as it is, an empty or
missing directory becomes one, and in any other a fresh subdirectory does.

Must not know: engines, and the store's formats: it asks the `sharedfs` command.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.demo.replica_spec import REPOSITORY

DESCRIPTOR = "NAMESPACE.json"


class NamespaceFailed(Exception):
    """The `sharedfs` command failed; the message holds its output."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The root to use, whether earlier runs may have stored in it, and a sentence for people."""

    root: Path
    may_hold_prompts: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Contents:
    """What `sharedfs ls` says lies in a namespace."""

    packs: int
    chunks: int
    live_bytes: int
    journal_bytes: int
    snapshot_bytes: int


def choose(given: str | None, default: Path) -> Choice:
    """Returns the namespace's root, making the directory; deletes only the default, our own."""
    if not given:
        shutil.rmtree(default, ignore_errors=True)
        default.mkdir(parents=True)
        return Choice(default, False, "made for this run")
    root = Path(given).expanduser().resolve()
    if (root / DESCRIPTOR).exists():
        return Choice(root, True, "an existing namespace, used as it is")
    root.mkdir(parents=True, exist_ok=True)
    if not any(root.iterdir()):
        return Choice(root, False, "an empty directory")
    fresh = root / f"sharedfs-demo-{secrets.token_hex(4)}"
    fresh.mkdir()
    return Choice(fresh, False, f"fresh, because {root} holds other things")


def initialise(root: Path) -> None:
    """Makes the directory a namespace, as an operator would: `sharedfs init`."""
    _sharedfs("init", root)


def contents(root: Path) -> Contents:
    """Returns what lies in the namespace, by `sharedfs ls --json`."""
    listing = _sharedfs("ls", root)
    return Contents(
        packs=listing["pack_count"],
        chunks=listing["chunk_count"],
        live_bytes=listing["live_bytes"],
        journal_bytes=listing["journal_bytes"],
        snapshot_bytes=listing["snapshot_bytes"],
    )


def _sharedfs(command: str, root: Path) -> dict[str, Any]:
    """Runs the tool in a process of its own, so that the demo sees what an operator sees."""
    program = "from sharedfs_backend.cli import main; main()"
    words = [sys.executable, "-c", program, command, "--json", str(root)]
    result = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise NamespaceFailed(f"sharedfs {command} {root} failed:\n{result.stdout}{result.stderr}")
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed
