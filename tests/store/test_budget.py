"""The law: what each request costs in file operations, exactly."""

from __future__ import annotations

from pathlib import Path

from sharedfs_backend.store import LoadItem
from tests.store.inline import KIB, MIB, Client, chunks_of, items_of, layout_of

NEVER_ON_A_REQUEST = {"stat", "list", "unlink", "mkdir", "flush"}


def test_a_lookup_costs_nothing_hit_or_miss(tmp_path: Path) -> None:
    client = Client(tmp_path)
    stored, unknown = chunks_of(64), chunks_of(64, seed=8)
    client.put(stored)
    client.counting.reset()
    assert client.store.lookup([*stored, *unknown]) == [True] * 64 + [False] * 64
    assert client.ops() == {}


def test_a_cold_load_of_64_contiguous_chunks_is_one_open_and_a_read_for_each_piece(
    tmp_path: Path,
) -> None:
    writer, reader = Client(tmp_path, 1), Client(tmp_path, 2)
    chunks = chunks_of(64, 256 * KIB)
    writer.put(chunks)
    reader.refresh()
    reader.store.lookup(list(chunks))  # opens the realm, once for each process
    reader.counting.reset()
    assert reader.load(chunks) == [True] * 64
    assert reader.ops() == {"open": 1, "read": 4}  # 16 MiB in pieces of 4 MiB


def test_a_warm_load_opens_nothing(tmp_path: Path) -> None:
    client = Client(tmp_path)
    chunks = chunks_of(64, 256 * KIB)
    client.put(chunks)
    client.load(chunks)
    client.counting.reset()
    assert client.load(chunks) == [True] * 64
    assert client.ops() == {"read": 4}


def test_a_small_store_is_one_create_two_writes_one_close_and_one_append(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(chunks_of(1))  # the journal exists from here on
    client.counting.reset()
    client.put(chunks_of(64, seed=9))
    assert [operation.op for operation in client.counting.log] == [
        "create",
        "write",  # header and payload
        "write",  # trailer
        "close",
        "open",  # the journal, without creating it
        "write",
        "close",
    ]


def test_a_large_store_is_several_packs_and_still_one_append(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put(chunks_of(1))
    client.counting.reset()
    client.put(chunks_of(16, 4 * MIB))
    packs = [op for op in client.counting.log if op.path.startswith("packs/")]
    journal = [op.op for op in client.counting.log if op.path.startswith("journals/")]
    assert sum(op.op == "create" for op in packs) == 4
    assert sum(op.op == "close" for op in packs) == 4
    assert sum(op.op == "write" for op in packs) == 4 * 2  # header and payload, trailer
    assert journal == ["open", "write", "close"]
    assert not NEVER_ON_A_REQUEST & set(client.ops())


def test_storing_what_is_there_costs_nothing(tmp_path: Path) -> None:
    client = Client(tmp_path)
    chunks = chunks_of(8)
    client.put(chunks)
    client.counting.reset()
    task = client.store.put(items_of(chunks))
    assert (task.stored, task.present) == ([False] * 8, [True] * 8)
    assert client.ops() == {}


def test_a_lookup_for_another_layout_misses_without_an_operation(tmp_path: Path) -> None:
    client = Client(tmp_path)
    chunks = chunks_of(4)
    client.put(chunks)
    client.counting.reset()
    other = layout_of(chunks_of(1, 4 * KIB))
    assert client.store.lookup(list(chunks), layouts=other) == [False] * 4
    assert client.ops() == {}


def test_a_refresh_costs_two_listings_and_three_operations_for_each_other_writer(
    tmp_path: Path,
) -> None:
    writers = [Client(tmp_path, seed) for seed in range(1, 5)]
    for seed, writer in enumerate(writers):
        writer.put(chunks_of(2, seed=seed))
    for _ in range(3):
        writers[0].refresh()
    writers[0].counting.reset()
    writers[0].refresh()
    assert writers[0].ops() == {"list": 2, "open": 3, "read": 3, "close": 3}


def test_a_load_into_a_larger_buffer_counts_the_bytes_that_came(tmp_path: Path) -> None:
    client = Client(tmp_path)
    chunks = chunks_of(1, 8 * KIB)
    client.put(chunks)
    (key,) = chunks
    item = LoadItem(key, memoryview(bytearray(16 * KIB)), layout_of(chunks), exact=False)
    task = client.store.submit_load([item])
    assert task.results == [True]
    assert task.bytes_loaded == client.store.stats()["bytes_loaded"] == 8 * KIB
