"""Opening a namespace whose NAMESPACE.json a crash has torn or filled with garbage (I5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedfs_backend.exceptions import NamespaceError
from sharedfs_backend.layout import NAMESPACE_PATH, Seal, decode_namespace, encode_namespace
from tests.store.inline import Client, chunks_of

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


def test_garbage_in_a_directory_that_is_no_namespace_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAMESPACE_PATH).write_bytes(b"somebody else's")
    with pytest.raises(NamespaceError, match="use another root"):
        Client(tmp_path)
    assert (tmp_path / NAMESPACE_PATH).read_bytes() == b"somebody else's"
