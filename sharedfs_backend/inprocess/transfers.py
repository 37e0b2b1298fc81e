"""Stores and loads under way, each with the references it holds.

A store holds a reference to every object from submission until the store is done with the bytes; a
load owns what was allocated for it until someone takes the result. Both end exactly once, by
whichever comes first: the store's answer, an error, a cancellation, or `close` (I7). LMCache's pool
is small, so what stores may hold at once is limited, and beyond it a batch is dropped and counted:
an engine's next request needs that memory more (I6, I9).

Any thread. Knows nothing of LMCache's keys; `key` below is whatever the caller wants back.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

from sharedfs_backend.inprocess.lent import Lent
from sharedfs_backend.layout import LayoutDescriptor
from sharedfs_backend.lmcache_common import Memory
from sharedfs_backend.store import LoadItem, PutItem

log = logging.getLogger("sharedfs_backend.inprocess")

CLOSE_SECONDS = 5.0
"""How long `close` waits for stores under way."""

_MEMORY = Memory()


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk to store: the caller's key, the chunk key, the memory object and its layout."""

    key: Hashable
    digest: bytes
    obj: Any
    layout: LayoutDescriptor
    rank: int


@dataclass(slots=True, eq=False)
class _Put:
    chunks: Sequence[Chunk]
    lent: Lent
    nbytes: int
    on_stored: Callable[[Any], None] | None
    future: Future[None] = field(default_factory=Future)
    task: Any = None
    ended: bool = False


class Puts:
    """Batches being stored."""

    def __init__(self, store: Any, realm: Any, bytes_max: int) -> None:
        self._store, self._realm, self._bytes_max = store, realm, bytes_max
        self._lock = threading.Lock()
        self._open: set[_Put] = set()
        self._digests: Counter[bytes] = Counter()
        self._closed = False
        self.nbytes = 0
        self.dropped_chunks = 0

    def __contains__(self, digest: bytes) -> bool:
        return self._digests[digest] > 0

    def submit(
        self, chunks: Sequence[Chunk], on_stored: Callable[[Any], None] | None
    ) -> Future[None] | None:
        """Hand chunks to the store and return at once; None where nothing was accepted.

        `on_stored(key)` is called for each chunk this process wrote, when it can be found by all.
        """
        put = self._admit(chunks, on_stored)
        if put is None:
            return None
        try:
            items = [
                PutItem(c.digest, _MEMORY.view(c.obj, writable=False), c.layout, c.rank)
                for c in put.chunks
            ]
            task = self._store.submit_put(
                items, realm=self._realm, on_done=lambda done: self._end(put, done.stored)
            )
        except BaseException:
            self._end(put, ())
            raise
        with self._lock:
            put.task = task
            closed = self._closed
        if closed:
            self._abandon(put)
        return put.future

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Let what is under way finish if it can. On return nobody reads a lent buffer, and every
        reference is back (I7)."""
        with self._lock:
            self._closed = True
            left = list(self._open)
        wait([put.future for put in left], timeout_seconds)
        for put in left:
            self._abandon(put)

    def _admit(
        self, chunks: Sequence[Chunk], on_stored: Callable[[Any], None] | None
    ) -> _Put | None:
        with self._lock:
            fresh = {c.digest: c for c in chunks if self._digests[c.digest] == 0}
            nbytes = sum(c.obj.get_size() for c in fresh.values())
            if not fresh or self._closed:
                return None
            if self._open and self.nbytes + nbytes > self._bytes_max:
                self.dropped_chunks += len(fresh)
                return None
            put = _Put(
                list(fresh.values()), Lent.take([c.obj for c in fresh.values()]), nbytes, on_stored
            )
            put.future.set_running_or_notify_cancel()  # the store cannot be called back
            self._open.add(put)
            self._digests.update(fresh.keys())
            self.nbytes += nbytes
            return put

    def _abandon(self, put: _Put) -> None:
        if put.task is not None:
            put.task.cancel()
            self._end(put, ())

    def _end(self, put: _Put, stored: Sequence[bool]) -> None:
        with self._lock:
            if put.ended:
                return
            put.ended = True
            self._open.discard(put)
            self.nbytes -= put.nbytes
            for chunk in put.chunks:
                self._digests[chunk.digest] -= 1
                if self._digests[chunk.digest] <= 0:
                    del self._digests[chunk.digest]
        put.lent.give_back()
        if put.on_stored is not None:
            for chunk, new in zip(put.chunks, stored, strict=False):
                if new:
                    self._tell(put.on_stored, chunk.key)
        put.future.set_result(None)

    @staticmethod
    def _tell(on_stored: Callable[[Any], None], key: Any) -> None:
        try:
            on_stored(key)
        except Exception:  # LMCache's callback; its failure is none of ours
            log.warning("sharedfs: a completion callback failed", exc_info=True)


class Load:
    """One load: buffers being filled. `take` or `cancel` ends it; both may be called again."""

    def __init__(self, objects: Sequence[Any], on_end: Callable[[Load], None]) -> None:
        self._lent = Lent(objects)
        self._count = len(objects)
        self._on_end = on_end
        self._lock = threading.Lock()
        self._task: Any = None
        self._results: Sequence[bool] = ()
        self._cancelled = False
        self._ended = threading.Event()

    def attach(self, task: Any) -> None:
        """The store accepted it."""
        with self._lock:
            self._task = task
            cancelled = self._cancelled
        if cancelled:
            self.cancel()

    def done(self, results: Sequence[bool]) -> None:
        """The store's answer; from any thread."""
        with self._lock:
            if not self._cancelled:
                self._results = list(results)
        self._end()

    def wait(self, timeout_seconds: float) -> bool:
        return self._ended.wait(timeout_seconds)

    def take(self) -> list[Any | None]:
        """The filled objects, the caller's from now on, in order; None where there is none."""
        with self._lock:
            keep = list(self._results) if self._results else [False] * self._count
        return self._lent.hand_over(keep)

    def cancel(self) -> None:
        """On return nothing writes to the buffers, and they are back in the pool (I7)."""
        with self._lock:
            self._cancelled = True
            self._results = ()
            task = self._task
        if task is None:
            return  # still being submitted: `attach` finishes this
        task.cancel()
        self._lent.give_back()
        self._end()

    def refused(self) -> None:
        """The store did not take it, so nobody else knows the buffers."""
        self._lent.give_back()
        self._end()

    def _end(self) -> None:
        with self._lock:
            on_end, self._on_end = self._on_end, _nothing
        self._ended.set()
        on_end(self)


