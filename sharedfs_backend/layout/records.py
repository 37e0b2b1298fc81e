"""What a journal's records say, and their msgpack form.

A record is the array [kind, map]. Chunk tables and lists of names are byte columns inside the map,
so a commit of many packs costs little more than its bytes. A kind or a required field that is not
known ends a reader's coverage of that journal; an unknown key of a map is passed over.

Must not know blocks or files. Keeps I1: a name that a record drops is dead for ever, whatever is
read later; nothing here changes a pack that was committed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedfs_backend.layout.canonical import ARRAY_ITEMS_MAX, take, take_bytes, take_uint
from sharedfs_backend.layout.errors import BadValue, NewerVersion
from sharedfs_backend.layout.head import SIZE_MAX
from sharedfs_backend.layout.names import NAME_BYTES, PackName, is_writer_id, parse_names
from sharedfs_backend.layout.pack import RANK_MAX, VERSION_MAX
from sharedfs_backend.layout.realm import LayoutDescriptor
from sharedfs_backend.layout.seal import DIGEST_BYTES
from sharedfs_backend.layout.table import (
    CHUNKS_PER_PACK_MAX,
    EntryTable,
    require_places,
    require_shape,
)

PACKS_PER_COMMIT_MAX = ARRAY_ITEMS_MAX
NAMES_PER_RECORD_MAX = 65536
"""Of drop, gone and touch: 2.5 MiB, so that a record always fits an entry."""

RANDOM_BYTES = 16
AGE_MILLISECONDS_MAX = (1 << 53) - 1
"""Exact as a float of seconds times 1000, and longer than anything lives."""


@dataclass(frozen=True, slots=True)
class Begin:
    """First record of a journal: the format of its writer, and bytes that tell two writers of one
    id apart."""

    format: int
    first_block_random: bytes


@dataclass(frozen=True, slots=True)
class PackCommit:
    """One complete pack. Everything a load needs is here; loads read no header."""

    name: PackName
    realm: bytes
    layout: LayoutDescriptor
    rank: int
    version: int
    total_bytes: int
    entries: EntryTable


@dataclass(frozen=True, slots=True)
class Commit:
    packs: tuple[PackCommit, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """These packs will be unlinked after the drop delay. Also when read before their commit."""

    names: tuple[PackName, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """These packs have been unlinked."""

    names: tuple[PackName, ...]


@dataclass(frozen=True, slots=True)
class Touch:
    """Seconds, at the time of writing, since a lookup last asked for these packs. Stored in whole
    milliseconds."""

    ages: tuple[tuple[PackName, float], ...]


@dataclass(frozen=True, slots=True)
class Beat:
    """The writer lives. Only a change of the counter means anything."""

    counter: int


@dataclass(frozen=True, slots=True)
class End:
    """The writer will never append again; `successor` continues for it, if there is one."""

    successor: str | None


Record = Begin | Commit | Drop | Gone | Touch | Beat | End

_BEGIN, _COMMIT, _DROP, _GONE, _TOUCH, _BEAT, _END = range(1, 8)


def to_wire(record: Record) -> list[Any]:
    """[kind, map with sorted keys]. ValueError for what `from_wire` would not accept."""
    match record:
        case Begin():
            return [_BEGIN, {"format": record.format, "random": record.first_block_random}]
        case Commit():
            return [_COMMIT, {"packs": [_pack_to_wire(pack) for pack in record.packs]}]
        case Drop():
            return [_DROP, {"names": join_names(record.names)}]
        case Gone():
            return [_GONE, {"names": join_names(record.names)}]
        case Touch():
            ages = np.array([milliseconds(age) for _name, age in record.ages], "<u8").tobytes()
            return [_TOUCH, {"ages": ages, "names": join_names(name for name, _age in record.ages)}]
        case Beat():
            return [_BEAT, {"counter": record.counter}]
        case End():
            return [_END, {"successor": record.successor}]


def from_wire(item: Any) -> Record:
    """The record; NewerVersion for an unknown kind, BadValue for a known one gone wrong."""
    if type(item) is not list or len(item) != 2 or type(item[0]) is not int:
        raise BadValue("a record is an array of kind and map")
    kind, fields = item
    reader = _READERS.get(kind)
    if reader is None:
        raise NewerVersion(f"a record of kind {kind}")
    return reader(fields)


def join_names(names: Iterable[PackName]) -> bytes:
    return b"".join(name.to_bytes() for name in names)


def milliseconds(age_seconds: float) -> int:
    """An age as stored: whole milliseconds. A negative one (never right) is no age."""
    if not math.isfinite(age_seconds):
        raise ValueError(f"an age of {age_seconds} seconds")
    return min(max(0, round(age_seconds * 1000)), AGE_MILLISECONDS_MAX)


def _begin(fields: Any) -> Record:
    return Begin(take_uint(fields, "format", 65535), take_bytes(fields, "random", RANDOM_BYTES))


def _commit(fields: Any) -> Record:
    packs = tuple([_pack_from_wire(pack) for pack in take(fields, "packs", list)])
    require_places([pack.entries for pack in packs], [pack.total_bytes for pack in packs])
    return Commit(packs)


def _touch(fields: Any) -> Record:
    names, ages = _names(fields), take(fields, "ages", bytes)
    if len(ages) != 8 * len(names):
        raise BadValue(f"{len(ages)} bytes of ages for {len(names)} names")
    values = np.frombuffer(ages, "<u8")
    if len(values) and int(values.max()) > AGE_MILLISECONDS_MAX:
        raise BadValue("an age exceeds 2^53 milliseconds")
    return Touch(tuple(zip(names, (values / 1000).tolist(), strict=True)))


def _end(fields: Any) -> Record:
    if fields == {"successor": None}:
        return End(None)
    successor = take(fields, "successor", str)
    if not is_writer_id(successor):
        raise BadValue(f"not a writer id: {successor!r}")
    return End(successor)


def _names(fields: Any) -> tuple[PackName, ...]:
    data = take(fields, "names", bytes)
    if len(data) > NAMES_PER_RECORD_MAX * NAME_BYTES:
        raise BadValue(f"{len(data)} bytes of names")
    return tuple(parse_names(data))


_READERS: dict[int, Callable[[Any], Record]] = {
    _BEGIN: _begin,
    _COMMIT: _commit,
    _DROP: lambda fields: Drop(_names(fields)),
    _GONE: lambda fields: Gone(_names(fields)),
    _TOUCH: _touch,
    _BEAT: lambda fields: Beat(take_uint(fields, "counter", SIZE_MAX)),
    _END: _end,
}


def _pack_to_wire(pack: PackCommit) -> dict[str, Any]:
    return {
        "checksums": bytes(pack.entries.checksums),
        "keys": bytes(pack.entries.keys),
        "layout": pack.layout.encode(),
        "lengths": bytes(pack.entries.lengths),
        "name": pack.name.to_bytes(),
        "offsets": bytes(pack.entries.offsets),
        "rank": pack.rank,
        "realm": pack.realm,
        "total": pack.total_bytes,
        "version": pack.version,
    }


def _pack_from_wire(fields: Any) -> PackCommit:
    keys, offsets = take(fields, "keys", bytes), take(fields, "offsets", bytes)
    lengths, checksums = take(fields, "lengths", bytes), take(fields, "checksums", bytes)
    table = EntryTable(keys, offsets, lengths, checksums)
    require_shape(table, CHUNKS_PER_PACK_MAX)
    return PackCommit(
        PackName.from_bytes(take(fields, "name", bytes)),
        take_bytes(fields, "realm", DIGEST_BYTES),
        LayoutDescriptor.decode(take(fields, "layout", bytes)),
        take_uint(fields, "rank", RANK_MAX),
        take_uint(fields, "version", VERSION_MAX),
        take_uint(fields, "total", SIZE_MAX),
        table,
    )
