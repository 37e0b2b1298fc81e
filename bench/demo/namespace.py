"""Which directory the demo uses as its namespace, and what lies in it afterwards.

The default lies below `.demo/` and is made anew for each run. A directory given by the user is
never emptied and nothing in it is deleted: an existing namespace is used as it is, an empty or
missing directory becomes one, and in any other a fresh subdirectory does.

Must not know: engines. Reads names and sizes only; the formats are the store's.
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

DESCRIPTOR = "NAMESPACE.json"


@dataclass(frozen=True, slots=True)
class Choice:
    """The root to use, whether earlier runs may have stored in it, and a sentence for people."""

    root: Path
    may_hold_prompts: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Contents:
    """What a walk of the directory found."""

    packs: int
    pack_bytes: int
    journals: int
    other_files: int
    other_bytes: int


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


def walk(root: Path) -> Contents:
    """Returns the number and bytes of the files below the root, by what they are."""
    packs = pack_bytes = journals = other = other_bytes = 0
    for path in root.rglob("*"):
        try:
            if not path.is_file():
                continue
            size = path.stat().st_size
        except OSError:
            continue  # Removed by a sweep while we looked.
        top = path.relative_to(root).parts[0]
        if top == "packs":
            packs += 1
            pack_bytes += size
        else:
            journals += top == "journals"
            other += 1
            other_bytes += size
    return Contents(packs, pack_bytes, journals, other, other_bytes)
