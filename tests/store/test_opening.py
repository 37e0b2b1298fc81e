"""Starting on a mount that cannot be written to, is full, or does not answer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sharedfs_backend import opening
from sharedfs_backend.exceptions import NamespaceError
from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.store import Store
from tests.store.inline import Client, chunks_of, layout_of, quick_settings, settings_for


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
