"""Namespaces that look as if a fleet had filled them: a catalog of any size, without the bytes.

A snapshot, or the journals it would have been made from, name packs that do not exist; to a process
that starts, reads them and looks up, that makes no difference. Contents follow from the chunk's
number (bench/catalog/data.py), so another process can ask for chunk 123,456.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.catalog.data import LAYOUT, REALM, SEAL, WRITER, write_snapshot
from sharedfs_backend.layout import (
    FORMAT_MAJOR,
    Begin,
    Commit,
    PackCommit,
    PackName,
    PackRows,
    Record,
    SnapshotName,
    decode_snapshot,
    encode_entry,
    journal_path,
    split_records,
)
from sharedfs_backend.publisher import JOURNAL_BYTES_MAX
from sharedfs_backend.store import Store

PACK_CHUNKS = 16


def create(root: Path) -> None:
    """An empty namespace."""
    root.mkdir(parents=True, exist_ok=True)
    Store(str(root)).close()


def add_snapshot(root: Path, chunks: int) -> None:
    """A snapshot of `chunks` chunks in packs of 16."""
    path = root / SnapshotName(1, WRITER).path
    path.parent.mkdir(exist_ok=True)
    write_snapshot(path, chunks, PACK_CHUNKS)


def add_journals(root: Path, snapshot: Path) -> int:
    """The same packs as journals of their usual greatest size; how many journals that took."""
    rows = decode_snapshot(snapshot.read_bytes(), SEAL).packs
    number, writer, offset = 0, "", 0
    data = bytearray()
    for records in split_records(_records(rows), 1 << 20):
        if not data or len(data) >= JOURNAL_BYTES_MAX - (1 << 20):
            _flush(root, writer, data)
            number, offset = number + 1, 0
            writer = f"{0xBE00_0000_0000_0000 + number:016x}"
            begin = Begin(FORMAT_MAJOR, number.to_bytes(16, "big"))
            data = bytearray(encode_entry(writer, 0, (begin,), SEAL))
            offset = len(data)
        entry = encode_entry(writer, offset, records, SEAL)
        data += entry
        offset += len(entry)
    _flush(root, writer, data)
    return number


def _flush(root: Path, writer: str, data: bytearray) -> None:
    if data:
        path = root / journal_path(writer)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(data))


def _records(rows: PackRows) -> Iterator[Record]:
    sizes = rows.counts.tolist()
    for at, start in enumerate(rows.starts()):
        name = PackName(bytes(rows.digests[16 * at : 16 * at + 16]), WRITER, at)
        yield Commit(
            (
                PackCommit(
                    name=name,
                    realm=REALM,
                    layout=LAYOUT,
                    rank=0,
                    version=1,
                    total_bytes=int(rows.total_bytes[at]),
                    entries=rows.entries.rows(int(start), sizes[at]),
                ),
            )
        )
