"""A fixed directory that was removed: empty to readers, made again by whoever writes (I5)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sharedfs_backend import tools
from sharedfs_backend.directories import FIXED, make_lost
from sharedfs_backend.exceptions import NamespaceError
from sharedfs_backend.files import FailureKind, FileFailure, LocalFiles
from sharedfs_backend.layout import JOURNALS
from sharedfs_backend.store import Store
from tests.files.faulty import FaultyFiles
from tests.store.inline import Client, chunks_of, items_of, quick_settings, settings_for
from tests.store.test_publisher import journals
from tests.store.test_snapshots import snapshot, snapshots

MIB = 1 << 20


@pytest.mark.parametrize("directory", FIXED)
def test_opening_makes_a_lost_directory_again_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, directory: str
) -> None:
    Client(tmp_path)
    shutil.rmtree(tmp_path / directory)
    chunks = chunks_of(2)
    with Store(settings=settings_for(tmp_path)) as store:
        assert (tmp_path / directory).is_dir()
        assert store.put(items_of(chunks)).stored == [True, True]
    reader = Client(tmp_path, 3)
    reader.refresh()
    assert reader.load(chunks) == [True, True]
    (said,) = [line for line in caplog.messages if f"made again: {directory};" in line]
    assert f"sharedfs reindex {tmp_path}" in said


def test_looking_for_what_is_lost_of_a_whole_namespace_costs_one_listing(tmp_path: Path) -> None:
    client = Client(tmp_path)
    make_lost(client.counting, str(tmp_path))
    assert client.ops() == {"list": 1}


def test_where_nothing_can_be_made_again_the_store_starts_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Client(tmp_path)
    (tmp_path / "replicas").rmdir()
    files = FaultyFiles(LocalFiles(str(tmp_path)))
    files.fail("mkdir", FailureKind.DENIED)
    make_lost(files, str(tmp_path))
    assert "nothing missing can be made again" in caplog.text


def test_a_running_store_whose_journals_were_removed_says_everything_again(tmp_path: Path) -> None:
    client, reader = Client(tmp_path), Client(tmp_path, 2)
    first, second = chunks_of(2), chunks_of(2, seed=8)
    client.put(first)
    (old,) = journals(tmp_path)
    shutil.rmtree(tmp_path / "journals")
    assert client.put(second).stored == [True, True]
    (new,) = journals(tmp_path)
    assert new != old
    reader.refresh()
    assert reader.load(first) == [True, True] and reader.load(second) == [True, True]


def test_removed_journals_and_snapshots_are_empty_ones_to_a_pass(tmp_path: Path) -> None:
    """Else a store with a cap, which waits for a pass, would never write one again."""
    client = Client(tmp_path, cap_bytes=64 * MIB)
    shutil.rmtree(tmp_path / "journals")
    shutil.rmtree(tmp_path / "snapshots")
    before = client.store.parts.refresher.last_good_pass_started
    client.pass_time(3.0)
    assert client.store.parts.refresher.last_good_pass_started > before
    assert client.put(chunks_of(2)).stored == [True, True]


def test_a_snapshot_is_written_where_their_directory_was_removed(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(chunks_of(2))
    (tmp_path / "snapshots").rmdir()
    snapshot(client)
    assert len(snapshots(tmp_path)) == 1


@pytest.mark.parametrize("lost", ["journals", "snapshots", "settings"])
@pytest.mark.parametrize("tool", [tools.listing, tools.verify])
def test_a_tool_that_only_reads_ends_at_once_and_says_what_to_do(
    tmp_path: Path, lost: str, tool: object
) -> None:
    Client(tmp_path)
    shutil.rmtree(tmp_path / lost)
    with pytest.raises(NamespaceError, match=f"{lost} missing here; `sharedfs reindex {tmp_path}`"):
        tool(quick_settings(tmp_path))  # type: ignore[operator]
    assert not (tmp_path / lost).exists()


def test_below_an_empty_mount_point_nothing_is_made(tmp_path: Path) -> None:
    root = tmp_path / "namespace"
    root.mkdir()
    client = Client(root)
    client.put(chunks_of(2))
    shutil.rmtree(root)  # as good as unmounted
    root.mkdir()
    client.pass_time(settings_for(root).lease_seconds)  # heartbeats, which want a journal
    assert list(root.iterdir()) == []


def test_who_writes_on_is_not_taken_to_be_gone_while_the_journals_cannot_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount may show an empty place for a moment; what others store meanwhile counts."""
    here, there = Client(tmp_path), Client(tmp_path, 2)
    here.put(chunks_of(2))
    there.put(chunks_of(2, seed=8))
    here.refresh()
    snapshot(here)  # so that nobody's journal is missed for what it said
    refresher = here.store.parts.refresher
    before = refresher.last_good_pass_started
    with monkeypatch.context() as hidden:
        for op in ("list", "open_read"):
            hidden.setattr(here.counting, op, hiding(getattr(here.counting, op), JOURNALS))
        here.pass_time(3.0)
    assert refresher.last_good_pass_started == before
    there.put(chunks_of(2, seed=9))
    here.refresh()
    assert refresher.last_good_pass_started > before
    assert here.load(chunks_of(2, seed=9)) == [True, True]
    assert here.store.parts.sweeper.crowd().live == 2


def test_a_journal_that_is_seen_again_is_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = Client(tmp_path), Client(tmp_path, 2)
    here.put(chunks_of(2))
    there.put(chunks_of(2, seed=8))
    here.refresh()
    with monkeypatch.context() as hidden:
        hidden.setattr(here.counting, "open_read", hiding(here.counting.open_read, JOURNALS))
        here.pass_time(3.0)
    there.put(chunks_of(2, seed=9))
    here.refresh()
    here.refresh()
    assert here.load(chunks_of(2, seed=9)) == [True, True]
    assert here.store.parts.sweeper.crowd().live == 2


def hiding(call: Callable[[str], Any], below: str) -> Callable[[str], Any]:
    """The same call, for which nothing is there below a directory, nor the directory."""

    def hidden(path: str) -> Any:
        if path.startswith(below):
            raise FileFailure(FailureKind.MISSING, "open", path, "not seen")
        return call(path)

    return hidden
