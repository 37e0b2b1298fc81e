"""What grows has a bound; what a later version wrote is left alone; what is asked for is paid for
(I5, I9)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sharedfs_backend.files import FailureKind, Files
from sharedfs_backend.layout import (
    BLOCK_BYTES,
    FORMAT_MAJOR,
    Beat,
    Begin,
    ChunkEntry,
    Commit,
    EntryTable,
    LayoutDescriptor,
    NewerVersion,
    PackCommit,
    PackName,
    Seal,
    encode_entry,
    journal_path,
    pack_digest,
)
from sharedfs_backend.layout import journal as journal_module
from sharedfs_backend.publisher import QUEUE_MAX
from sharedfs_backend.store import DIRECT_USE
from tests.files.faulty import FaultyFiles
from tests.store.inline import KIB, MIB, Client, chunks_of, items_of
from tests.store.test_damage import pack_files
from tests.store.test_orphans import orphan
from tests.store.test_publisher import journals
from tests.store.test_snapshots import snapshot, snapshots

NEWER = "c" * 16


def test_a_store_larger_than_the_queue_is_taken_and_the_next_is_not(tmp_path: Path) -> None:
    client = Client(tmp_path, queue_bytes_max=4 * MIB)
    client.runtime.held = True
    large, late = (client.store.submit_put(items_of(chunks_of(8, MIB, seed=n))) for n in (1, 2))
    assert late.is_done and late.stored == [False] * 8
    assert client.store.stats()["stores_dropped_queue"] == 1
    client.runtime.held = False
    client.runtime.run()
    assert large.stored == [True] * 8
    assert client.store.stats()["queue_bytes"] == 0
    assert client.put(chunks_of(8, MIB, seed=2)).stored == [True] * 8


@pytest.mark.parametrize(
    "layout",
    [
        LayoutDescriptor(("uint8",), ((np.int64(3),),), "RAW", 0),  # type: ignore[arg-type]
        LayoutDescriptor(("uint8",), ((1 << 70,),), "RAW", 0),
        LayoutDescriptor(("uint8",), ((-1,),), "RAW", 0),
        LayoutDescriptor(("uint8",) * 6000, ((0,),), "RAW", 0),
    ],
)
def test_a_layout_that_cannot_be_written_down_is_refused_and_nothing_stops(
    tmp_path: Path, layout: LayoutDescriptor
) -> None:
    client = Client(tmp_path)
    (item,) = items_of(chunks_of(1))
    with pytest.raises(ValueError, match="chunk 0 of 1: its layout is none"):
        client.store.put([item._replace(layout=layout)])
    client.pass_time(100.0)
    assert client.store.stats()["queue_bytes"] == 0
    assert client.store.put([item]).stored == [True]


@pytest.mark.parametrize("version", [(1 << 32) - 1, 1 << 40])
def test_versions_are_as_large_as_the_format_says(tmp_path: Path, version: int) -> None:
    """Another implementation may count them as it likes."""
    client = Client(tmp_path)
    (chunks,) = (chunks_of(1),)
    (item,) = items_of(chunks)
    client.put(chunks_of(1, seed=8))
    realm, layout, seal = DIRECT_USE.digest(Seal()), item.layout, Seal()
    digest = pack_digest(seal, realm, layout.fingerprint(seal), [item.key])
    table = EntryTable.from_entries([ChunkEntry(item.key, 4096, 8 * KIB, bytes(16))])
    name = PackName(digest, NEWER, 1)
    commit = PackCommit(name, realm, layout, 0, version, 16 * KIB, table)
    records = (Begin(FORMAT_MAJOR, bytes(16)), Commit((commit,)))
    (tmp_path / journal_path(NEWER)).write_bytes(encode_entry(NEWER, 0, records, seal))
    client.refresh()
    assert client.store.lookup([item.key]) == [True]
    assert client.load(chunks) == [False]  # no such pack: it is not found again
    assert client.put(chunks).stored == [True]
    for reader in (client, Client(tmp_path)):
        reader.refresh()
        assert reader.load(chunks) == [True]
        assert reader.load(chunks_of(1, seed=8)) == [True]


def newer_journal(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal whose one record is of a kind that nobody here knows."""
    with monkeypatch.context() as patched:
        patched.setattr(journal_module, "to_wire", lambda record: [99, {}])
        patched.setattr(journal_module, "decode_entry", lambda *args: ())
        data = encode_entry(NEWER, 0, [Beat(1)], Seal())
    (root / journal_path(NEWER)).write_bytes(data)


