"""The journal: appended to by name, never created twice, given up for a new one when in doubt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sharedfs_backend.rules import Rules
from tests.store.inline import Client, chunks_of


def journals(root: Path) -> set[str]:
    return {path.name for path in (root / "journals").iterdir()}


def test_a_writer_that_stores_nothing_has_no_journal(tmp_path: Path) -> None:
    Client(tmp_path).store.lookup(list(chunks_of(1)))
    assert journals(tmp_path) == set()


def test_a_journal_is_opened_without_creating_it(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(chunks_of(1))
    assert len(journals(tmp_path)) == 1
    client.put(chunks_of(1, seed=8))
    assert len(journals(tmp_path)) == 1


def test_a_retired_journal_is_replaced_and_everything_live_said_again(tmp_path: Path) -> None:
    client = Client(tmp_path)
    first, second = chunks_of(2), chunks_of(2, seed=8)
    client.put(first)
    (old,) = journals(tmp_path)
    (tmp_path / "journals" / old).unlink()
    client.put(second)
    (new,) = journals(tmp_path)
    assert new != old
    reader = Client(tmp_path, 2)
    reader.refresh()
    assert reader.store.lookup([*first, *second]) == [True] * 4


def test_after_half_a_lease_of_silence_the_id_is_given_up(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(chunks_of(1))
    client.runtime.time += 51.0  # frozen: no heartbeat in half a lease of 100 s
    client.put(chunks_of(1, seed=8))
    assert len(journals(tmp_path)) == 2


def test_without_that_rule_the_old_id_goes_on(tmp_path: Path) -> None:
    client = Client(tmp_path, rules=replace(Rules(), slow_append_renews=False))
    client.put(chunks_of(1))
    client.runtime.time += 51.0
    client.put(chunks_of(1, seed=8))
    assert len(journals(tmp_path)) == 1


def test_a_heartbeat_every_quarter_lease_keeps_the_id(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(chunks_of(1))
    size = (tmp_path / "journals" / next(iter(journals(tmp_path)))).stat().st_size
    client.pass_time(99.0)
    client.put(chunks_of(1, seed=8))
    (journal,) = journals(tmp_path)
    assert (tmp_path / "journals" / journal).stat().st_size == size + 4 * 4096


def test_a_long_journal_is_ended_and_continued_in_a_new_one(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.store.parts.publisher._journal_bytes_max = 3 * 4096
    every: dict[bytes, bytes] = {}
    for seed in range(4):
        chunks = chunks_of(1, seed=seed)
        every |= chunks
        client.put(chunks)
    assert len(journals(tmp_path)) == 2
    reader = Client(tmp_path, 2)
    reader.refresh()
    assert reader.store.lookup(list(every)) == [True] * 4
    ended = [view for view in reader.store.parts.ledger.writers() if view.ended]
    assert len(ended) == 1


def test_closing_ends_the_journal(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(chunks_of(1))
    client.store.close()
    reader = Client(tmp_path, 2)
    reader.refresh()
    assert [view.ended for view in reader.store.parts.ledger.writers()] == [True]


def test_a_forked_child_opens_a_store_of_its_own(tmp_path: Path) -> None:
    import os

    from sharedfs_backend.store import Store
    from tests.store.inline import items_of, settings_for

    store = Store(settings=settings_for(tmp_path))
    store.put(items_of(chunks_of(1)))
    pid = os.fork()
    if pid == 0:
        task = store.put(items_of(chunks_of(1, seed=8)))
        os._exit(0 if task.stored == [True] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    store.close()
    assert len(journals(tmp_path)) == 2
