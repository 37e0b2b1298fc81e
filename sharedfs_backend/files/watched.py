"""WatchedFiles: any `Files`, with its calls counted, timed and refused while the system is sick.

Each call is known from its start to its return, so one that never returns is seen: `check` (called
now and then, and by every new call) reports a call older than `hang_seconds` to the breaker once,
and counts it as lost until it comes back. While the breaker is open every call but `close` and the
one probe raises SICK without touching the file system (I6). `close` always goes through: a handle
kept would leak (I9).

Thread-safe; the lock is held around arithmetic. It knows the meaning of no path, but counts those
of the packs apart: what requests cost is theirs, the rest is mostly the background's.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol, TypeVar

from sharedfs_backend.files.api import (
    Buffer,
    CachedRead,
    CheckedLoad,
    Files,
    Handle,
    HashedRead,
    HashedWrite,
    write_operations,
)
from sharedfs_backend.files.failure import FailureKind, FileFailure
from sharedfs_backend.files.health import Health, State
from sharedfs_backend.native import Extent, Loaded, NativeHasher, Part, steps

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)

ANSWERS = frozenset({"create", "open", "read", "write", "unlink", "list", "mkdir", "stat"})
"""Operations whose success proves that a server answered; close and flush may be local."""


PACKS = "packs/"

LOOK_SECONDS = 0.25
"""New calls look for hanging ones at most so often; it costs them next to nothing."""


class Clock(Protocol):
    """The part of `Runtime` that is needed here."""

    def now(self) -> float: ...


class _Call:
    __slots__ = ("lost", "op", "path", "probe", "started")

    def __init__(self, op: str, path: str, started: float, probe: bool) -> None:
        self.op = op
        self.path = path
        self.started = started
        self.probe = probe
        self.lost = False


class WatchedFiles:
    """`inner`, watched. `operations` counts calls by name, `pack_operations` those on packs among
    them, `failures` by kind."""

    def __init__(self, inner: Files, clock: Clock, health: Health | None = None) -> None:
        self.inner = inner
        self.health = health if health is not None else Health()
        self.operations: Counter[str] = Counter()
        self.pack_operations: Counter[str] = Counter()
        self.failures: Counter[FailureKind] = Counter()
        self._now = clock.now
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}  # in order of their start
        self._next = 0
        self._look_at = 0.0
        self._lost = 0

    @property
    def healthy(self) -> bool:
        """Whether calls are let through. No I/O, no waiting."""
        return self.health.state is State.WELL

    def check(self) -> bool:
        """Look for calls that hang; returns `healthy`. Cheap, no I/O."""
        with self._lock:
            sick = self._find_lost(self._now())
        self._tell_sick(sick)
        return self.healthy

    def probe_due(self) -> bool:
        """Whether the next call will be let through as a probe. A background task asks this while
        unhealthy and, if so, makes any small call (it may hang: never on a request's thread)."""
        self.check()
        with self._lock:
            return self.health.probe_due(self._now())

    def stats(self) -> dict[str, float]:
        """Counters and gauges, flat."""
        self.check()
        with self._lock:
            oldest = next(iter(self._calls.values()), None)
            return {
                "sick": float(self.health.state is not State.WELL),
                "times_sick": self.health.times_sick,
                "calls_in_flight": len(self._calls),
                "calls_lost": self._lost,
                "oldest_call_seconds": self._now() - oldest.started if oldest else 0.0,
                **{f"operations_{op}": count for op, count in self.operations.items()},
                **{f"pack_operations_{op}": n for op, n in self.pack_operations.items()},
                **{f"failures_{kind.value}": count for kind, count in self.failures.items()},
            }

    def create(self, path: str) -> Handle:
        return self._call("create", path, self.inner.create, path)

    def open_read(self, path: str) -> Handle:
        return self._call("open", path, self.inner.open_read, path)

    def open_write(self, path: str) -> Handle:
        return self._call("open", path, self.inner.open_write, path)

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        return self._call("read", handle.path, self.inner.read, handle, offset, into)

    def counted(self, read_cached: CachedRead) -> CachedRead:
        """`read_cached` of the inner layer, counted as reads where it brought anything. It says
        nothing about the file system's health: it did not ask it."""

        def read(handle: Handle, offset: int, into: Sequence[memoryview]) -> int:
            got = read_cached(handle, offset, into)
            if got:
                with self._lock:
                    self._count("read", handle.path, 1)
            return got

        return read

    def counted_hashed(self, read_hashed: HashedRead, step_bytes: int) -> HashedRead:
        """The same for `read_hashed`, as the reads of `step_bytes` it stands for: memory is
        read in smaller steps, which are no operations."""

        def read(handle: Handle, offset: int, extents: Sequence[Extent]) -> list[bytes] | None:
            digests = read_hashed(handle, offset, extents)
            if digests is not None:
                with self._lock:
                    self._count("read", handle.path, steps(extents, step_bytes))
            return digests

        return read

    def watched_hashed(self, write_hashed: HashedWrite, step_bytes: int) -> HashedWrite:
        """`write_hashed` of the inner layer, watched like a write, and counted as the writes of
        `step_bytes` it stands for."""

        def write(
            handle: Handle, offset: int, extents: Sequence[Extent], hasher: NativeHasher
        ) -> list[bytes] | None:
            result = self._call("write", handle.path, write_hashed, handle, offset, extents, hasher)
            with self._lock:
                self._count("write", handle.path, steps(extents, step_bytes) - 1)
            return result

        return write

    def watched_load(self, load: CheckedLoad) -> CheckedLoad:
        """`load` of the inner layer, watched like a read, counted as the reads it consists of."""

        def watched(
            handle: Handle, offset: int, buffer: int, step: int, parts: Sequence[Part], stop: int
        ) -> Loaded | None:
            path = handle.path
            loaded = self._call("read", path, load, handle, offset, buffer, step, parts, stop)
            with self._lock:
                self._count("read", path, steps(parts, step) - 1)
            return loaded

        return watched

    def write(self, handle: Handle, offset: int, parts: Sequence[Buffer]) -> None:
        self._call("write", handle.path, self.inner.write, handle, offset, parts)
        if (more := write_operations(len(parts)) - 1) > 0:
            with self._lock:
                self._count("write", handle.path, more)

    def flush(self, handle: Handle, offset: int, length: int) -> None:
        self._call("flush", handle.path, self.inner.flush, handle, offset, length)

    def close(self, handle: Handle) -> None:
        self._call("close", handle.path, self.inner.close, handle)

    def unlink(self, path: str) -> None:
        self._call("unlink", path, self.inner.unlink, path)

    def list(self, path: str) -> list[str]:
        return self._call("list", path, self.inner.list, path)

    def make_dir(self, path: str) -> None:
        self._call("mkdir", path, self.inner.make_dir, path)

    def size(self, path: str) -> int:
        return self._call("stat", path, self.inner.size, path)

    def free_bytes(self) -> int | None:
        return self._call("stat", "", self.inner.free_bytes)

    def _call(
        self, op: str, path: str, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        token, call = self._enter(op, path)
        try:
            result = work(*args, **kwargs)
        except FileFailure as failure:
            self._leave(token, call, failure.kind, answered=True)
            raise
        except BaseException:  # not the file system's doing: says nothing about its health
            self._leave(token, call, None, answered=False)
            raise
        self._leave(token, call, None, answered=op in ANSWERS)
        return result

    def _enter(self, op: str, path: str) -> tuple[int, _Call]:
        with self._lock:
            now = self._now()
            sick = now >= self._look_at and self._find_lost(now)
            probe = False
            refused = not self.health.allows(now) and op != "close"
            if refused and self.health.begin_probe(now):
                probe, refused = True, False
            call = _Call(op, path, now, probe)
            if refused:
                self.failures[FailureKind.SICK] += 1
            else:
                self._next += 1
                self._calls[self._next] = call
                self._count(op, path, 1)
            token = self._next
        self._tell_sick(sick)
        if refused:
            raise FileFailure(FailureKind.SICK, op, path, self.health.reason)
        return token, call

    def _leave(self, token: int, call: _Call, kind: FailureKind | None, *, answered: bool) -> None:
        with self._lock:
            del self._calls[token]
            if kind is None and not call.lost and self.health.steady:
                return  # the usual way
            now = self._now()
            if call.lost:
                self._lost -= 1
                self.health.observe_return(probe=call.probe)
            if kind is not None:
                self.failures[kind] += 1
            before = self.health.state
            if answered:
                self.health.observe(kind, now, path=call.path, probe=call.probe)
            elif call.probe:  # it proved nothing: asked again later
                self.health.observe(FailureKind.IO, now, path=call.path, probe=True)
            after = self.health.state
        self._tell_sick(before is State.WELL and after is State.SICK)
        if before is not State.WELL and after is State.WELL:
            _log.warning("the file system answers again")

    def _count(self, op: str, path: str, times: int) -> None:
        """Lock held."""
        self.operations[op] += times
        if path.startswith(PACKS):
            self.pack_operations[op] += times

    def _find_lost(self, now: float) -> bool:
        """Report calls that have begun to hang; whether that opened the breaker. Lock held."""
        was_well = self.health.state is State.WELL
        self._look_at = now + LOOK_SECONDS
        for call in self._calls.values():
            if now - call.started < self.health.policy.hang_seconds:
                break  # later calls are younger
            if not call.lost:
                call.lost = True
                self._lost += 1
                self.health.observe_hang(now, path=call.path, probe=call.probe)
        return was_well and self.health.state is State.SICK

    def _tell_sick(self, sick: bool) -> None:
        if sick:
            _log.warning(
                "the file system is sick (%s): everything misses until it answers again",
                self.health.reason,
            )