def _nothing(_load: Load) -> None:
    return None


class Loads:
    """Loads under way, so that `close` can end them."""

    def __init__(self, store: Any, realm: Any, deadline_seconds: float) -> None:
        self._store, self._realm = store, realm
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self._open: set[Load] = set()
        self._closed = False

    def start(
        self,
        digests: Sequence[bytes],
        layouts: Sequence[LayoutDescriptor],
        objects: Sequence[Any],
        on_end: Callable[[Load], None] = _nothing,
    ) -> Load:
        """Begin to fill `objects`, whose references now belong to the load.

        `on_end(load)` is called once, from any thread, when `take` will not wait.
        """
        load = Load(objects, lambda ended: self._ended(ended, on_end))
        with self._lock:
            self._open.add(load)
            closed = self._closed
        if closed:
            load.refused()
            return load
        try:
            items = [
                LoadItem(digest, _MEMORY.view(obj, writable=True), layout)
                for digest, layout, obj in zip(digests, layouts, objects, strict=True)
            ]
            task = self._store.submit_load(
                items,
                realm=self._realm,
                deadline_seconds=self._deadline_seconds,
                on_done=lambda done: load.done(done.results),
            )
        except BaseException:
            load.refused()
            raise
        load.attach(task)
        return load

    def close(self) -> None:
        with self._lock:
            self._closed = True
            left = list(self._open)
        for load in left:
            load.cancel()

    def _ended(self, load: Load, on_end: Callable[[Load], None]) -> None:
        with self._lock:
            self._open.discard(load)
        on_end(load)
