"""The cap: least valuable first, drop before unlink, never overrun, nobody starved."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.store.inline import KIB, MIB, Client, chunks_of

CAP = 64 * MIB
WALK_EVERY = 16 if os.environ.get("SHAREDFS_TEST_ROOT") else 1
"""Steps between two walks over the whole directory: each takes a second on a network mount."""


def put_until(client: Client, nbytes: int, seed: int = 100) -> list[dict[bytes, bytes]]:
    """Batches of 512 KiB, ticking between them, until `nbytes` are stored."""
    batches: list[dict[bytes, bytes]] = []
    while client.store.usage().live_bytes < nbytes:
        chunks = chunks_of(8, 64 * KIB, seed=seed + len(batches))
        client.put(chunks)
        client.pass_time(1.0)
        batches.append(chunks)
        assert len(batches) < 1000, client.store.stats()
    return batches


def disk_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def test_the_coldest_packs_go_first_and_their_files_after_the_delay(tmp_path: Path) -> None:
    client = Client(tmp_path, cap_bytes=CAP)
    client.pass_time(3.0)
    batches = put_until(client, 54 * MIB)
    client.pass_time(60.0)
    client.store.lookup(list(batches[0]))  # the oldest becomes the most recent
    client.store.parts.sweeper.ask()
    client.pass_time(2.0)
    stats = client.store.stats()
    assert stats["packs_dropped"] > 0
    assert client.store.lookup(list(batches[0])) == [True] * 8
    gone = [not any(client.store.lookup(list(batch))) for batch in batches[1:]]
    assert any(gone[:30]) and not any(gone[30:])
    dropped = stats["dropped_bytes"]
    before = disk_bytes(tmp_path)
    client.pass_time(12.0)
    assert client.store.stats()["packs_unlinked"] == stats["packs_dropped"]
    assert disk_bytes(tmp_path) <= before - dropped + 64 * KIB


def test_a_drop_is_recorded_before_the_unlink_and_gone_after_it(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(chunks_of(1))
    pack = client.store.parts.ledger.packs()[0].name
    client.counting.reset()
    client.store.parts.sweeper.drop([pack])
    client.pass_time(11.0)
    log = [(op.op, op.path.split("/")[0]) for op in client.counting.log if op.op != "list"]
    append = [("open", "journals"), ("write", "journals"), ("close", "journals")]
    assert log == [*append, ("unlink", "packs"), *append]


def test_the_directory_never_exceeds_the_cap(tmp_path: Path) -> None:
    clients = [Client(tmp_path, seed, cap_bytes=CAP) for seed in range(1, 5)]
    stored = [0] * 4
    for client in clients:
        client.pass_time(3.0)
    for step in range(200):
        for number, client in enumerate(clients):
            client.put(chunks_of(16, 64 * KIB, seed=1000 * number + step))
            client.runtime.time += 1.0
            client.store.tick()
            if step % WALK_EVERY == 0:
                assert disk_bytes(tmp_path) <= CAP
    for number, client in enumerate(clients):
        stored[number] = int(client.store.stats()["bytes_stored"])
    assert min(stored) > 16 * MIB, stored  # nobody starves, and together far more than the cap
    assert sum(stored) > 2 * CAP


def test_a_locked_chunk_is_not_swept(tmp_path: Path) -> None:
    client = Client(tmp_path)
    held, other = chunks_of(1), chunks_of(1, seed=8)
    client.put(held)
    client.put(other)
    client.store.lookup(list(held), lock=True)
    client.pass_time(20.0)
    victims = client.store.parts.sweeper.victims(1 << 40, client.runtime.time)
    assert len(victims) == 1
    client.store.unlock(list(held))
    assert len(client.store.parts.sweeper.victims(1 << 40, client.runtime.time)) == 2


def test_locks_are_counted_bounded_and_end_with_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharedfs_backend.finding.LOCKS_MAX", 6)
    client = Client(tmp_path)
    chunks = chunks_of(4, 64 * KIB)
    client.put(chunks)
    keys, stranger = list(chunks), next(iter(chunks_of(1, seed=8)))
    finder = client.store.parts.finder
    assert client.store.lookup([*keys, stranger], lock=True) == [True] * 4 + [False]
    assert finder.locks_held == 4  # what was not found is not locked
    client.store.lookup(keys[:2], lock=True)
    assert finder.locks_held == 4  # the same keys once more
    client.store.unlock(keys)
    assert finder.locks_held == 2
    client.store.lookup([*keys, stranger], lock=True)
    assert client.store.stats()["locks_refused"] == 5  # 2 + 5 would be more than 6
    assert finder.locks_held == 2
    client.pass_time(client.store.parts.settings.buffer_ttl_seconds + 1)
    client.store.lookup(keys + keys[:2], lock=True)  # room again: those of before have ended
    assert finder.locks_held == 4


def test_locks_nobody_asks_about_are_entered_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: whoever asks after an hour of lookups keeps none of them waiting for long."""
    monkeypatch.setattr("sharedfs_backend.finding.TAKEN_MAX", 6)
    monkeypatch.setattr("sharedfs_backend.finding.LOCKS_MAX", 8)
    client = Client(tmp_path)
    chunks = chunks_of(8, 64 * KIB)
    client.put(chunks)
    keys, finder = list(chunks), client.store.parts.finder
    for start in range(0, 8, 2):
        client.store.lookup(keys[start : start + 2], lock=True)
        assert finder._taken_keys <= 6
    looks: list[float] = []
    monkeypatch.setattr(finder, "_expire_locks", looks.append)
    for _ in range(3):  # no room, and nobody's time has come
        client.store.lookup(keys[:2], lock=True)
    assert len(looks) == 1
    client.pass_time(2)
    client.store.lookup(keys[:2], lock=True)
    assert len(looks) >= 2
    assert finder.locks_held == 8


def test_nothing_younger_than_the_drop_delay_is_a_victim(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(chunks_of(1))
    assert client.store.parts.sweeper.victims(1 << 40, client.runtime.time) == []


def test_another_sweeper_finishes_what_a_dead_one_began(tmp_path: Path) -> None:
    dead = Client(tmp_path, 1)
    chunks = chunks_of(1)
    dead.put(chunks)
    dead.store.parts.sweeper.drop([dead.store.parts.ledger.packs()[0].name])
    heir = Client(tmp_path, 2)
    heir.put(chunks_of(1, seed=8))
    heir.pass_time(130.0)
    assert heir.store.stats()["packs_unlinked"] == 1
    assert heir.store.stats()["dropped_bytes"] == 0


def test_a_new_writer_counts_orphans_before_it_stores(tmp_path: Path) -> None:
    first = Client(tmp_path, 1)
    first.put(chunks_of(1))
    directory = tmp_path / "packs" / "00"
    (directory / ("00" + "ab" * 15 + "." + "f" * 16 + ".1")).write_bytes(b"x" * (62 * MIB))
    second = Client(tmp_path, 2, cap_bytes=CAP)
    second.put(chunks_of(1, seed=8))  # makes it a writer; refused: it has not counted yet
    second.pass_time(5.0)
    assert second.store.stats()["orphan_bytes"] == 62 * MIB
    task = second.put(chunks_of(16, 64 * KIB, seed=9))
    assert not any(task.stored)
