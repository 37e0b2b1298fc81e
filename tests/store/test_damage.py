"""Whatever happens to a file is a miss with the right reason, healed by the next store (I2, I5)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sharedfs_backend import tools
from tests.store.inline import Client, chunks_of, quick_settings, settings_for

CHUNKS = chunks_of(8)


def pack_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "packs").rglob("*") if path.is_file())


def flip(path: Path, at: int = 5000) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, 5000)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def unlink(path: Path) -> None:
    path.unlink()


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "reason", "hits"),
    [
        (flip, "checksum", 7),
        (truncate, "short", 0),
        (empty, "short", 0),
        (unlink, "missing", 0),
        (make_directory, "io", 0),
    ],
)
def test_a_damaged_pack_is_a_miss_with_its_reason(
    tmp_path: Path, damage: Callable[[Path], None], reason: str, hits: int
) -> None:
    Client(tmp_path).put(CHUNKS)
    reader = Client(tmp_path, 2)
    reader.refresh()
    damage(pack_files(tmp_path)[0])
    assert sum(reader.load(CHUNKS)) == hits
    assert reader.store.stats()[f"load_misses_{reason}"] == 8 - hits


def test_an_extended_pack_loads_and_is_no_valid_pack_to_verify(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(CHUNKS)
    with pack_files(tmp_path)[0].open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"\0" * 4096)
    assert client.load(CHUNKS) == [True] * 8
    client.store.close()
    assert tools.verify(settings_for(tmp_path)).counts["invalid"] == 1


@pytest.mark.parametrize("damage", [flip, unlink])
def test_what_was_damaged_is_healed_by_the_next_store_for_everyone(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    Client(tmp_path).put(CHUNKS)
    first, second = Client(tmp_path, 2), Client(tmp_path, 3)
    first.refresh()
    second.refresh()
    damage(pack_files(tmp_path)[0])
    first.load(CHUNKS)
    first.put(CHUNKS)
    second.refresh()
    assert first.load(CHUNKS) == second.load(CHUNKS) == [True] * 8


def test_a_lookup_does_not_promise_what_a_load_refused(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(CHUNKS)
    unlink(pack_files(tmp_path)[0])
    reader = Client(tmp_path, 2)
    reader.refresh()
    assert reader.store.lookup(list(CHUNKS)) == [True] * 8
    reader.load(CHUNKS)
    assert reader.store.lookup(list(CHUNKS)) == [False] * 8


def test_a_short_pack_is_suspended_and_tried_again(tmp_path: Path) -> None:
    Client(tmp_path).put(CHUNKS)
    pack = pack_files(tmp_path)[0]
    whole = pack.read_bytes()
    reader = Client(tmp_path, 2)
    reader.refresh()
    truncate(pack)
    reader.load(CHUNKS)
    assert reader.store.lookup(list(CHUNKS)) == [False] * 8
    pack.write_bytes(whole)
    reader.runtime.time += 2.0
    assert reader.load(CHUNKS) == [True] * 8


def test_a_torn_journal_hides_only_its_torn_end(tmp_path: Path) -> None:
    writer = Client(tmp_path)
    more = chunks_of(4, seed=8)
    writer.put(CHUNKS)
    writer.put(more)
    journal = next((tmp_path / "journals").iterdir())
    os.truncate(journal, journal.stat().st_size - 100)
    reader = Client(tmp_path, 2)
    reader.refresh()
    assert reader.store.lookup([*CHUNKS, *more]) == [True] * 8 + [False] * 4


def test_a_damaged_block_is_skipped_once_a_later_one_is_valid(tmp_path: Path) -> None:
    writer = Client(tmp_path)
    writer.put(CHUNKS)
    journal = next((tmp_path / "journals").iterdir())
    flip(journal, 4096 + 200)
    more = chunks_of(4, seed=8)
    writer.put(more)
    reader = Client(tmp_path, 2)
    reader.refresh()
    assert reader.store.lookup([*CHUNKS, *more]) == [False] * 8 + [True] * 4
    assert reader.store.stats()["journal_blocks_skipped"] == 1


def test_a_deleted_journal_costs_hits_until_reindex(tmp_path: Path) -> None:
    writer = Client(tmp_path)
    writer.put(CHUNKS)
    writer.store.close()
    next((tmp_path / "journals").iterdir()).unlink()
    reader = Client(tmp_path, 2)
    reader.refresh()
    assert reader.store.lookup(list(CHUNKS)) == [False] * 8
    assert tools.reindex(settings_for(tmp_path)).counts["adopted"] == 1
    reader.refresh()
    assert reader.load(CHUNKS) == [True] * 8


def test_a_deleted_snapshot_costs_hits_until_reindex(tmp_path: Path) -> None:
    writer = Client(tmp_path)
    writer.put(CHUNKS)
    writer.store.close()
    # A lease long enough for a slow mount: a snapshot that takes half of it is not written.
    tools.gc(replace(quick_settings(tmp_path), lease_seconds=20.0))
    (snapshot,) = (tmp_path / "snapshots").iterdir()
    snapshot.unlink()
    reader = Client(tmp_path, 2)
    reader.refresh()
    assert reader.store.lookup(list(CHUNKS)) == [False] * 8
    tools.reindex(settings_for(tmp_path))
    reader.refresh()
    assert reader.load(CHUNKS) == [True] * 8


def test_a_journal_deleted_under_a_live_writer_is_written_again(tmp_path: Path) -> None:
    writer = Client(tmp_path)
    writer.put(CHUNKS)
    next((tmp_path / "journals").iterdir()).unlink()
    more = chunks_of(4, seed=8)
    writer.put(more)
    reader = Client(tmp_path, 2)
    reader.refresh()
    assert reader.load(CHUNKS) == [True] * 8
    assert reader.load(more) == [True] * 4


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(CHUNKS)
    foreign = [
        tmp_path / "packs" / "00" / "README",
        tmp_path / "journals" / "core.1234",
        tmp_path / "snapshots" / "1.arrow",
    ]
    for path in foreign:
        path.write_bytes(b"not ours")
    (tmp_path / "journals" / ("0" * 16)).write_bytes(b"\xff" * 5000)
    reader = Client(tmp_path, 2)
    reader.refresh()
    assert reader.load(CHUNKS) == [True] * 8
    assert all(path.read_bytes() == b"not ours" for path in foreign)
