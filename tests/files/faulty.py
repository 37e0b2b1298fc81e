"""FaultyFiles: any `Files`, failing or hanging where a test says so. Deterministic, no time.

`fail` plans failures by operation, path and count; `hold` makes calls wait until `release`. Both
match on the operation's name ("" for all) and on a part of the path. Planned failures happen before
the inner call, so a failed operation had no effect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sharedfs_backend.files import Buffer, FailureKind, FileFailure, Files, Handle

R = TypeVar("R")


@dataclass(slots=True)
class _Plan:
    op: str
    path: str
    kind: FailureKind
    after: int
    times: int


class FaultyFiles:
    """`inner`, with plans. `tried` lists (operation, path) in order, failed ones too."""

    def __init__(self, inner: Files) -> None:
        self.inner = inner
        self.tried: list[tuple[str, str]] = []
        self._plans: list[_Plan] = []
        self._held: list[tuple[str, str, threading.Event, threading.Event]] = []
        self._lock = threading.Lock()
        self.working = 0
        """Calls that are being done now, those that wait for a `release` not among them."""

    def fail(
        self, op: str, kind: FailureKind, *, path: str = "", after: int = 0, times: int = 1 << 30
    ) -> None:
        """Let `after` matching operations through, then fail `times` of them."""
        self._plans.append(_Plan(op, path, kind, after, times))

    def hold(self, op: str, *, path: str = "") -> tuple[threading.Event, threading.Event]:
        """Matching operations wait: (set when one has arrived, to be set to let all go)."""
        arrived, release = threading.Event(), threading.Event()
        self._held.append((op, path, arrived, release))
        return arrived, release

    def heal(self) -> None:
        """No more failures; what waits goes on."""
        self._plans.clear()
        for *_, release in self._held:
            release.set()
        self._held.clear()

    def _do(self, op: str, path: str, work: Callable[[], R]) -> R:
        with self._lock:
            self.tried.append((op, path))
            kind = self._planned(op, path)
            held = [found for found in self._held if found[0] in ("", op) and found[1] in path]
        for _, _, arrived, release in held:
            arrived.set()
            release.wait()
        if kind is not None:
            raise FileFailure(kind, op, path, "planned by the test")
        return self._worked(work)

    def _worked(self, work: Callable[[], R]) -> R:
        with self._lock:
            self.working += 1
        try:
            return work()
        finally:
            with self._lock:
                self.working -= 1

    def _planned(self, op: str, path: str) -> FailureKind | None:
        for plan in self._plans:
            if plan.op in ("", op) and plan.path in path:
                if plan.after:
                    plan.after -= 1
                elif plan.times:
                    plan.times -= 1
                    return plan.kind
        return None

    def create(self, path: str) -> Handle:
        return self._do("create", path, lambda: self.inner.create(path))

    def open_read(self, path: str) -> Handle:
        return self._do("open", path, lambda: self.inner.open_read(path))

    def open_write(self, path: str) -> Handle:
        return self._do("open", path, lambda: self.inner.open_write(path))

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        return self._do("read", handle.path, lambda: self.inner.read(handle, offset, into))

    def write(self, handle: Handle, offset: int, parts: Sequence[Buffer]) -> None:
        self._do("write", handle.path, lambda: self.inner.write(handle, offset, parts))

    def flush(self, handle: Handle, offset: int, length: int) -> None:
        self._do("flush", handle.path, lambda: self.inner.flush(handle, offset, length))

    def close(self, handle: Handle) -> None:
        """A planned failure closes the inner handle all the same: the handle is gone either way."""
        try:
            self._do("close", handle.path, lambda: None)
        finally:
            self._worked(lambda: self.inner.close(handle))

    def unlink(self, path: str) -> None:
        self._do("unlink", path, lambda: self.inner.unlink(path))

    def list(self, path: str) -> list[str]:
        return self._do("list", path, lambda: self.inner.list(path))

    def make_dir(self, path: str) -> None:
        self._do("mkdir", path, lambda: self.inner.make_dir(path))

    def size(self, path: str) -> int:
        return self._do("stat", path, lambda: self.inner.size(path))

    def free_bytes(self) -> int | None:
        return self._do("stat", "", self.inner.free_bytes)
