"""A namespace whose small files are torn, damaged or gone: none costs it what it was told (I5)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from sharedfs_backend import tools
from sharedfs_backend.chores import SETTINGS_SECONDS
from sharedfs_backend.exceptions import NamespaceError
from sharedfs_backend.files import FailureKind, Files, LocalFiles
from sharedfs_backend.layout import (
    NAMESPACE_PATH,
    Seal,
    decode_namespace,
    encode_namespace,
    settings_path,
)
from sharedfs_backend.namespace import change_settings, seal_of
from tests.files.faulty import FaultyFiles
from tests.store.inline import MIB, Client, chunks_of, settings_for

WHOLE = encode_namespace(Seal())
DAMAGED = {
    "empty": b"",
    "torn": WHOLE[:20],
    "zeros": bytes(len(WHOLE)),
    "garbage": bytes(range(256)),
    "longer garbage": b"\xa5" * (len(WHOLE) + 100),
    "a flipped digit": WHOLE.replace(b"4194304", b"4194305"),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_namespace_file_is_written_again(tmp_path: Path, damage: bytes) -> None:
    chunks = chunks_of(2)
    Client(tmp_path).put(chunks)
    (tmp_path / NAMESPACE_PATH).write_bytes(damage)
    reader = Client(tmp_path, 2)
    assert decode_namespace((tmp_path / NAMESPACE_PATH).read_bytes()).accepts(Seal())
    reader.refresh()
    assert reader.load(chunks) == [True, True]


@pytest.mark.parametrize(
    ("content", "material"),
    [
        (b"c2VjcmV0", b"c2VjcmV0"),
        (b"\n\t c2Vj cmV0\v\f\r\n", b"c2Vj cmV0"),
        (b"\0key\x85", b"\0key\x85"),
        (b" " + b"k" * (1 << 20), b"k" * ((1 << 20) - 1)),
    ],
    ids=["as it is", "whitespace", "other bytes", "long"],
)
def test_the_material_of_a_secret_is_as_the_format_says(
    tmp_path: Path, content: bytes, material: bytes
) -> None:
    """FORMAT.md, section 2, by BLAKE3 alone: the vectors begin at the secret."""
    (tmp_path / "key").write_bytes(content)
    settings = settings_for(tmp_path, secret_file=str(tmp_path / "key"))
    secret = blake3(material, derive_key_context="sharedfs-backend 2026-01 secret").digest()
    assert seal_of(settings).secret == secret


def test_garbage_in_a_directory_that_is_no_namespace_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAMESPACE_PATH).write_bytes(b"somebody else's")
    with pytest.raises(NamespaceError, match="use another root"):
        Client(tmp_path)
    assert (tmp_path / NAMESPACE_PATH).read_bytes() == b"somebody else's"


CAP = 64 * MIB


def change(root: Path, writer: str, **changes: object) -> Path:
    """The file of the new settings."""
    record = change_settings(LocalFiles(str(root)), Seal(), writer, **changes)  # type: ignore[arg-type] # field names
    return root / "settings" / f"{record.number}.{record.writer}.json"


def cap_of(client: Client) -> int | None:
    return client.store.usage().cap_bytes


def reload(client: Client) -> None:
    client.pass_time(SETTINGS_SECONDS + 1, step=SETTINGS_SECONDS)


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"67108864", b"67108865"))


@pytest.mark.parametrize("lose", [Path.unlink, damage])
def test_the_cap_outlives_the_file_of_the_settings_that_hold_it(
    tmp_path: Path, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    Client(tmp_path)
    newest = change(tmp_path, "a" * 16, cap_bytes=CAP)
    client = Client(tmp_path, 2)
    client.put(chunks_of(1))
    lose(newest)
    for _ in range(3):
        reload(client)
        assert cap_of(client) == CAP
    assert caplog.text.count("says them again") == 1
    assert cap_of(Client(tmp_path, 3)) == CAP  # it started later
    change(tmp_path, "0" * 16, cap_bytes=None)
    reload(client)
    assert cap_of(client) is None


def test_settings_that_cannot_be_read_are_named_with_the_remedy(tmp_path: Path) -> None:
    Client(tmp_path)
    path = tmp_path / settings_path(9, "8" * 16)
    path.mkdir()
    with pytest.raises(NamespaceError, match=r"settings/9\.8+.*restore the file, or remove it"):
        Client(tmp_path)
    path.rmdir()
    Client(tmp_path)


def test_settings_that_a_listing_leaves_out_are_not_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Client(tmp_path)
    change(tmp_path, "a" * 16, cap_bytes=CAP)
    client = Client(tmp_path, 2)
    client.put(chunks_of(1))
    monkeypatch.setattr(client.counting, "list", lambda path: [])
    reload(client)
    assert cap_of(client) == CAP
    assert len(list((tmp_path / "settings").iterdir())) == 1


def test_who_only_reads_keeps_the_cap_and_writes_nothing(tmp_path: Path) -> None:
    Client(tmp_path)
    newest = change(tmp_path, "a" * 16, cap_bytes=CAP)
    reader = Client(tmp_path, 2)
    newest.unlink()
    reload(reader)
    assert cap_of(reader) == CAP
    assert list((tmp_path / "settings").iterdir()) == []


def test_an_operators_cap_holds_though_newer_settings_were_lost(tmp_path: Path) -> None:
    Client(tmp_path)
    change(tmp_path, "a" * 16, cap_bytes=2 * CAP)
    lost = [change(tmp_path, letter * 16, cap_bytes=CAP) for letter in "bcdef"]
    client = Client(tmp_path, 2)
    client.put(chunks_of(1))
    for path in lost:
        path.unlink()
    tools.init(settings_for(tmp_path), cap_bytes=3 * CAP)
    for _ in range(3):
        reload(client)
    assert cap_of(client) == cap_of(Client(tmp_path, 3)) == 3 * CAP


def test_settings_are_said_again_when_their_directory_is_lost_and_no_more_often_than_needed(
    tmp_path: Path,
) -> None:
    Client(tmp_path)
    change(tmp_path, "a" * 16, cap_bytes=CAP)
    client = Client(tmp_path, 2)
    client.put(chunks_of(1))
    shutil.rmtree(tmp_path / "settings")
    for _ in range(5):
        reload(client)
    assert len(list((tmp_path / "settings").iterdir())) == 1
    assert cap_of(client) == cap_of(Client(tmp_path, 3)) == CAP


def test_on_a_full_disk_settings_are_tried_less_and_less_often(tmp_path: Path) -> None:
    Client(tmp_path)
    newest = change(tmp_path, "a" * 16, cap_bytes=CAP)
    files: list[FaultyFiles] = []

    def faulty(inner: Files) -> Files:
        files.append(FaultyFiles(inner))
        return files[0]

    client = Client(tmp_path, 2, wrap=faulty)
    client.put(chunks_of(1))
    newest.unlink()
    files[0].fail("write", FailureKind.NO_SPACE, path="settings/")
    for _ in range(40):
        reload(client)
    assert cap_of(client) == CAP
    assert len(list((tmp_path / "settings").iterdir())) <= 6
