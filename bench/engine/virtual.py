"""Virtual: the product's own store under a clock that the bench moves, on real files full of holes.

Everything decides as in production: catalog, journals, refresh, credits, retention, sweeps, with
the default lease, drop delay and refresh. Only three things are replaced: time (hours pass in
seconds), threads (work runs where it is submitted) and the payload of packs (left out of the files,
which stay sparse; headers, trailers and journals are written). So hit rates and counts are the
product's; what a load or store takes is not measured here.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sharedfs_backend.files import Buffer, Handle, LocalFiles
from sharedfs_backend.layout import LayoutDescriptor
from sharedfs_backend.runtime import Lane, Waiter
from sharedfs_backend.settings import Settings
from sharedfs_backend.store import PutItem, PutTask, Store

HOLE_BYTES = 64 << 10
"""Parts of a write from this size on are payload, and become a hole; headers are smaller."""
TICK_SECONDS_MIN = 0.05


class SparseFiles(LocalFiles):
    """Files whose large parts are not written, only passed over."""

    __slots__ = ()

    def write(self, handle: Handle, offset: int, parts: Sequence[Buffer]) -> None:
        for part in parts:
            view = memoryview(part).cast("B")
            if view.nbytes < HOLE_BYTES or not handle.path.startswith("packs/"):
                super().write(handle, offset, [view])
            offset += view.nbytes


class VirtualRuntime:
    """A clock that moves when told or waited for; work runs before `submit` returns."""

    def __init__(self, seed: int, start: float = 1000.0) -> None:
        self.time = start
        self._random = random.Random(seed)
        self._pending: deque[Callable[[], None]] = deque()
        self._is_running = False

    def now(self) -> float:
        return self.time

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def submit(self, lane: Lane, work: Callable[[], None]) -> None:
        self._pending.append(work)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._pending:
                self._pending.popleft()()
        finally:
            self._is_running = False

    def waiter(self) -> Waiter:
        return _Flag(self)

    def close(self, timeout_seconds: float) -> None:
        self._pending.clear()


class _Flag:
    """Waiting passes the time."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        self._runtime, self._is_set = runtime, False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_seconds: float | None = None) -> bool:
        if not self._is_set:
            self._runtime.time += timeout_seconds or 0.0
        return self._is_set


class VirtualStore:
    """One replica's store. Chunks are numbers; all have `chunk_bytes`."""

    def __init__(
        self,
        root: Path,
        chunk_bytes: int,
        *,
        seed: int,
        cap_bytes: int | None = None,
        start: float = 0.0,
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.chunk_bytes, self._start = chunk_bytes, start
        self._runtime = VirtualRuntime(seed)
        settings = Settings(root=str(root), linger_seconds=0.0, audit=False)
        self._store = Store(
            settings=replace(settings, cap_bytes=cap_bytes),
            runtime=self._runtime,
            files=SparseFiles(str(root)),
        )
        self._origin = self._runtime.time - start
        self._payload = memoryview(bytes(chunk_bytes))
        self._layout = LayoutDescriptor(("uint8",), ((chunk_bytes,),), "RAW", 0)
        self._next_tick = self._runtime.time
        self._tasks: deque[PutTask] = deque()
        self.chunks_written = 0
        self.chunks_refused = 0
        """Put, but neither written nor there already."""

    def advance(self, now: float) -> None:
        """Live through the time until `now` (seconds since the bench began)."""
        until = self._origin + now
        while self._next_tick <= until:
            self._runtime.time = max(self._runtime.time, self._next_tick)
            wait = self._store.tick()
            self._next_tick = self._runtime.time + max(wait, TICK_SECONDS_MIN)
        self._runtime.time = max(self._runtime.time, until)
        self._settle()

    def depth(self, blocks: Sequence[int]) -> int:
        """Leading chunks a lookup finds."""
        found = self._store.lookup([key_of(block) for block in blocks], layouts=self._layout)
        return found.index(False) if False in found else len(found)

    def put(self, blocks: Sequence[int]) -> None:
        """Store these, in prefix order."""
        if not blocks:
            return
        items = [PutItem(key_of(block), self._payload, self._layout) for block in blocks]
        self._tasks.append(self._store.submit_put(items))
        self._settle()

    @property
    def chunks(self) -> int:
        """Distinct ones in the namespace, as far as this store knows."""
        return self._store.usage().chunk_count

    @property
    def total_bytes(self) -> int:
        """Everything below the root, as the product counts it."""
        return self._store.usage().total_bytes

    def stats(self) -> dict[str, float]:
        return self._store.stats()

    def close(self) -> None:
        self._store.close(timeout_seconds=1.0)
        self._settle()

    def _settle(self) -> None:
        while self._tasks and self._tasks[0].is_done:
            task = self._tasks.popleft()
            self.chunks_written += sum(task.stored)
            self.chunks_refused += len(task.present) - sum(
                a or b for a, b in zip(task.present, task.stored, strict=True)
            )


def key_of(block: int) -> bytes:
    """A chunk's key: any bijection will do, well spread."""
    return (block * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)).to_bytes(16, "big")
