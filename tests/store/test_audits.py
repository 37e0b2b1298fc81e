"""Two writers with different content under one key: found at once, whichever way they meet (I8)."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from sharedfs_backend.facts import Pack
from sharedfs_backend.layout import LayoutDescriptor
from sharedfs_backend.packjob import PackJob
from sharedfs_backend.store import PutItem, PutTask
from tests.store.inline import Client
from tests.store.test_damage import flip, pack_files

LAYOUT = LayoutDescriptor(("float32",), ((64, 128),), "KV_T2D", 64)


def keys_of(count: int) -> list[bytes]:
    source = random.Random(5)
    return [source.randbytes(16) for _ in range(count)]


def rank_content(rank: int, count: int) -> list[bytes]:
    """What this rank computes for the same tokens."""
    source = np.random.default_rng(rank)
    return [source.standard_normal((64, 128)).astype("<f4").tobytes() for _ in range(count)]


def items_of(rank: int, first: int, last: int) -> list[PutItem]:
    keys, data = keys_of(last), rank_content(rank, last)
    return [PutItem(keys[n], memoryview(data[n]), LAYOUT) for n in range(first, last)]


def put(client: Client, rank: int, first: int, last: int) -> PutTask:
    return client.store.put(items_of(rank, first, last))


def is_shared(client: Client, count: int = 8) -> bool:
    return any(client.store.lookup(keys_of(count), layouts=LAYOUT))


def test_a_second_rank_is_stopped_by_the_first_prompt_it_stores(tmp_path: Path) -> None:
    first, second = Client(tmp_path, 1), Client(tmp_path, 2)
    put(first, 0, 0, 4)
    second.refresh()
    task = put(second, 1, 0, 8)  # half of it is there already
    assert (task.stored, task.present) == ([False] * 8, [False] * 8)
    assert second.store.stats()["audits_failed"] == 1
    assert not is_shared(second)
    first.refresh()
    assert [pack.name.writer for pack in first.store.parts.ledger.packs()] == [
        first.store.parts.publisher.writer
    ]


def test_two_ranks_that_store_at_once_find_each_other_at_the_next_refresh(tmp_path: Path) -> None:
    first, second = Client(tmp_path, 1), Client(tmp_path, 2)
    put(first, 0, 0, 4)
    put(second, 1, 0, 4)
    for client in (first, second):
        client.refresh()
        assert client.store.stats()["audits_failed"] == 1
        assert not is_shared(client)


def test_a_copy_published_while_the_own_is_being_written_is_compared_too(tmp_path: Path) -> None:
    first, second = Client(tmp_path, 1), Client(tmp_path, 2)
    put(second, 1, 6, 7)  # so that it has a journal
    put(first, 0, 0, 4)
    world = second.runtime
    world.held = True
    second.store.submit_put(items_of(1, 0, 4))
    world.pending.popleft()()  # what is there was sorted out; the pack is to be written next
    world.time += 2.0
    second.store.tick()
    world.pending.rotate(-1)  # the refresh comes first
    world.held = False
    world.run()
    assert second.store.stats()["audits_failed"] == 1
    assert not is_shared(second)


def drop_unheard(client: Client) -> list[Pack]:
    """Drop the only pack there is; what was dropped, which the auditor has not heard of yet."""
    parts = client.store.parts
    unheard: list[Pack] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.auditor, "dropped", unheard.extend)
        parts.sweeper.drop([pack.name for pack in parts.ledger.packs()])
    return unheard


def test_a_drop_that_is_heard_late_does_not_hide_a_copy_of_what_is_written_anew(
    tmp_path: Path,
) -> None:
    first, second = Client(tmp_path, 1), Client(tmp_path, 2)
    put(second, 1, 0, 4)
    unheard = drop_unheard(second)
    put(first, 0, 0, 4)
    world = second.runtime
    world.held = True
    second.store.submit_put(items_of(1, 0, 4))
    world.pending.popleft()()  # to be written next
    second.store.parts.auditor.dropped(unheard)
    world.time += 2.0
    second.store.tick()
    world.pending.rotate(-1)  # the refresh comes first
    world.held = False
    world.run()
    assert second.store.stats()["audits_failed"] == 1


def test_a_copy_is_compared_with_the_first_own_chunk_that_is_still_there(tmp_path: Path) -> None:
    first, second = Client(tmp_path, 1), Client(tmp_path, 2)
    put(second, 1, 0, 4)
    drop_unheard(second)
    put(second, 1, 4, 8)
    put(first, 0, 0, 8)
    second.refresh()
    assert second.store.stats()["audits_failed"] == 1


def test_the_same_content_from_two_writers_goes_on_being_shared(tmp_path: Path) -> None:
    first, second = Client(tmp_path, 1), Client(tmp_path, 2)
    put(first, 0, 0, 4)
    put(second, 0, 0, 4)
    second.refresh()
    task = put(second, 0, 0, 8)
    assert task.present == [True] * 8
    assert second.store.stats().get("audits_failed", 0) == 0
    assert is_shared(second)


def test_a_damaged_chunk_at_the_start_does_not_use_up_the_audit(tmp_path: Path) -> None:
    first, second = Client(tmp_path, 1), Client(tmp_path, 2)
    put(first, 0, 0, 4)
    flip(pack_files(tmp_path)[0])
    second.refresh()
    put(second, 1, 0, 4)
    assert second.store.stats()["audits_failed"] == 1


def test_after_the_first_verdict_few_chunks_are_looked_at(tmp_path: Path) -> None:
    first, second = Client(tmp_path, 1), Client(tmp_path, 2)
    put(first, 0, 0, 64)
    second.refresh()
    second.counting.reset()
    task = put(second, 0, 0, 64)
    assert task.present == [True] * 64
    assert second.store.stats()["audits"] == 1


def test_chunks_of_a_pack_that_was_dropped_are_not_kept_in_mind(tmp_path: Path) -> None:
    client = Client(tmp_path)
    put(client, 0, 0, 4)
    kept = len(client.store.parts.auditor)
    put(client, 0, 4, 8)
    first = min(client.store.parts.ledger.packs(), key=lambda pack: pack.name.seq)
    assert (kept, len(client.store.parts.auditor)) == (4, 8)
    client.store.parts.sweeper.drop([first.name])
    assert len(client.store.parts.auditor) == client.store.stats()["audit_chunks"] == 4


def test_a_store_without_credit_leaves_nothing_in_mind(tmp_path: Path) -> None:
    client = Client(tmp_path, 1)
    client.store.parts.credits.cap(1 << 40)  # before any credit was granted
    put(client, 0, 0, 4)
    assert client.store.stats()["audit_chunks"] == 0


def test_credit_is_returned_where_the_audit_fails(tmp_path: Path) -> None:
    client = Client(tmp_path, 1)

    def broken(_job: PackJob) -> None:
        raise RuntimeError

    client.store.parts.storer._on_begun = broken
    assert put(client, 0, 0, 4).failed is not None
    assert client.store.parts.credits.in_flight_bytes == 0
