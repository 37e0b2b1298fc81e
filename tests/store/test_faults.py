"""Failing operations and our own mistakes: every task ends, all is counted, nothing sticks (I6)."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from sharedfs_backend import doubts
from sharedfs_backend.capacity import FULL_SECONDS
from sharedfs_backend.files import FailureKind, Files
from sharedfs_backend.layout import PackName, Record
from sharedfs_backend.putting import PutItem, PutTask
from tests.files.faulty import FaultyFiles
from tests.store.inline import MIB, Client, chunks_of, items_of, layout_of

KINDS = [FailureKind.NO_SPACE, FailureKind.IO, FailureKind.STALE, FailureKind.DENIED]


def faulty_client(root: Path, seed: int = 1, **changes: object) -> tuple[Client, FaultyFiles]:
    made: list[FaultyFiles] = []

    def wrap(files: Files) -> Files:
        made.append(FaultyFiles(files))
        return made[0]

    return Client(root, seed, wrap=wrap, **changes), made[0]  # type: ignore[arg-type] # settings


def put(client: Client, seed: int = 7) -> PutTask:
    return client.put(chunks_of(2, seed=seed))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["create", "open", "write", "close", "list", "read", "unlink"])
def test_whatever_fails_a_store_ends_and_the_next_one_after_it_works(
    tmp_path: Path, op: str, kind: FailureKind
) -> None:
    client, files = faulty_client(tmp_path)
    put(client)
    files.fail(op, kind)
    task = put(client, seed=8)
    client.pass_time(5.0)
    assert task.is_done
    assert client.store.stats()["in_flight_bytes"] == 0
    files.heal()
    client.pass_time(60.0)
    assert put(client, seed=9).stored == [True, True]


def test_a_full_disk_drops_the_store_backs_off_and_asks_for_a_sweep(tmp_path: Path) -> None:
    client, files = faulty_client(tmp_path)
    put(client)
    client.runtime.time += 20.0
    files.fail("write", FailureKind.NO_SPACE, path="packs/")
    assert put(client, seed=8).stored == [False, False]
    files.tried.clear()
    assert put(client, seed=9).stored == [False, False]
    assert files.tried == []  # not even tried
    stats = client.store.stats()
    assert (stats["stores_failed_no_space"], stats["stores_dropped_no_space"]) == (1, 1)
    assert stats["sweeps_asked"] == 1
    client.store.tick()
    assert client.store.stats()["packs_dropped"] == 1


def test_the_back_off_grows_and_ends_with_the_first_success(tmp_path: Path) -> None:
    client, files = faulty_client(tmp_path)
    files.fail("write", FailureKind.NO_SPACE, path="packs/")
    for number, wait in enumerate(FULL_SECONDS):
        put(client, seed=number)
        assert client.store.stats()["stores_failed_no_space"] == number + 1
        client.runtime.time += wait
    files.heal()
    client.runtime.time += FULL_SECONDS[-1]
    assert put(client, seed=90).stored == [True, True]
    files.fail("write", FailureKind.NO_SPACE, path="packs/", times=1)
    put(client, seed=91)
    client.runtime.time += FULL_SECONDS[0]
    assert put(client, seed=92).stored == [True, True]


def test_when_no_drop_can_be_recorded_victims_are_unlinked_first_and_recorded_later(
    tmp_path: Path,
) -> None:
    client, files = faulty_client(tmp_path)
    chunks = chunks_of(2)
    client.put(chunks)
    client.runtime.time += 20.0
    for op in ("write", "create"):
        files.fail(op, FailureKind.NO_SPACE)
    for number in range(12):  # stores go on being refused, and asking
        put(client, seed=50 + number)
        client.pass_time(1.0)
    assert client.store.lookup(list(chunks)) == [False, False]
    pack = client.store.parts.ledger.packs()[0]
    assert not (tmp_path / pack.name.path).exists()
    assert not pack.gone
    files.heal()
    client.pass_time(40.0)
    pack = client.store.parts.ledger.packs()[0]
    assert pack.gone
    reader = Client(tmp_path, 2)
    reader.refresh()
    assert reader.store.lookup(list(chunks)) == [False, False]


@pytest.mark.parametrize("full", ["packs/", ""], ids=["packs", "journals too"])
def test_a_full_disk_is_swept_once_until_what_was_dropped_is_unlinked(
    tmp_path: Path, full: str
) -> None:
    """Every refused store asks again, and nothing is freed for a drop delay (200 s here)."""
    client, files = faulty_client(tmp_path, drop_delay_seconds=200.0)
    for seed in range(20):
        put(client, seed=100 + seed)
    client.pass_time(210.0, step=30.0)
    for op in ("write", "create"):
        files.fail(op, FailureKind.NO_SPACE, path=full)
    for dropped, unlinked in ((4, 0), (8, 4)):  # of 20 packs a fifth, and of 16 a fifth again
        for number in range(9):
            put(client, seed=200 + number)
            client.store.parts.sweeper.ask()  # as others do that are refused
            client.pass_time(20.0, step=10.0)
        assert swept(client) == dropped
        assert len(packs_of(tmp_path)) == 20 - unlinked
        client.pass_time(40.0, step=10.0)


def test_a_disk_that_is_full_below_the_cap_is_swept_too(tmp_path: Path) -> None:
    client, files = faulty_client(tmp_path, cap_bytes=1 << 30)
    for seed in range(20):
        put(client, seed=100 + seed)
        client.pass_time(2.0)
    client.pass_time(30.0)
    before = len(packs_of(tmp_path))
    files.fail("write", FailureKind.NO_SPACE, path="packs/")
    put(client, seed=200)
    client.pass_time(5.0)
    assert swept(client) == 4
    client.pass_time(15.0)
    assert len(packs_of(tmp_path)) == before - 4


def test_what_a_dead_sweeper_dropped_does_not_keep_a_full_disk_full(tmp_path: Path) -> None:
    """The lease is 100 s here, the drop delay 10."""
    dead = Client(tmp_path, 2)
    for seed in range(20):
        dead.put(chunks_of(2, seed=100 + seed))
    client, files = faulty_client(tmp_path)
    put(client, seed=90)
    client.pass_time(20.0)
    ledger = dead.store.parts.ledger
    dead.store.parts.sweeper.drop([pack.name for pack in ledger.packs()][:5])
    files.fail("write", FailureKind.NO_SPACE, path="packs/")
    before = len(packs_of(tmp_path))
    for number in range(30):
        put(client, seed=200 + number)
        client.pass_time(2.0)
    assert len(packs_of(tmp_path)) < before


def swept(client: Client) -> int:
    stats = client.store.stats()
    return int(stats.get("packs_dropped", 0) + stats.get("packs_dropped_unrecorded", 0))


def test_a_drop_that_fails_for_another_reason_unlinks_nothing(tmp_path: Path) -> None:
    client, files = faulty_client(tmp_path)
    chunks = chunks_of(2)
    client.put(chunks)
    client.runtime.time += 20.0
    for op in ("write", "create"):
        files.fail(op, FailureKind.DENIED)
    client.store.parts.sweeper.ask()
    client.pass_time(30.0)
    assert client.load(chunks) == [True, True]
    files.heal()
    client.pass_time(30.0)
    assert client.store.stats()["packs_dropped"] == 1  # asked for, and done when it could be


def test_a_buffer_that_is_no_flat_memory_costs_its_own_pack_only(tmp_path: Path) -> None:
    client = Client(tmp_path)
    good = chunks_of(1)
    layout = layout_of(good)
    bad = PutItem(b"b" * 16, memoryview(bytes(16384))[::2], layout, rank=1)
    task = client.store.put([*items_of(good), bad])
    assert task.stored == [True, False]
    assert client.store.stats()["in_flight_bytes"] == 0
    fresh = PutItem(b"b" * 16, memoryview(bytes(8192)), layout, rank=1)
    assert client.store.put([fresh]).stored == [True]  # nobody is believed to be writing it


def test_an_on_done_that_raises_harms_nobody_else(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.runtime.held = True

    def raising(_: object) -> None:
        raise RuntimeError("the caller's mistake")

    tasks = [
        client.store.submit_put(items_of(chunks_of(1, seed=seed)), on_done=raising)
        for seed in range(3)
    ]
    client.runtime.held = False
    client.runtime.run()
    assert all(task.is_done for task in tasks)
    assert put(client, seed=9).stored == [True, True]
    chunks = chunks_of(1, seed=1)
    item = [(key, bytearray(len(data))) for key, data in chunks.items()]
    from sharedfs_backend.store import LoadItem

    items = [LoadItem(key, memoryview(buffer), layout_of(chunks)) for key, buffer in item]
    load = client.store.submit_load(items, on_done=raising)
    load.wait()
    assert load.results == [True]
    assert client.store.stats()["workers"] == 0


def test_a_publication_that_cannot_be_encoded_fails_alone(tmp_path: Path) -> None:
    client = Client(tmp_path)
    told: list[bool] = []
    with pytest.raises(ValueError, match="journal entry"):
        client.store.parts.publisher.publish((cast(Record, object()),), told.append)
    assert told == [False]
    assert put(client).stored == [True, True]


def test_a_callback_of_a_publication_that_raises_does_not_stop_the_journal(tmp_path: Path) -> None:
    client = Client(tmp_path)

    def raising(_: bool) -> None:
        raise RuntimeError("a mistake")

    with pytest.raises(RuntimeError):
        client.store.parts.publisher.publish((), raising)
    assert put(client).stored == [True, True]


def test_a_removed_root_is_misses_and_dropped_stores_and_no_directory_elsewhere(
    tmp_path: Path,
) -> None:
    root = tmp_path / "namespace"
    root.mkdir()
    client = Client(root)
    chunks = chunks_of(2)
    client.put(chunks)
    root.rename(tmp_path / "unmounted")
    root.mkdir()  # an empty mount point
    assert client.load(chunks) == [False, False]
    assert put(client, seed=8).stored == [False, False]
    client.pass_time(3.0)
    assert list(root.iterdir()) == []
    root.rmdir()
    (tmp_path / "unmounted").rename(root)
    client.pass_time(30.0)
    assert put(client, seed=9).stored == [True, True]


def test_a_commit_that_cannot_be_published_leaves_no_file(tmp_path: Path) -> None:
    client, files = faulty_client(tmp_path)
    put(client)
    files.fail("write", FailureKind.IO, path="journals/")
    files.fail("create", FailureKind.IO, path="journals/")
    assert put(client, seed=8).stored == [False, False]
    files.heal()
    client.pass_time(60.0)
    assert len(packs_of(tmp_path)) == 1
    assert client.store.stats()["orphan_bytes"] == 0


def test_a_pack_that_may_have_been_published_is_dropped_before_it_is_unlinked(
    tmp_path: Path,
) -> None:
    client, files = faulty_client(tmp_path)
    reader = Client(tmp_path, 2)
    put(client)
    files.fail("close", FailureKind.IO, path="journals/", times=2)  # the record is in place
    chunks = chunks_of(2, seed=8)
    client.put(chunks)
    client.store.parts.doubts.step()
    assert client.store.lookup(list(chunks)) == [False, False]
    (name,) = (pack.name for pack in client.store.parts.ledger.pending())
    assert (tmp_path / name.path).exists()
    reader.refresh()
    pack = reader.store.parts.ledger.pack(name)
    assert pack is not None and pack.committed and pack.dropped
    client.pass_time(12.0)
    assert not (tmp_path / name.path).exists()
    assert client.store.stats()["dropped_bytes"] == client.store.stats()["orphan_bytes"] == 0


def test_a_pack_whose_commit_is_in_doubt_stays_until_its_drop_is_on_record(tmp_path: Path) -> None:
    """An append given up while it hangs may land at any time, and names the pack then."""
    client, files = faulty_client(tmp_path)
    put(client)
    files.fail("write", FailureKind.TIMEOUT, path="journals/")
    files.fail("create", FailureKind.TIMEOUT, path="journals/")
    put(client, seed=8)
    client.pass_time(60.0)
    assert len(client.store.parts.doubts) == 1
    assert len(packs_of(tmp_path)) == 2
    assert client.store.stats()["orphan_bytes"] > 0
    files.heal()
    client.pass_time(40.0)
    stats = client.store.stats()
    assert (len(client.store.parts.doubts), stats["packs_withdrawn"], stats["packs_unlinked"]) == (
        0,
        1,
        1,
    )
    assert len(packs_of(tmp_path)) == 1 and stats["orphan_bytes"] == 0


def test_a_commit_in_doubt_that_is_read_back_was_published(tmp_path: Path) -> None:
    client, files = faulty_client(tmp_path)
    put(client)
    files.fail("close", FailureKind.IO, path="journals/", times=2)  # the record is in place
    files.fail("create", FailureKind.IO, path="journals/")
    chunks = chunks_of(2, seed=8)
    assert client.put(chunks).stored == [False, False]
    client.pass_time(5.0)
    files.heal()
    client.pass_time(60.0)
    assert client.store.lookup(list(chunks)) == [True, True]
    assert client.store.stats().get("packs_withdrawn", 0) == len(client.store.parts.doubts) == 0
    assert client.store.stats()["orphan_bytes"] == 0


def test_on_a_full_disk_a_pack_in_doubt_goes_before_its_record(tmp_path: Path) -> None:
    client, files = faulty_client(tmp_path)
    put(client)
    for op in ("write", "create"):
        files.fail(op, FailureKind.NO_SPACE, path="journals/")
    put(client, seed=8)
    client.pass_time(15.0)
    assert len(packs_of(tmp_path)) == 1 and len(client.store.parts.doubts) == 0


def test_doubts_are_bounded_and_one_forgotten_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubts, "DOUBTS_MAX", 2)
    client, files = faulty_client(tmp_path)
    for seed in range(8, 11):
        put(client, seed=90 + seed)
        files.fail("write", FailureKind.IO, path="journals/")
        put(client, seed=seed)
        files.heal()
    assert len(client.store.parts.doubts) == 2
    client.pass_time(40.0)
    assert client.store.stats()["packs_withdrawn"] == 2
    assert len(packs_of(tmp_path)) == 4


def packs_of(root: Path) -> list[Path]:
    return [path for path in (root / "packs").rglob("*") if path.is_file()]


def test_credits_come_back_from_every_kind_of_failure(tmp_path: Path) -> None:
    client, files = faulty_client(tmp_path, cap_bytes=64 * MIB)
    client.pass_time(3.0)
    for number, op in enumerate(("create", "write", "close", "open")):
        files.fail(op, FailureKind.IO)
        put(client, seed=number)
        files.heal()
        client.pass_time(2.0)
    assert client.store.stats()["in_flight_bytes"] == 0


def test_a_name_is_disowned_from_any_thread(tmp_path: Path) -> None:
    """A sweep in progress and stores that fail meanwhile: the set changes under the loop."""
    client = Client(tmp_path)
    put(client)
    sweeper = client.store.parts.sweeper
    names = [PackName(number.to_bytes(16, "big"), "0" * 16, 1) for number in range(64)]
    sweeper.disown(names)

    class Disowning:
        def unlink(self, path: str) -> None:
            sweeper.disown([PackName(path.encode()[-16:], "1" * 16, 1)])

    sweeper._files = cast(Files, Disowning())
    sweeper.finish(client.runtime.time + 1000.0)
    assert client.store.stats()["packs_unlinked"] >= 64
