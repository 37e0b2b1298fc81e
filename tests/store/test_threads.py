"""Many threads on one store, two stores in one process, a fork: real threads, short times.

What is asserted holds whatever the interleaving: bytes are right, every task ends, no thread fails
and none is left, nothing stays in flight.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sharedfs_backend.files import FailureKind, LocalFiles
from sharedfs_backend.runtime import ThreadRuntime
from sharedfs_backend.store import PutTask, Store
from tests.files.faulty import FaultyFiles
from tests.store.inline import MIB, chunks_of, items_of, layout_of, quick_settings

ROUNDS = 60
JOIN_SECONDS = 60.0


@pytest.fixture
def failed() -> Iterator[list[threading.ExceptHookArgs]]:
    """What threads died of, or reported as our own mistake."""
    found: list[threading.ExceptHookArgs] = []
    before = threading.excepthook
    threading.excepthook = found.append
    yield found
    threading.excepthook = before


def run_all(*works: object) -> None:
    threads = [threading.Thread(target=work) for work in works]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS)
        assert not thread.is_alive()


def churn(store: Store, seed: int, done: list[PutTask], wrong: list[bytes]) -> None:
    """Store, look up, load, forget, drop: documents that all threads share."""
    source = random.Random(seed)
    for _ in range(ROUNDS):
        chunks = chunks_of(4, 4096, seed=source.randrange(12))
        keys, layout = list(chunks), layout_of(chunks)
        match source.randrange(5):
            case 0 | 1:
                done.append(store.put(items_of(chunks), timeout_seconds=JOIN_SECONDS))
            case 2 | 3:
                hits = store.lookup(keys, layouts=layout, lock=True)
                buffers = [bytearray(4096) for _ in keys]
                loaded = store.load(keys, buffers, layout=layout)
                for key, good, buffer in zip(keys, loaded, buffers, strict=True):
                    if good and bytes(buffer) != chunks[key]:
                        wrong.append(key)
                store.unlock([key for key, hit in zip(keys, hits, strict=True) if hit])
                store.stats()
            case _:
                packs = [pack.name for pack in store.parts.ledger.packs() if pack.live]
                if packs:
                    store.parts.sweeper.disown(packs[:1])
                store.parts.sweeper.ask()


def test_many_threads_and_two_stores_keep_bytes_right_and_leave_nothing(
    tmp_path: Path, failed: list[threading.ExceptHookArgs]
) -> None:
    before = threading.active_count()
    settings = replace(quick_settings(tmp_path), cap_bytes=64 * MIB)
    stores = [Store(settings=settings) for _ in range(2)]
    done: list[PutTask] = []
    wrong: list[bytes] = []
    run_all(*(lambda seed=seed: churn(stores[seed % 2], seed, done, wrong) for seed in range(6)))
    assert all(task.is_done for task in done)
    for store in stores:
        store.close(JOIN_SECONDS)
        assert store.stats()["in_flight_bytes"] == 0
        assert store.stats()["queue_bytes"] == 0
        assert store.stats()["open_packs"] == 0
    assert (wrong, failed) == ([], [])
    assert threading.active_count() <= before


def test_many_threads_on_a_failing_file_system_end_all_the_same(
    tmp_path: Path, failed: list[threading.ExceptHookArgs]
) -> None:
    files = FaultyFiles(LocalFiles(str(tmp_path)))
    runtime = ThreadRuntime()
    store = Store(settings=quick_settings(tmp_path), files=files, runtime=runtime)
    done: list[PutTask] = []
    wrong: list[bytes] = []
    over = threading.Event()

    def tick() -> None:
        source = random.Random(1)
        ops = ("create", "open", "read", "write", "close", "unlink", "list")
        while not over.is_set():
            kind = source.choice([FailureKind.IO, FailureKind.NO_SPACE, FailureKind.STALE])
            files.fail(source.choice(ops), kind, after=source.randrange(4), times=2)
            store.tick()
            over.wait(0.002)
            files._plans.clear()

    def work() -> None:
        run_all(*(lambda seed=seed: churn(store, seed, done, wrong) for seed in range(4)))
        over.set()

    run_all(tick, work)
    assert all(task.is_done for task in done)
    files.heal()
    store.close(JOIN_SECONDS)
    runtime.close(JOIN_SECONDS)
    assert (wrong, failed) == ([], [])
    assert store.stats()["in_flight_bytes"] == 0


def test_closing_in_the_midst_of_everything_ends_everything(
    tmp_path: Path, failed: list[threading.ExceptHookArgs]
) -> None:
    store = Store(settings=quick_settings(tmp_path))
    told: list[PutTask] = []
    tasks = [
        store.submit_put(items_of(chunks_of(4, 4096, seed=seed)), on_done=told.append)
        for seed in range(200)
    ]
    store.close(0.0)
    assert all(task.is_done for task in tasks)
    assert len(told) == 200
    assert failed == []


def test_threads_of_a_forked_child_open_one_store_between_them(tmp_path: Path) -> None:
    store = Store(settings=quick_settings(tmp_path))
    store.put(items_of(chunks_of(1)))
    pid = os.fork()
    if pid == 0:
        found: list[object] = []
        threads = [threading.Thread(target=lambda: found.append(store.parts)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_SECONDS)
        good = len(found) == 4 and len(set(map(id, found))) == 1 and store.healthy
        os._exit(0 if good and store.stats()["sick"] == 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    store.close()


def test_the_first_lookup_of_a_process_does_not_wait_for_a_file_system_that_hangs(
    tmp_path: Path,
) -> None:
    files = FaultyFiles(LocalFiles(str(tmp_path)))
    runtime = ThreadRuntime()
    store = Store(settings=quick_settings(tmp_path), files=files, runtime=runtime)
    arrived, _ = files.hold("")
    looked: list[list[bool]] = []
    thread = threading.Thread(target=lambda: looked.append(store.lookup(list(chunks_of(2)))))
    thread.start()
    thread.join(JOIN_SECONDS)
    assert looked == [[False, False]]
    assert arrived.wait(JOIN_SECONDS)
    files.heal()
    store.close()
    runtime.close(JOIN_SECONDS)
