"""What is no chunk key is refused at the door, whoever asks, before anything is begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharedfs_backend.store import ChunkId, LoadItem, PutItem
from tests.store.inline import Client, chunks_of, items_of, layout_of

CHUNKS = chunks_of(2)
LAYOUT = layout_of(CHUNKS)
KEY, CONTENT = next(iter(CHUNKS.items()))
WRONG = [b"", b"k" * 8, b"k" * 32, b"k" * 64]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_put_refuses_what_is_no_chunk_key_and_says_what_to_pass(
    tmp_path: Path, wrong: bytes
) -> None:
    client = Client(tmp_path)
    items = [*items_of(CHUNKS), PutItem(wrong, memoryview(CONTENT), LAYOUT)]
    with pytest.raises(ValueError, match=rf"key 2 of 3 has {len(wrong)} bytes.*Store\.keys"):
        client.store.put(items)
    assert client.ops() == {}
    assert client.store.stats()["queue_bytes"] == 0


@pytest.mark.parametrize("wrong", WRONG)
def test_whatever_takes_keys_refuses_it_too(tmp_path: Path, wrong: bytes) -> None:
    store = Client(tmp_path).store
    item = LoadItem(wrong, memoryview(bytearray(len(CONTENT))), LAYOUT)
    for ask in (
        lambda: store.lookup([KEY, wrong]),
        lambda: store.layouts_of([KEY, wrong]),
        lambda: store.submit_load([item]),
        lambda: store.unlock([KEY, wrong]),
        lambda: store.forget([KEY, wrong]),
    ):
        with pytest.raises(ValueError, match=f"has {len(wrong)} bytes: a chunk key has 16"):
            ask()


@pytest.mark.parametrize("wrong", [bytearray(16), list(KEY), "k" * 16, memoryview(KEY)])
def test_what_only_looks_like_a_chunk_key_is_refused_and_nobody_elses_store_fails_with_it(
    tmp_path: Path, wrong: bytes
) -> None:
    # A bytearray has no hash: it was found out by a worker, where it left every task of its batch
    # undecided for ever and made `close` raise.
    client = Client(tmp_path)
    with pytest.raises(TypeError, match=f"key 0 of 1 is no bytes: {type(wrong).__name__}"):
        client.store.submit_put([PutItem(wrong, memoryview(CONTENT), LAYOUT)])
    assert client.put(CHUNKS).stored == [True, True]
    client.store.close()


def test_what_is_no_layout_is_refused(tmp_path: Path) -> None:
    client = Client(tmp_path)
    with pytest.raises(TypeError, match="chunk 0 of 1: its layout is no LayoutDescriptor"):
        client.store.submit_put([PutItem(KEY, memoryview(CONTENT), None)])  # type: ignore[arg-type] # the test
    assert client.put(CHUNKS).stored == [True, True]


def test_what_the_message_says_to_pass_is_stored_and_found(tmp_path: Path) -> None:
    client = Client(tmp_path)
    keys = client.store.keys([ChunkId(b"h" * 32)])
    assert client.store.put([PutItem(keys[0], memoryview(CONTENT), LAYOUT)]).stored == [True]
    assert client.store.lookup(keys) == [True]
