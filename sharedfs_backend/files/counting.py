"""CountingFiles: any `Files`, with every operation counted and logged. For tests and benchmarks.

The budgets of the request path are asserted through it, exactly. An operation counts when it is
tried: a failure costs a round trip too. Thread-safe; the log keeps the last `log_max` entries (I9).
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from sharedfs_backend.files.api import Buffer, Files, Handle, write_operations


class Operation(NamedTuple):
    """One operation as tried: `offset` and `bytes` are 0 where it has none."""

    op: str
    path: str
    offset: int = 0
    bytes: int = 0


class CountingFiles:
    """`inner`, counted. `counts` is by operation name; `log` is in the order of the attempts."""

    def __init__(self, inner: Files, *, log_max: int = 100_000) -> None:
        self.inner = inner
        self.counts: Counter[str] = Counter()
        self._log: deque[Operation] = deque(maxlen=log_max)
        self._lock = threading.Lock()

    @property
    def log(self) -> list[Operation]:
        """A copy of the logged operations, oldest first."""
        with self._lock:
            return list(self._log)

    def reset(self) -> None:
        """Forget what was counted and logged so far."""
        with self._lock:
            self.counts = Counter()
            self._log.clear()

    def _note(self, op: str, path: str, offset: int = 0, size: int = 0, times: int = 1) -> None:
        with self._lock:
            self.counts[op] += times
            self._log.append(Operation(op, path, offset, size))

    def create(self, path: str) -> Handle:
        self._note("create", path)
        return self.inner.create(path)

    def open_read(self, path: str) -> Handle:
        self._note("open", path)
        return self.inner.open_read(path)

    def open_write(self, path: str) -> Handle:
        self._note("open", path)
        return self.inner.open_write(path)

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        self._note("read", handle.path, offset, into.nbytes)
        return self.inner.read(handle, offset, into)

    def write(self, handle: Handle, offset: int, parts: Sequence[Buffer]) -> None:
        size = sum(memoryview(part).nbytes for part in parts)
        self._note("write", handle.path, offset, size, times=write_operations(len(parts)))
        self.inner.write(handle, offset, parts)

    def flush(self, handle: Handle, offset: int, length: int) -> None:
        self._note("flush", handle.path, offset, length)
        self.inner.flush(handle, offset, length)

    def close(self, handle: Handle) -> None:
        self._note("close", handle.path)
        self.inner.close(handle)

    def unlink(self, path: str) -> None:
        self._note("unlink", path)
        self.inner.unlink(path)

    def list(self, path: str) -> list[str]:
        self._note("list", path)
        return self.inner.list(path)

    def make_dir(self, path: str) -> None:
        self._note("mkdir", path)
        self.inner.make_dir(path)

    def size(self, path: str) -> int:
        self._note("stat", path)
        return self.inner.size(path)

    def free_bytes(self) -> int | None:
        self._note("stat", "")
        return self.inner.free_bytes()