def test_orphans_are_left_alone_while_a_later_version_writes_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan(tmp_path)
    newer_journal(tmp_path, monkeypatch)
    client = Client(tmp_path)
    client.put(chunks_of(1))
    for _ in range(4):
        client.store.parts.orphans.begin()
        client.pass_time(101.0)
    assert client.store.stats()["orphan_passes_blind"] > 0
    assert len(pack_files(tmp_path)) == 2
    assert "orphans_adopted" not in client.store.stats()
    assert NEWER in journals(tmp_path)


def test_nothing_is_stored_below_a_cap_that_a_later_version_fills_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path, cap_bytes=64 * MIB)
    newer_journal(tmp_path, monkeypatch)
    client.pass_time(5.0)
    client.put(chunks_of(1))
    client.pass_time(5.0)
    task = client.put(chunks_of(1, seed=8))
    assert not any(task.stored)
    assert client.store.stats()["refresh_passes"] > 2


def test_a_pack_of_a_later_version_is_no_orphan_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan(tmp_path)

    def newer(*_: object) -> None:
        raise NewerVersion("a pack of format 2")

    monkeypatch.setattr("sharedfs_backend.orphans.read_header", newer)
    client = Client(tmp_path)
    client.put(chunks_of(1))
    for _ in range(4):
        client.store.parts.orphans.begin()
        client.pass_time(101.0)
    assert len(pack_files(tmp_path)) == 2


def test_a_snapshot_of_a_later_version_is_not_removed_as_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Client(tmp_path, 1)
    first.put(chunks_of(1))
    snapshot(first)
    first.store.close()

    def newer(*_: object) -> None:
        raise NewerVersion("a snapshot of format 2")

    monkeypatch.setattr("sharedfs_backend.snapshots.decode_snapshot", newer)
    client = Client(tmp_path, 2)
    client.put(chunks_of(1, seed=8))
    client.pass_time(300.0)
    assert len(snapshots(tmp_path)) == 1


