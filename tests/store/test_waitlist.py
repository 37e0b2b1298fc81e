"""Below a cap a store waits for the next credit, for a while, instead of being dropped (I6, I9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedfs_backend.files import FailureKind, Files
from sharedfs_backend.store import PutTask
from tests.files.faulty import FaultyFiles
from tests.store.inline import MIB, Client, chunks_of, items_of

CAP = 256 * MIB


def submit(client: Client, seed: int = 7) -> PutTask:
    return client.store.submit_put(items_of(chunks_of(2, seed=seed)))


def blind(root: Path) -> tuple[Client, FaultyFiles]:
    """A client that never completes a pass, so that it gets no credit."""
    made: list[FaultyFiles] = []

    def wrap(inner: Files) -> FaultyFiles:
        made.append(FaultyFiles(inner))
        return made[0]

    client = Client(root, wrap=wrap, cap_bytes=CAP)
    made[0].fail("list", FailureKind.IO, path="journals")
    return client, made[0]


def test_a_store_before_the_first_credit_waits_for_it(tmp_path: Path) -> None:
    client = Client(tmp_path, cap_bytes=CAP)
    task = submit(client)
    assert not task.is_done
    client.pass_time(5.0)
    assert task.stored == [True, True]
    assert client.store.stats()["stores_waited"] >= 1


def test_whoever_brings_a_chunk_that_waits_waits_for_the_same(tmp_path: Path) -> None:
    client = Client(tmp_path, cap_bytes=CAP)
    first, second = submit(client), submit(client)
    client.pass_time(5.0)
    assert first.stored == second.present == [True, True]
    assert client.store.stats()["packs_stored"] == 1


def test_a_store_waits_for_a_quarter_of_its_buffers_time_at_most(tmp_path: Path) -> None:
    client, _ = blind(tmp_path)
    task = submit(client)
    client.pass_time(9.0)
    assert "stores_dropped_stale" not in client.store.stats()
    client.pass_time(2.0)
    assert task.is_done and task.stored == [False, False]
    assert client.store.stats()["stores_dropped_stale"] == 1
    assert client.store.stats()["queue_bytes"] == 0


def test_a_cancelled_store_spends_no_credit(tmp_path: Path) -> None:
    client, files = blind(tmp_path)
    task = submit(client)
    assert task.cancel()
    files.heal()
    client.pass_time(5.0)
    assert task.is_done and task.stored == [False, False]
    assert client.store.stats().get("packs_stored", 0) == 0
    assert not [op for op in files.tried if op[0] == "create" and op[1].startswith("packs/")]


def test_closing_ends_the_waiting(tmp_path: Path) -> None:
    client, _ = blind(tmp_path)
    task = submit(client)
    client.store.close()
    assert task.is_done and task.stored == [False, False]


def unreadable(root: Path, kind: FailureKind = FailureKind.IO) -> tuple[Client, FaultyFiles, str]:
    """A client below a cap, of two other journals one that it could never read, and its path."""
    made: list[FaultyFiles] = []

    def wrap(inner: Files) -> FaultyFiles:
        made.append(FaultyFiles(inner))
        return made[0]

    for seed in (8, 9):
        Client(root, seed).put(chunks_of(1, seed=seed))
    path = min(str(found.relative_to(root)) for found in (root / "journals").iterdir())
    client = Client(root, wrap=wrap, cap_bytes=CAP)
    made[0].fail("open", kind, path=path)
    return client, made[0], path


def test_a_journal_unreadable_for_a_lease_is_named_once_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client, _, path = unreadable(tmp_path)
    client.pass_time(90.0, step=5.0)
    assert "remove it" not in caplog.text
    client.pass_time(200.0, step=5.0)
    (said,) = (line for line in caplog.messages if "remove it" in line)
    assert said.startswith(f"{path} cannot be read")
    task = submit(client)
    assert task.is_done  # it waits for nothing
    assert task.failed is not None and "the log names it" in task.failed
    assert client.store.stats()["stores_dropped_unread"] == 1


@pytest.mark.parametrize("remedy", ["restored", "removed"])
def test_with_the_journal_restored_or_removed_stores_go_on(tmp_path: Path, remedy: str) -> None:
    client, files, path = unreadable(tmp_path)
    client.pass_time(150.0, step=5.0)
    assert not any(submit(client).stored)
    files.heal()
    if remedy == "removed":
        (tmp_path / path).unlink()
    client.pass_time(150.0, step=1.0)
    assert submit(client).stored == [True, True]


@pytest.mark.parametrize("remedy", ["restored", "removed"])
def test_a_snapshot_unreadable_for_a_lease_is_named_too_and_stores_go_on_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, remedy: str
) -> None:
    # It held up every pass for ever, and nobody was told which file it was.
    made: list[FaultyFiles] = []

    def wrap(inner: Files) -> FaultyFiles:
        made.append(FaultyFiles(inner))
        return made[-1]

    writer = Client(tmp_path, 8)
    writer.put(chunks_of(1, seed=8))
    writer.refresh()
    name = writer.store.parts.snapshotter.write("8" * 16)
    assert name is not None
    client = Client(tmp_path, wrap=wrap, cap_bytes=CAP)
    made[0].fail("read", FailureKind.IO, path=name.path)
    client.pass_time(200.0, step=5.0)
    (said,) = (line for line in caplog.messages if "remove it" in line)
    assert said.startswith(f"{name.path} cannot be read")
    refused = submit(client)
    assert refused.failed is not None and "the log names it" in refused.failed
    made[0].heal()
    if remedy == "removed":
        (tmp_path / name.path).unlink()
    client.pass_time(150.0, step=1.0)
    assert submit(client).stored == [True, True]


def test_a_journal_that_only_times_out_is_not_called_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client, _, _ = unreadable(tmp_path, FailureKind.TIMEOUT)
    client.pass_time(300.0, step=5.0)
    assert "remove it" not in caplog.text
    assert not submit(client).is_done  # the next pass may be complete


def test_whoever_waits_for_a_complete_pass_in_vain_is_told_which_journal_to_look_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client, _, path = unreadable(tmp_path)
    client.pass_time(5.0)
    assert not client.store.parts.wait_current(timeout_seconds=-1.0)
    assert f"{path} cannot be read" in caplog.text
