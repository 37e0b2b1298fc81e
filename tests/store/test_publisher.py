"""The journal: appended to by name, never created twice, given up for a new one when in doubt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sharedfs_backend.files import Files, Handle
from sharedfs_backend.layout import Beat, journal_path
from sharedfs_backend.rules import Rules
from tests.files.faulty import FaultyFiles
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


def committed(client: Client, journal: str) -> set[bytes]:
    """Digests of the packs that a journal commits, as a client reads it."""
    packs = client.store.parts.ledger.packs()
    return {pack.name.digest for pack in packs if journal in pack.committers}


@pytest.mark.parametrize(("silent_seconds", "said_again"), [(60.0, 1), (101.0, 0), (500.0, 0)])
def test_after_a_lease_of_silence_nothing_is_called_live_again(
    tmp_path: Path, silent_seconds: float, said_again: int
) -> None:
    """Others may have dropped and forgotten it meanwhile; the old journal or a snapshot says it."""
    client, reader = Client(tmp_path), Client(tmp_path, 2)
    first = chunks_of(1)
    client.put(first)
    (old,) = journals(tmp_path)
    client.runtime.time += silent_seconds
    client.put(chunks_of(1, seed=8))
    (new,) = journals(tmp_path) - {old}
    reader.refresh()
    assert len(committed(reader, new)) == 1 + said_again
    assert reader.store.lookup(list(first)) == [True]
    client.runtime.time += 60.0  # the next renewal, after half a lease only
    client.put(chunks_of(1, seed=9))
    (newest,) = journals(tmp_path) - {old, new}
    reader.refresh()
    assert len(committed(reader, newest)) == 2 + said_again


def test_a_renewal_whose_create_took_too_long_says_nothing(tmp_path: Path) -> None:
    client, files = meanwhile_client(tmp_path)
    client.put(chunks_of(1))
    old = journals(tmp_path)
    client.runtime.time += 60.0

    frozen: list[float] = []

    def freeze() -> None:
        frozen.append(60.0)
        client.runtime.time += 60.0

    files.in_create = freeze
    assert client.put(chunks_of(1, seed=8)).stored == [False]
    assert frozen and journals(tmp_path) == old
    client.pass_time(30.0)  # the breaker sees that the file system answers
    assert client.put(chunks_of(1, seed=9)).stored == [True]


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


class Meanwhile(FaultyFiles):
    """Files in whose next call of a kind on a journal something else happens."""

    def __init__(self, inner: Files) -> None:
        super().__init__(inner)
        self.in_open: Callable[[], None] | None = None
        self.in_create: Callable[[], None] | None = None
        self.in_read: Callable[[], None] | None = None

    def create(self, path: str) -> Handle:
        handle = super().create(path)
        if self.in_create is not None and path.startswith("journals/"):
            meanwhile, self.in_create = self.in_create, None
            meanwhile()
        return handle

    def open_write(self, path: str) -> Handle:
        handle = super().open_write(path)
        meanwhile, self.in_open = self.in_open, None
        if meanwhile is not None:
            meanwhile()
        return handle

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        count = super().read(handle, offset, into)
        if self.in_read is not None and handle.path.startswith("journals/"):
            meanwhile, self.in_read = self.in_read, None
            meanwhile()
        return count


def meanwhile_client(root: Path, seed: int = 1) -> tuple[Client, Meanwhile]:
    made: list[Meanwhile] = []

    def wrap(files: Files) -> Files:
        made.append(Meanwhile(files))
        return made[0]

    return Client(root, seed, wrap=wrap), made[0]


def test_an_append_given_up_while_its_open_hung_is_not_written_any_more(tmp_path: Path) -> None:
    client, files = meanwhile_client(tmp_path)
    client.put(chunks_of(1))
    (old,) = journals(tmp_path)
    size = (tmp_path / journal_path(old)).stat().st_size

    def another_thread_gives_it_up() -> None:
        client.runtime.time += 51.0
        client.store.parts.publisher.publish((Beat(1),), lambda _: None)

    files.in_open = another_thread_gives_it_up
    files.tried.clear()
    assert client.put(chunks_of(1, seed=8)).stored == [False]
    assert (tmp_path / journal_path(old)).stat().st_size == size
    assert files.tried.count(("close", journal_path(old))) == 1
    client.pass_time(30.0)  # the breaker sees that the file system answers
    assert client.put(chunks_of(1, seed=9)).stored == [True]


def test_a_process_frozen_while_it_reads_a_journal_does_not_take_its_writer_for_dead(
    tmp_path: Path,
) -> None:
    """What it read is as old as the open: of what came since it has heard nothing (I4)."""
    writer, (reader, files) = Client(tmp_path), meanwhile_client(tmp_path, 2)
    writer.put(chunks_of(1))
    reader.refresh()
    later = chunks_of(1, seed=8)

    frozen: list[float] = []

    def frozen_for_longer_than_a_lease() -> None:
        frozen.append(150.0)
        reader.runtime.time += 150.0
        writer.put(later)

    files.in_read = frozen_for_longer_than_a_lease
    reader.refresh()
    assert frozen
    (name,) = journals(tmp_path)
    assert not reader.store.parts.ledger.is_dead(name)
    reader.refresh()
    assert reader.store.lookup(list(later)) == [True]


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
