"""Orphans: packs that no record names are adopted or removed, slowly and only of the dead."""

from __future__ import annotations

from pathlib import Path

from sharedfs_backend.files import NAMED
from sharedfs_backend.refresh import AWAIT_SECONDS
from tests.store.inline import Client, chunks_of
from tests.store.test_damage import pack_files, truncate


def orphan(root: Path) -> dict[bytes, bytes]:
    """A complete pack whose writer died before it could publish it."""
    dead = Client(root, 9)
    chunks = chunks_of(4, seed=90)
    dead.put(chunks)
    for path in (root / "journals").iterdir():
        path.unlink()
    return chunks


def test_a_valid_orphan_is_adopted_after_a_lease(tmp_path: Path) -> None:
    chunks = orphan(tmp_path)
    client = Client(tmp_path)
    client.put(chunks_of(1))
    client.store.parts.orphans.begin()
    client.pass_time(5.0)
    assert client.store.stats()["orphan_bytes"] > 0
    assert client.store.lookup(list(chunks)) == [False] * 4
    client.pass_time(100.0)
    client.store.parts.orphans.begin()
    client.pass_time(5.0)
    assert client.load(chunks) == [True] * 4
    assert client.store.stats()["orphan_bytes"] == 0


def test_a_record_that_came_late_into_a_dead_writers_journal_is_read_first(tmp_path: Path) -> None:
    """A frozen writer goes on: before a pack is taken for an orphan, the dead are heard, too."""
    late = Client(tmp_path, 9)
    chunks = chunks_of(4, seed=90)
    late.put(chunks)
    (journal,) = (tmp_path / "journals").iterdir()
    whole = journal.read_bytes()
    journal.write_bytes(whole[:4096])  # the commit is still on its way
    client = Client(tmp_path)
    client.put(chunks_of(1))
    orphans = client.store.parts.orphans
    orphans.begin()
    client.pass_time(5.0)
    orphans.next_allowed = float("inf")
    client.pass_time(150.0)
    journal.write_bytes(whole)
    orphans.begin()
    client.pass_time(5.0)
    assert client.store.stats().get("orphans_adopted", 0) == 0
    assert client.load(chunks) == [True] * 4


def test_an_invalid_orphan_is_removed_after_a_lease(tmp_path: Path) -> None:
    orphan(tmp_path)
    (path,) = pack_files(tmp_path)
    truncate(path)
    client = Client(tmp_path)
    client.put(chunks_of(1))
    for _ in range(2):
        client.store.parts.orphans.begin()
        client.pass_time(101.0)
    assert not path.exists()
    assert client.store.stats()["orphans_removed"] == 1


def test_a_living_writers_unpublished_pack_is_left_alone(tmp_path: Path) -> None:
    writer, other = Client(tmp_path, 1), Client(tmp_path, 2)
    writer.put(chunks_of(1))
    other.put(chunks_of(1, seed=8))
    name = f"packs/ab/{'ab' * 16}.{writer.store.parts.publisher.writer}.7"
    (tmp_path / name).write_bytes(b"half a pack")
    for _ in range(6):
        other.store.parts.orphans.begin()
        other.pass_time(40.0)
        writer.pass_time(40.0)
    assert (tmp_path / name).exists()


def test_an_unreadable_journal_aborts_the_pass(tmp_path: Path) -> None:
    orphan(tmp_path)
    client = Client(tmp_path)
    client.put(chunks_of(1))
    (tmp_path / "journals" / ("1" * 16)).mkdir()  # reading it fails
    for _ in range(3):
        client.store.parts.orphans.begin()
        client.pass_time(101.0)
    assert client.store.parts.orphans.passes_done == 0
    assert pack_files(tmp_path)


def test_on_gekkofs_orphans_are_only_counted(tmp_path: Path) -> None:
    orphan(tmp_path)
    truncate(pack_files(tmp_path)[0])
    client = Client(tmp_path, profile=NAMED["gekkofs"], profile_name="gekkofs")
    client.put(chunks_of(1))
    for _ in range(3):
        client.store.parts.orphans.begin()
        client.pass_time(101.0)
    assert client.store.stats()["orphan_bytes"] > 0
    assert "orphans_removed" not in client.store.stats()


def test_a_journal_lost_for_good_holds_up_orphan_passes_for_a_while_only(tmp_path: Path) -> None:
    gone, client = Client(tmp_path, 1), Client(tmp_path, 2)
    gone.put(chunks_of(1))
    client.put(chunks_of(1, seed=8))
    client.refresh()
    (tmp_path / "journals" / str(gone.store.parts.publisher.writer)).unlink()
    client.refresh()
    assert client.store.parts.refresher.is_awaiting
    client.pass_time(AWAIT_SECONDS + 10.0)
    assert not client.store.parts.refresher.is_awaiting


def test_bytes_of_a_damaged_journal_and_of_a_pack_only_its_drop_names_are_counted(
    tmp_path: Path,
) -> None:
    """A crash may keep a drop record and lose the commit before it (I5): the cap still holds."""
    crashed = Client(tmp_path, 1)
    crashed.put(chunks_of(2))
    (name,) = (pack.name for pack in crashed.store.parts.ledger.packs())
    (path,) = (tmp_path / "journals").iterdir()
    crashed.store.parts.sweeper.drop([name])
    data = bytearray(path.read_bytes())
    data[4096:-4096] = bytes(len(data) - 8192)
    path.write_bytes(data + b"torn" * 1024)
    client = Client(tmp_path, 2, cap_bytes=1 << 30)
    client.pass_time(8.0)
    stats = client.store.stats()
    assert stats["journal_bytes"] == path.stat().st_size
    assert stats["dropped_bytes"] == (tmp_path / name.path).stat().st_size
    assert stats["orphan_bytes"] == stats["live_bytes"] == 0
    client.pass_time(130.0)
    assert client.store.stats()["dropped_bytes"] == 0 and not (tmp_path / name.path).exists()
