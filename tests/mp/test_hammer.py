"""Many threads on one adapter and the real store: whatever is reported loaded is right (I2, I7)."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from sharedfs_backend.mp import SharedFSL2Adapter
from tests.mp.helpers import contents, desc, identify, keys, memory

THREADS, ROUNDS, KEYS = 6, 25, 24
FREED = 0xEE
SEED = 20260729


class Desk:
    """Hands results to the threads that wait for them, as LMCache's controllers do."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self._stores: dict[int, Any] = {}
        self._lock = threading.Lock()

    def wait(self, query: Any, task: int) -> Any:
        pause = threading.Event()
        for _ in range(20_000):
            result = query(task)
            if result is not None:
                return result
            pause.wait(0.001)
        raise AssertionError(f"task {task} never ended")

    def stored(self, task: int) -> Any:
        with self._lock:
            self._stores |= self.adapter.pop_completed_store_tasks()
            return self._stores.pop(task, None)


def client(desk: Desk, rng: random.Random, freed: list[Any], errors: list[str]) -> None:
    adapter = desk.adapter
    for _ in range(ROUNDS):
        first, count = rng.randrange(KEYS), rng.randrange(1, 9)
        salt = rng.choice(["", "s"])
        wanted = keys(count, first=first, salt=salt)
        lookup = adapter.submit_lookup_and_lock_task(wanted, {0: desc()})
        bitmap = desk.wait(adapter.query_lookup_and_lock_result, lookup)
        hits = [wanted[place] for place in bitmap.get_indices_list()]
        if hits:
            target = memory(len(hits), fill=None)
            task = adapter.submit_load_task(hits, target)
            if rng.random() < 0.3:
                adapter.submit_unlock(hits)
                for obj in target:
                    obj.raw_data.fill_(FREED)
                freed += target
            else:
                loaded = desk.wait(adapter.query_load_result, task)
                adapter.submit_unlock(hits)
                for place in loaded.get_indices_list():
                    expected = value(hits[place])
                    if set(contents([target[place]])[0]) != {expected}:
                        errors.append(f"{hits[place]} is not {expected}")
        source = [memory(1, fill=value(key))[0] for key in wanted]
        task = adapter.submit_store_task(wanted, source)
        desk.wait(desk.stored, task)
        if rng.random() < 0.1:
            adapter.delete(wanted[:1])


def value(key: Any) -> int:
    return (int.from_bytes(key.chunk_hash, "big") * 7 + len(key.cache_salt) * 101 + 1) & 0x7F


@pytest.mark.parametrize("linger_seconds", [0.0, 0.005])
def test_threads_that_store_load_and_give_up_the_same_keys(
    tmp_path: Path, linger_seconds: float
) -> None:
    params = {"root": str(tmp_path / "ns"), "linger_seconds": linger_seconds}
    adapter = SharedFSL2Adapter(params, identify=identify)
    desk, freed, errors = Desk(adapter), [], []  # type: ignore[var-annotated]
    threads = [
        threading.Thread(target=client, args=(desk, random.Random(SEED + n), freed, errors))
        for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    numbers = adapter.metrics()
    adapter.close()
    assert errors == []
    assert all(set(data) == {FREED} for data in contents(freed))
    assert freed
    assert numbers["adapter_locks"] == 0
    assert numbers["adapter_failures"] == 0
    assert numbers["chunks_loaded"] > 0
