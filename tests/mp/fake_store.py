"""A store in memory with the Store's interface, for testing the adapter without files.

Loads and stores run on threads of their own, so callbacks come from elsewhere, as in the real one.
A test can hold them (`hold`, `let_go`), make chunks fail, and look at what was asked. The gate is
real: after `cancel` nothing is copied. Layouts, locks and realms behave as the Store documents.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sharedfs_backend.exceptions import RealmRefused
from sharedfs_backend.layout import LayoutDescriptor, RealmDescriptor, Seal

SEAL = Seal(None)


@dataclass(frozen=True)
class FakeRealm:
    digest: bytes
    descriptor: RealmDescriptor


@dataclass(frozen=True)
class FakeUsage:
    live_bytes: int
    pack_count: int
    chunk_count: int
    cap_bytes: int | None = None


class FakeTask:
    """Shared by loads and puts: a gate over all items and one over each."""

    def __init__(self, items: Sequence[Any], on_done: Callable[[Any], None]) -> None:
        self.items = list(items)
        self.results = [False] * len(items)
        self.misses = [""] * len(items)
        self.stored = [False] * len(items)
        self.present = [False] * len(items)
        self.bytes_written = 0
        self.failed: str | None = None
        self.gate = threading.Lock()
        self.shut: set[int] = set()
        self.on_done = on_done
        self.cancels = 0

    def cancel(self) -> None:
        self._shut(range(len(self.items)))

    def cancel_keys(self, keys: Sequence[bytes]) -> None:
        self._shut(n for n, item in enumerate(self.items) if item.key in keys)

    def _shut(self, numbers: Any) -> None:
        with self.gate:
            self.cancels += 1
            self.shut.update(numbers)


@dataclass
class FakeStore:
    refuse_realms: bool = False
    chunks: dict[tuple[bytes, bytes], dict[LayoutDescriptor, bytes]] = field(default_factory=dict)
    locks: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    descriptors: list[RealmDescriptor] = field(default_factory=list)
    tasks: list[FakeTask] = field(default_factory=list)
    demands: list[Any] = field(default_factory=list)
    fail_loads: set[bytes] = field(default_factory=set)
    fail_puts: bool = False
    raise_on: set[str] = field(default_factory=set)
    healthy: bool = True
    closed: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._free = threading.Event()
        self._free.set()
        self._threads: list[threading.Thread] = []

    # what a test steers

    def hold(self) -> None:
        """Loads and stores submitted from now on wait before they copy."""
        self._free.clear()

    def let_go(self) -> None:
        self._free.set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    # the Store's interface

    def realm(self, descriptor: RealmDescriptor, canary: bytes = b"\0\0\0\0") -> FakeRealm:
        self._maybe_raise("realm")
        if self.refuse_realms:
            raise RealmRefused("the test says so")
        self.descriptors.append(descriptor)
        return FakeRealm(descriptor.digest(SEAL), descriptor)

    def keys(self, ids: Sequence[Any]) -> list[bytes]:
        self._maybe_raise("keys")
        return [hashlib.blake2b(repr(i).encode(), digest_size=16).digest() for i in ids]

    def lookup(
        self, keys: Sequence[bytes], *, realm: Any, layouts: Any = None, lock: bool = False
    ) -> list[bool]:
        self._maybe_raise("lookup")
        self.demands.append(layouts)
        hits = self._has(keys, realm=realm, layouts=layouts)
        if lock:
            with self._lock:
                self.locks.update(
                    (realm.digest, key) for key, hit in zip(keys, hits, strict=True) if hit
                )
        return hits

    def _has(self, keys: Sequence[bytes], *, realm: Any, layouts: Any = None) -> list[bool]:
        wanted = layouts if isinstance(layouts, list) else [layouts] * len(keys)
        found = []
        with self._lock:
            for key, layout in zip(keys, wanted, strict=True):
                copies = self.chunks.get((realm.digest, key), {})
                found.append(layout in copies if layout is not None else len(copies) == 1)
        return found

    def layouts_of(self, keys: Sequence[bytes], *, realm: Any) -> list[LayoutDescriptor | None]:
        with self._lock:
            copies = [self.chunks.get((realm.digest, key), {}) for key in keys]
        return [next(iter(some)) if len(some) == 1 else None for some in copies]

    def unlock(self, keys: Sequence[bytes], *, realm: Any) -> None:
        with self._lock:
            for key in keys:
                if self.locks[realm.digest, key] > 0:
                    self.locks[realm.digest, key] -= 1

    def forget(self, keys: Sequence[bytes], *, realm: Any) -> None:
        with self._lock:
            for key in keys:
                self.chunks.pop((realm.digest, key), None)

    def submit_load(
        self, items: Sequence[Any], *, realm: Any, deadline_seconds: float, on_done: Any
    ) -> FakeTask:
        self._maybe_raise("submit_load")
        task = FakeTask(items, on_done)
        self.tasks.append(task)
        self._run(lambda: self._load(task, realm))
        return task

    def submit_put(self, items: Sequence[Any], *, realm: Any, on_done: Any) -> FakeTask:
        self._maybe_raise("submit_put")
        task = FakeTask(items, on_done)
        self.tasks.append(task)
        self._run(lambda: self._put(task, realm))
        return task

    def usage(self) -> FakeUsage:
        self._maybe_raise("usage")
        with self._lock:
            sizes = [len(data) for copies in self.chunks.values() for data in copies.values()]
        return FakeUsage(sum(sizes), 1, len(sizes))

    def stats(self) -> dict[str, int | float]:
        return {"load_misses_checksum": 2, "bytes_loaded": 5, "catalog_chunks": len(self.chunks)}

    def close(self, timeout_seconds: float = 5.0) -> None:
        self.closed += 1
        self.let_go()

    # inside

    def _maybe_raise(self, name: str) -> None:
        if name in self.raise_on:
            raise OSError(f"{name} fails in this test")

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _load(self, task: FakeTask, realm: Any) -> None:
        self._free.wait(10)
        for number, item in enumerate(task.items):
            data = self.chunks.get((realm.digest, item.key), {}).get(item.layout)
            if data is None or item.key in self.fail_loads:
                continue
            if len(data) > len(item.buffer) or (item.exact and len(data) < len(item.buffer)):
                continue
            with task.gate:
                if number not in task.shut:
                    item.buffer[: len(data)] = data
                    task.results[number] = True
        task.on_done(task)

    def _put(self, task: FakeTask, realm: Any) -> None:
        self._free.wait(10)
        for number, item in enumerate(task.items):
            with task.gate, self._lock:
                if number in task.shut or self.fail_puts:
                    continue
                copies = self.chunks.setdefault((realm.digest, item.key), {})
                task.stored[number] = item.layout not in copies
                task.present[number] = True
                copies.setdefault(item.layout, bytes(item.buffer))
                task.bytes_written += len(item.buffer) * task.stored[number]
        task.on_done(task)
