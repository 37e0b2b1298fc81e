"""Snapshots let journals go, and nothing published is lost or revived on the way (I4, I5)."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from sharedfs_backend.files import Files
from sharedfs_backend.layout import Snapshot
from sharedfs_backend.snapshots import read_whole
from tests.store.inline import Client, chunks_of
from tests.store.test_publisher import journals


def snapshots(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "snapshots").iterdir())


def snapshot(client: Client) -> None:
    writer = client.store.parts.publisher.writer
    assert writer is not None
    assert client.store.parts.snapshotter.write(writer) is not None


def snapshots_held() -> list[Snapshot]:
    """All there are in this process. (isinstance would ask foreign objects; some warn then.)"""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is Snapshot]


def test_what_was_written_is_not_held_while_it_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copy is as large as the catalog."""

    def reading(files: Files, path: str, bytes_max: int) -> bytearray:
        held.append(len(snapshots_held()))
        return read_whole(files, path, bytes_max)

    client, held = Client(tmp_path), list[int]()
    client.put(chunks_of(1))
    monkeypatch.setattr("sharedfs_backend.snapshotter.read_whole", reading)
    before = len(snapshots_held())  # other tests keep some
    snapshot(client)
    assert len(snapshots(tmp_path)) == 1
    assert held == [before]


def test_an_ended_journal_is_retired_and_its_chunks_are_still_found(tmp_path: Path) -> None:
    first, second = Client(tmp_path, 1), Client(tmp_path, 2)
    chunks = chunks_of(8)
    first.put(chunks)
    first.store.close()
    second.put(chunks_of(1, seed=8))
    second.refresh()
    snapshot(second)
    second.pass_time(3.0)
    assert journals(tmp_path) == {second.store.parts.publisher.writer}
    reader = Client(tmp_path, 3)
    reader.refresh()
    assert reader.load(chunks) == [True] * 8


def test_a_silent_journal_is_retired_only_after_a_lease_and_an_orphan_pass(tmp_path: Path) -> None:
    silent, other = Client(tmp_path, 1), Client(tmp_path, 2)
    silent.put(chunks_of(1))
    other.put(chunks_of(1, seed=8))
    other.pass_time(90.0)
    snapshot(other)
    other.pass_time(2.0)
    assert len(journals(tmp_path)) == 2
    other.pass_time(40.0)
    assert len(journals(tmp_path)) == 1


def test_a_frozen_writer_whose_journal_was_retired_loses_nothing(tmp_path: Path) -> None:
    frozen, other = Client(tmp_path, 1), Client(tmp_path, 2)
    before, after = chunks_of(2), chunks_of(2, seed=9)
    frozen.put(before)
    other.put(chunks_of(1, seed=8))
    other.pass_time(101.0)
    snapshot(other)
    other.pass_time(40.0)
    assert len(journals(tmp_path)) == 1
    frozen.runtime.time += 141.0
    frozen.put(after)
    reader = Client(tmp_path, 3)
    reader.refresh()
    assert reader.load(before) == reader.load(after) == [True] * 2


def test_a_superseded_snapshot_stays_for_a_lease(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(chunks_of(1))
    snapshot(client)
    client.put(chunks_of(1, seed=8))
    snapshot(client)
    client.pass_time(90.0)
    assert len(snapshots(tmp_path)) == 2
    client.pass_time(20.0)
    assert [name.split(".")[0] for name in snapshots(tmp_path)] == ["2"]


def test_a_torn_snapshot_counts_for_nothing(tmp_path: Path) -> None:
    client = Client(tmp_path)
    chunks = chunks_of(4)
    client.put(chunks)
    snapshot(client)
    path = tmp_path / "snapshots" / snapshots(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-1])
    reader = Client(tmp_path, 2)
    reader.refresh()
    assert reader.load(chunks) == [True] * 4  # the journal is still there
    assert reader.store.stats()["snapshots_invalid"] == 1


def test_adopting_a_snapshot_does_not_revive_what_was_dropped(tmp_path: Path) -> None:
    client, reader = Client(tmp_path, 1), Client(tmp_path, 2)
    chunks = chunks_of(4)
    client.put(chunks)
    snapshot(client)
    client.store.parts.sweeper.drop([client.store.parts.ledger.packs()[0].name])
    reader.store.parts.refresher._snapshots_wanted = False  # journals first, the snapshot later
    reader.refresh()
    assert reader.store.lookup(list(chunks)) == [False] * 4
    reader.store.parts.refresher.want_all()
    reader.refresh()
    assert reader.store.stats()["snapshots_adopted"] == 1
    assert reader.store.lookup(list(chunks)) == [False] * 4


def test_a_snapshot_covers_realms_its_writer_never_opened(tmp_path: Path) -> None:
    from sharedfs_backend.layout import RealmDescriptor
    from tests.store.inline import items_of

    descriptor = RealmDescriptor("model", True, "", "", "blake3")
    first, second = Client(tmp_path, 1), Client(tmp_path, 2)
    chunks = chunks_of(2)
    first.store.put(items_of(chunks), realm=first.store.realm(descriptor))
    first.store.close()
    second.put(chunks_of(1, seed=8))
    second.refresh()
    snapshot(second)
    second.pass_time(3.0)
    assert len(journals(tmp_path)) == 1
    reader = Client(tmp_path, 3)
    reader.refresh()
    realm = reader.store.realm(descriptor)
    assert reader.store.lookup(list(chunks), realm=realm) == [True] * 2


def test_recency_survives_in_a_snapshot(tmp_path: Path) -> None:
    client = Client(tmp_path)
    cold, hot = chunks_of(1), chunks_of(1, seed=8)
    client.put(cold)
    client.put(hot)
    client.pass_time(200.0)
    client.store.lookup(list(hot))
    snapshot(client)
    client.store.close()
    reader = Client(tmp_path, 2)
    reader.refresh()
    reader.pass_time(11.0)
    (victim,) = reader.store.parts.sweeper.victims(1, reader.runtime.time)
    reader.store.parts.sweeper.drop([victim])
    assert reader.store.lookup(list(hot)) == [True]
    assert reader.store.lookup(list(cold)) == [False]


def test_the_tombstone_of_a_gone_pack_is_forgotten_when_nothing_can_name_it(
    tmp_path: Path,
) -> None:
    first, second = Client(tmp_path, 1), Client(tmp_path, 2)
    first.put(chunks_of(1))
    second.put(chunks_of(1, seed=8))
    second.refresh()
    name = first.store.parts.ledger.packs()[0].name
    first.store.parts.sweeper.drop([name])
    first.pass_time(12.0)
    first.store.close()
    second.refresh()
    for _ in range(4):
        snapshot(second)
        second.pass_time(101.0)
    assert second.store.parts.ledger.pack(name) is None
