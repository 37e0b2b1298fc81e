"""The typed reader of tests/quirks.toml: what each file system promises and does.

Every stand-in takes its behaviour from here, so that the simulated file system, the FUSE one and
the preload one cannot disagree. Unknown keys, missing defaults, wrong types and values outside the
closed sets raise ValueError. Keys are explained in the data file, where they are.
"""

from __future__ import annotations

import errno
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parent.parent / "quirks.toml"

CHOICES: dict[str, frozenset[str]] = {
    "rename": frozenset({"ok", "mixes"}),
    "timestamps": frozenset({"ok", "zero", "stale"}),
    "locks": frozenset({"ok", "lies", "off"}),
    "statvfs": frozenset({"ok", "bsize_only"}),
    "unlink_while_writing": frozenset({"keeps", "poisons"}),
    "unlink_while_reading": frozenset({"keeps", "short"}),
    "settled_by": frozenset({"write", "close"}),
    "short_read": frozenset({"prefix", "holes"}),
    "dead_server": frozenset({"error", "hangs", "hangs_forever"}),
    "fork": frozenset({"ok", "hangs"}),
    "spawn": frozenset({"ok", "aborts_with_vfork"}),
}
"""Values beside names of errnos; a key of type str that is not here takes "ok" or an errno."""

OUTCOMES = frozenset({"kept", "lost", "partial", "garbage"})


@dataclass(frozen=True, slots=True)
class Quirks:
    """One file system, whole (defaults filled in)."""

    name: str
    rename: str
    link: str
    symlink: str
    vectored_io: str
    mmap: str
    io_uring: str
    sendfile: str
    fadvise: str
    fallocate: str
    chmod: str
    utime: str
    xattr: str
    o_append: str
    o_direct: str
    timestamps: str
    locks: str
    locks_break_others: bool
    statvfs: str
    excl_race_probability: float
    recreate_loses_data: bool
    unlink_while_writing: str
    unlink_while_writing_aborts_server: bool
    unlink_while_reading: str
    size_before_data: bool
    attribute_cache_seconds: float
    close_to_open: bool
    settled_by: str
    short_read: str
    unsettled_outcomes: tuple[str, ...]
    one_writer_per_file: bool
    listing_stale_seconds: float
    listing_may_miss: bool
    negative_lookup_seconds: float
    stale_handles: bool
    dead_server: str
    fork: str
    spawn: str
    open_round_trips: int
    stat_round_trips: int
    read_metadata_round_trips: int
    list_asks_all_servers: bool
    metadata_ops_per_second: int
    handles_in_client_memory: bool
    request_bytes_max: int
    object_bytes: int


def names() -> list[str]:
    """The file systems described."""
    return list(_tables())


def load(name: str) -> Quirks:
    """What the file system `name` does."""
    tables = _tables()
    return parse(name, tables["posix"] | tables[name])


def parse(name: str, table: dict[str, Any]) -> Quirks:
    """`table`, complete, as a checked value."""
    known = {field.name: field.type for field in fields(Quirks) if field.name != "name"}
    if unknown := table.keys() ^ known.keys():
        raise ValueError(f"{name}: unknown or missing: {sorted(unknown)}")
    for key, value in table.items():
        _check(name, key, value, str(known[key]))
    values = table | {"unsettled_outcomes": tuple(table["unsettled_outcomes"])}
    return Quirks(name=name, **values)


def error_number(value: str) -> int:
    """The errno that a quirk's value names; 0 for a value that is no failure."""
    return int(getattr(errno, value, 0)) if value.startswith("E") else 0


def _tables() -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = tomllib.loads(PATH.read_text("utf-8"))
    return tables


def _check(name: str, key: str, value: object, kind: str) -> None:
    if key == "unsettled_outcomes":
        good = isinstance(value, list) and set(value) <= OUTCOMES
    elif kind == "str":
        allowed = CHOICES.get(key, frozenset({"ok"}))
        good = isinstance(value, str) and (value in allowed or error_number(value) != 0)
    else:
        good = type(value).__name__ == kind
    if not good:
        raise ValueError(f"{name}: {key} = {value!r}")