def test_a_snapshot_that_does_not_verify_is_not_read_every_second(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(chunks_of(1))
    (tmp_path / "snapshots" / ("7." + "d" * 16 + ".arrow")).write_bytes(b"half a snapshot")
    client.pass_time(100.0)
    looks = [op for op in client.counting.log if op.op == "open" and "snapshots" in op.path]
    assert 2 <= len(looks) <= 8


def test_a_snapshot_holds_what_is_quarantined_here(tmp_path: Path) -> None:
    judge, other = Client(tmp_path, 1), Client(tmp_path, 2)
    judge.put(chunks_of(1))
    early, late = chunks_of(2, seed=8), chunks_of(2, seed=9)
    other.put(early)
    judge.refresh()
    ledger = judge.store.parts.ledger
    realm = next(pack.realm for pack in ledger.packs())
    ledger.quarantine(realm, 0)
    other.put(late)
    judge.refresh()
    assert judge.store.lookup([*early, *late]) == [False] * 4
    snapshot(judge)
    for path in (tmp_path / "journals").iterdir():
        path.unlink()
    reader = Client(tmp_path, 3)
    reader.refresh()
    assert reader.store.lookup([*early, *late]) == [True] * 4


def test_no_snapshot_is_written_by_who_does_not_hold_everything(tmp_path: Path) -> None:
    big = Client(tmp_path, 1)
    for seed in range(3):
        big.put(chunks_of(600, 64, seed=seed))
    small = Client(tmp_path, 2, chunks_max=1024)
    small.refresh()
    small.put(chunks_of(1, 64, seed=9))
    writer = small.store.parts.publisher.writer
    assert writer is not None
    assert small.store.parts.snapshotter.write(writer) is None
    assert small.store.stats()["snapshots_incomplete"] == 1
    assert snapshots(tmp_path) == []


def test_every_process_forgets_tombstones_and_writers_that_left_nothing(tmp_path: Path) -> None:
    leader, reader = Client(tmp_path, 1), Client(tmp_path, 2)
    leader.put(chunks_of(1))
    for seed in range(5):
        guest = Client(tmp_path, 10 + seed)
        guest.put(chunks_of(1, seed=seed))
        guest.refresh()
        name = next(p.name for p in guest.store.parts.ledger.packs() if p.live)
        guest.store.parts.sweeper.drop([name])
        guest.pass_time(12.0)
        guest.store.close()
        leader.refresh()
        reader.refresh()
    for _ in range(5):
        for client in (leader, reader):
            client.pass_time(101.0)
        snapshot(leader)
    for client in (leader, reader):
        client.pass_time(101.0)
        ledger = client.store.parts.ledger
        assert not [pack for pack in ledger.packs() if pack.gone]
        assert len(ledger.writers()) <= 2


def churn(client: Client, rounds: int) -> None:
    """One pack each round, in a journal of its own, dropped and forgotten after a while."""
    client.store.parts.publisher._journal_bytes_max = 4096
    for seed in range(rounds):
        client.put(chunks_of(1, seed=seed))
        live = [pack.name for pack in client.store.parts.ledger.packs() if pack.live]
        client.store.parts.sweeper.drop(live)
        client.pass_time(101.0)
        snapshot(client)


def test_ids_this_process_gave_up_are_forgotten_with_the_last_pack(tmp_path: Path) -> None:
    client = Client(tmp_path)
    parts = client.store.parts
    churn(client, 12)
    after_some = parts.ledger.writer_count, len(parts.publisher._own), parts.ledger.pack_count
    churn(client, 24)
    assert client.store.stats()["journals_begun"] >= 36
    after_many = parts.ledger.writer_count, len(parts.publisher._own), parts.ledger.pack_count
    assert all(many <= some for many, some in zip(after_many, after_some, strict=True))


def test_an_id_this_process_gave_up_is_its_own_while_a_pack_bears_it(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(chunks_of(1, seed=99))
    (old,) = journals(tmp_path)
    client.store.parts.publisher._journal_bytes_max = 4096
    for seed in range(3):
        client.put(chunks_of(1, seed=seed))
        client.pass_time(101.0)
        snapshot(client)
    for _ in range(4):
        client.pass_time(101.0)
    assert old not in journals(tmp_path)
    assert client.store.parts.ledger.is_own(old)


def test_the_dead_that_left_nothing_are_not_remembered_as_settled(tmp_path: Path) -> None:
    leader = Client(tmp_path, 1, cap_bytes=64 * MIB)
    leader.put(chunks_of(1))
    for seed in range(6):
        guest = Client(tmp_path, 10 + seed, cap_bytes=64 * MIB)
        guest.put(chunks_of(1, seed=20 + seed))
        for _ in range(8):
            leader.pass_time(101.0)
            leader.store.parts.orphans.begin()
        snapshot(leader)
        leader.pass_time(101.0)
    orphans, known = leader.store.parts.orphans, leader.store.parts.ledger.writers()
    assert leader.store.stats()["journals_retired"] > 3
    assert orphans.settled <= {view.writer for view in known if not view.vanished}


def test_an_id_this_process_gave_up_is_retired_by_itself(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(chunks_of(1))
    (old,) = journals(tmp_path)
    client.runtime.time += 51.0
    client.put(chunks_of(1, seed=8))
    assert len(journals(tmp_path)) == 2
    for _ in range(4):
        client.pass_time(110.0)
        snapshot(client)
    client.pass_time(10.0)
    assert old not in journals(tmp_path)


def test_what_a_snapshot_says_is_dropped_is_not_kept_open(tmp_path: Path) -> None:
    writer, reader = Client(tmp_path, 1), Client(tmp_path, 2)
    chunks = chunks_of(2)
    writer.put(chunks)
    reader.refresh()
    assert reader.load(chunks) == [True, True]
    writer.store.parts.sweeper.drop([writer.store.parts.ledger.packs()[0].name])
    snapshot(writer)
    for path in (tmp_path / "journals").iterdir():
        path.unlink()
    reader.refresh()
    assert reader.store.stats()["open_packs"] == 0


def test_reading_a_long_journal_is_paid_for_from_the_budget(tmp_path: Path) -> None:
    client = Client(tmp_path, refresh_ops_per_second=10)
    (tmp_path / journal_path("d" * 16)).write_bytes(bytes(40 * MIB))  # never valid: read again
    client.counting.reset()
    client.pass_time(60.0, step=0.25)
    spent = sum(1 for op in client.counting.log if op.path.startswith("journals"))
    assert spent <= 60 * 10 + 50


def test_publications_that_wait_have_a_bound(tmp_path: Path) -> None:
    client = Client(tmp_path)
    publisher = client.store.parts.publisher
    told: list[bool] = []

    def more(_: bool) -> None:  # while this one's turn lasts, others can only wait
        for _number in range(QUEUE_MAX + 5):
            publisher.publish((), told.append)

    publisher.publish((), more)
    assert told.count(False) == 5
    assert told.count(True) == QUEUE_MAX
    assert client.store.stats()["publications_refused"] == 5


def test_thousands_of_small_journals_do_not_exceed_the_budget(tmp_path: Path) -> None:
    client = Client(tmp_path, refresh_ops_per_second=50)
    for number in range(2000):
        writer = f"{number:016x}"
        data = encode_entry(writer, 0, [Beat(1)], Seal())
        assert len(data) == BLOCK_BYTES
        (tmp_path / journal_path(writer)).write_bytes(data)
    client.counting.reset()
    client.pass_time(30.0, step=0.25)
    assert sum(client.ops().values()) <= 50 * 31 + 10


def test_a_sweep_that_finds_too_little_does_not_look_again_at_once(tmp_path: Path) -> None:
    client = Client(tmp_path, cap_bytes=64 * MIB)
    client.pass_time(3.0)
    sweeper = client.store.parts.sweeper
    looked: list[float] = []
    victims = sweeper.victims

    def counted(nbytes: int, now: float) -> list[PackName]:
        looked.append(now)
        return victims(nbytes, now)

    sweeper.victims = counted  # type: ignore[method-assign,assignment] # a spy
    client.store.parts.ledger.see_orphan(PackName(bytes(16), "0" * 16, 1), 62 * MIB)
    client.pass_time(10.0, step=0.1)
    assert 1 <= len(looked) <= 5


def test_a_fault_in_one_journal_stops_neither_lookups_nor_other_journals(tmp_path: Path) -> None:
    made: list[FaultyFiles] = []

    def wrap(files: Files) -> Files:
        made.append(FaultyFiles(files))
        return made[0]

    good, bad = Client(tmp_path, 1), Client(tmp_path, 2)
    chunks = chunks_of(2, seed=8)
    bad.put(chunks_of(2))
    good.put(chunks)
    reader = Client(tmp_path, 3, wrap=wrap)
    path = f"journals/{bad.store.parts.publisher.writer}"
    made[0].fail("read", FailureKind.IO, path=path)
    reader.refresh()
    reader.refresh()
    assert reader.store.lookup(list(chunks)) == [True, True]
    assert reader.store.healthy
