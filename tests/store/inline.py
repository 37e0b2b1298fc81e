"""A world for store tests: one thread, a clock that moves when told, seeded randomness.

Work submitted to a lane runs before `submit` returns to the outermost caller, one piece after the
other, so a test reads as a transcript: one act, then what is true. No sleeps, no threads.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sharedfs_backend.files import CountingFiles, Files, LocalFiles, Profile
from sharedfs_backend.layout import LayoutDescriptor
from sharedfs_backend.rules import Rules
from sharedfs_backend.runtime import Lane, Waiter
from sharedfs_backend.settings import Settings
from sharedfs_backend.store import PutItem, PutTask, Store

KIB, MIB = 1 << 10, 1 << 20


class Flag:
    """A waiter in a world without waiting: waiting for what has not happened fails at once."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout_seconds: float | None = None) -> bool:
        return self._set


class InlineRuntime:
    """See the module. `pending` holds work back while `held` is True."""

    def __init__(self, seed: int = 1) -> None:
        self.time = 1000.0
        self.held = False
        self.pending: deque[Callable[[], None]] = deque()
        self._random = random.Random(seed)
        self._running = False

    def now(self) -> float:
        return self.time

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def waiter(self) -> Waiter:
        return Flag()

    def submit(self, lane: Lane, work: Callable[[], None]) -> None:
        self.pending.append(work)
        if not self._running and not self.held:
            self.run()

    def run(self) -> None:
        self._running = True
        try:
            while self.pending:
                self.pending.popleft()()
        finally:
            self._running = False

    def close(self, timeout_seconds: float) -> None:
        self.pending.clear()


def settings_for(root: Path, **changes: object) -> Settings:
    """Short times, no linger."""
    base = Settings(
        root=str(root),
        linger_seconds=0.0,
        lease_seconds=100.0,
        buffer_ttl_seconds=40.0,
        load_deadline_seconds=5.0,
        drop_delay_seconds=10.0,
        refresh_seconds=1.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type] # field names


class Client:
    """A store on real files below `root`, counted, in an inline world."""

    def __init__(
        self,
        root: Path,
        seed: int = 1,
        *,
        rules: Rules | None = None,
        profile: Profile | None = None,
        profile_name: str | None = None,
        wrap: Callable[[Files], Files] = lambda files: files,
        **changes: object,
    ) -> None:
        if profile_name is not None:
            changes["profile"] = profile_name
        self.runtime = InlineRuntime(seed)
        local = LocalFiles(str(root)) if profile is None else LocalFiles(str(root), profile)
        self.counting = CountingFiles(wrap(local))
        self.store = Store(
            settings=settings_for(root, **changes),
            runtime=self.runtime,
            files=self.counting,
            rules=rules,
        )
        self.counting.reset()

    def pass_time(self, seconds: float, step: float = 1.0) -> None:
        """Tick through `seconds`."""
        end = self.runtime.time + seconds
        while self.runtime.time < end:
            self.store.tick()
            self.runtime.time = min(end, self.runtime.time + step)
        self.store.tick()

    def refresh(self) -> None:
        """One complete pass over the others' journals."""
        self.runtime.time += 2.0
        self.store.tick()

    def put(self, chunks: dict[bytes, bytes], *, rank: int = 0) -> PutTask:
        return self.store.put(items_of(chunks, rank))

    def load(self, chunks: dict[bytes, bytes]) -> list[bool]:
        """Which chunks load; every one that does has the right bytes."""
        buffers = [bytearray(len(data)) for data in chunks.values()]
        layout = layout_of(chunks)
        results = self.store.load(list(chunks), buffers, layout=layout)
        for good, buffer, data in zip(results, buffers, chunks.values(), strict=True):
            assert not good or bytes(buffer) == data
        return results

    def ops(self) -> dict[str, int]:
        """Operations since the last reset, by name."""
        return {name: count for name, count in self.counting.counts.items() if count}


def chunks_of(count: int, nbytes: int = 8 * KIB, seed: int = 7) -> dict[bytes, bytes]:
    """Key -> content, deterministic."""
    source = random.Random(seed)
    return {source.randbytes(16): source.randbytes(nbytes) for _ in range(count)}


def layout_of(chunks: dict[bytes, bytes]) -> LayoutDescriptor:
    size = len(next(iter(chunks.values())))
    return LayoutDescriptor(("uint8",), ((size,),), "RAW", 16)


def items_of(chunks: dict[bytes, bytes], rank: int = 0) -> list[PutItem]:
    layout = layout_of(chunks)
    return [PutItem(key, memoryview(data), layout, rank) for key, data in chunks.items()]


def quick_settings(root: Path) -> Settings:
    """For tools, which live in real time: delays of a fraction of a second."""
    return settings_for(
        root,
        lease_seconds=0.6,
        buffer_ttl_seconds=0.3,
        load_deadline_seconds=0.1,
        refresh_seconds=0.05,
        drop_delay_seconds=0.2,
    )
