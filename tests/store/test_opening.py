"""Starting on a mount that cannot be written to, is full, or does not answer."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path

import pytest

from sharedfs_backend import opening
from sharedfs_backend.exceptions import NamespaceError
from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.putting import PutItem
from sharedfs_backend.store import Store
from tests.store.inline import Client, chunks_of, layout_of, quick_settings, settings_for

probing = importlib.import_module("sharedfs_backend.files.probe")


@pytest.mark.parametrize("kind", [FailureKind.DENIED, FailureKind.NO_SPACE])
def test_a_mount_that_cannot_be_written_to_serves_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: FailureKind
) -> None:
    chunks = chunks_of(2)
    Client(tmp_path).put(chunks)

    def refuse(*_: object, **__: object) -> None:
        raise FileFailure(kind, "create", "probe", "planned by the test")

    monkeypatch.setattr(opening, "probe", refuse)
    with Store(settings=settings_for(tmp_path, refresh_seconds=0.05)) as store:
        assert store.wait_current()
        buffers = [bytearray(len(data)) for data in chunks.values()]
        assert store.load(list(chunks), buffers, layout=layout_of(chunks)) == [True, True]
        assert [bytes(buffer) for buffer in buffers] == list(chunks.values())


def test_no_read_is_longer_than_a_request_of_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here 1 MiB, as on a FUSE mount; what is written goes in larger pieces."""
    monkeypatch.setattr(probing, "statfs_type", lambda root: 0x65735546)
    chunks = chunks_of(1, nbytes=4 << 20)
    settings = settings_for(tmp_path, profile="posix")
    with Store(settings=settings) as store:
        items = [PutItem(key, memoryview(data), layout_of(chunks)) for key, data in chunks.items()]
        assert store.put(items).stored == [True]
        buffer = bytearray(4 << 20)
        assert store.load(list(chunks), [buffer], layout=layout_of(chunks)) == [True]
        found = store.stats()
    assert [bytes(buffer)] == list(chunks.values())
    assert (found["reads"], found["read_bytes"], found["piece_bytes"]) == (4, 1 << 20, 4 << 20)


def test_a_probe_that_fails_otherwise_stops_the_start_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise FileFailure(FailureKind.IO, "read", "probe", "planned by the test")

    monkeypatch.setattr(opening, "probe", broken)
    with pytest.raises(NamespaceError, match="planned by the test"):
        Store(settings=quick_settings(tmp_path))


def test_a_mount_that_does_not_answer_is_given_up_in_time_and_leaves_no_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(opening, "OPEN_SECONDS", 0.05)
    monkeypatch.setattr(opening, "require_root", lambda root: release.wait(60.0))
    with pytest.raises(NamespaceError, match="no answer"):
        Store(settings=quick_settings(tmp_path))
    assert not [t for t in threading.enumerate() if t.name == "sharedfs-timer"]
    release.set()
