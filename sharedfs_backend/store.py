"""The store: `lookup`, `load`, `put`, `close` on one namespace. The story in a page.

    lookup   catalog, in memory; a miss may bring the next refresh forward. No operation.
    load     catalog -> reader: opens what is not open, reads pieces in parallel, verifies, copies.
    put      putter: linger, cut, write packs, publish one record. Off the caller's thread.
    tick     what time brings: lingering batches, deadlines, refresh, chores.

Everything that does I/O runs on the runtime's lanes; `tick` and the calls above only enqueue, so a
hung file system stalls nobody beyond a deadline (I6). Failures are misses or dropped stores,
counted by kind. Usable from any thread; a forked child gets parts of its own on first use.

No LMCache and no torch here: buffers are buffers, keys are 16 bytes. A key of another length or
type is the caller's mistake: ValueError or TypeError, at once, before anything is begun.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from sharedfs_backend.catalog_values import KEY_BYTES
from sharedfs_backend.exceptions import ConfigError, StoreClosed
from sharedfs_backend.files import Files
from sharedfs_backend.layout import LayoutDescriptor, RealmDescriptor
from sharedfs_backend.loading import LoadItem, LoadTask
from sharedfs_backend.parts import Parts, Usage
from sharedfs_backend.putting import PutItem, PutTask
from sharedfs_backend.realms import NO_CANARY, Realm
from sharedfs_backend.rules import Rules
from sharedfs_backend.runtime import Runtime, ThreadRuntime
from sharedfs_backend.settings import Settings

__all__ = ["ChunkId", "LoadItem", "LoadTask", "PutItem", "PutTask", "Realm", "Store", "Usage"]

log = logging.getLogger("sharedfs_backend")

DIRECT_USE = RealmDescriptor(
    model_identity="direct", identity_verified=True, shard="", serde="", hash_family="direct"
)
"""The realm of a caller that names none: plain use of the store, no model."""
DIRECT_LAYOUT = LayoutDescriptor(("uint8",), ((0,),), "RAW", 0)


@dataclass(frozen=True, slots=True)
class ChunkId:
    """What a chunk is, in LMCache's words: its hash commits to the whole prefix."""

    chunk_hash: bytes
    kv_rank: int = 0
    object_group: int = 0
    cache_salt: str = ""


def _check_keys(keys: Sequence[bytes]) -> None:
    """Raises ValueError unless every key is a chunk key: chunks are told apart by nothing else.
    TypeError for what only looks like one: a bytearray has no hash, which none but a worker would
    notice, in the midst of other callers' chunks."""
    if not set(map(type, keys)) <= {bytes}:
        for index, key in enumerate(keys):
            if not isinstance(key, bytes):
                raise TypeError(f"key {index} of {len(keys)} is no bytes: {type(key).__name__}")
    if set(map(len, keys)) <= {KEY_BYTES}:
        return
    index, length = next((i, len(key)) for i, key in enumerate(keys) if len(key) != KEY_BYTES)
    raise ValueError(
        f"key {index} of {len(keys)} has {length} bytes: a chunk key has {KEY_BYTES}. "
        "Pass what `Store.keys([ChunkId(chunk_hash, ...)])` returns"
    )


def _check_layouts(
    items: Sequence[PutItem], fingerprint: Callable[[LayoutDescriptor], bytes]
) -> None:
    """Raises ValueError for a layout that cannot be encoded, TypeError for what is none: no later
    step could name its place. Neighbours nearly always share their layout object."""
    before: LayoutDescriptor | None = None
    for index, item in enumerate(items):
        if before is not None and item.layout is before:
            continue
        before = item.layout
        if not isinstance(before, LayoutDescriptor):
            raise TypeError(
                f"chunk {index} of {len(items)}: its layout is no LayoutDescriptor: "
                f"{type(before).__name__}"
            )
        try:
            fingerprint(item.layout)
        except ValueError as error:
            raise ValueError(
                f"chunk {index} of {len(items)}: its layout is none: {error}"
            ) from error


@dataclass(frozen=True, slots=True)
class _Made:
    """The parts, and the process that made them."""

    pid: int
    parts: Parts


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Store:
    """One process's view of a namespace.

    `root` is created if its parent exists. Raises ConfigError or NamespaceError for what only a
    person can put right, and where nothing answers within 20 s. A file system that stops answering
    later is no error: the store misses, and comes alive when it answers. `runtime` and `files` are
    for tests; `rules` too.
    """

    def __init__(
        self,
        root: str | None = None,
        *,
        settings: Settings | None = None,
        runtime: Runtime | None = None,
        files: Files | None = None,
        rules: Rules | None = None,
        create: bool = True,
    ) -> None:
        if settings is None:
            if root is None:
                raise ConfigError("root: the directory of the namespace must be given")
            settings = Settings(root=root)
        self.settings = settings
        self._injected = (runtime, files, rules or Rules(), create)
        self._closed = False
        self._fork_lock = threading.Lock()
        self._made = self._make()
        _stores.add(self)

    def _make(self) -> _Made:
        runtime, files, rules, create = self._injected
        settings = self.settings
        own: ThreadRuntime | None = None
        if runtime is None:
            runtime = own = ThreadRuntime(
                read_workers_max=settings.read_threads_max,
                write_workers_max=settings.write_threads_max,
            )
        try:
            parts = Parts(settings, runtime, files, rules, create=create)
        except BaseException:
            if own is not None:
                own.close(0.0)
            raise
        if own is not None:
            parts.start_timer(own.relieve)
        return _Made(os.getpid(), parts)

    @property
    def parts(self) -> Parts:
        """What the store is made of, for tools and tests."""
        made = self._made
        if made.pid != os.getpid():
            made = self._made_again()
        return made.parts

    def _made_again(self) -> _Made:
        """In a forked child: its threads are gone and its locks may be held. Start afresh."""
        if self._injected[0] is not None:
            return self._made
        with self._fork_lock:
            if self._made.pid != os.getpid():
                log.warning("the store was forked: process %d opens its own", os.getpid())
                self._made = self._make()
            return self._made

    def _after_fork(self) -> None:
        """In the child, before any other thread of it: a lock that nobody holds."""
        self._fork_lock = threading.Lock()

    # -- names -------------------------------------------------------------------------------

    def realm(self, descriptor: RealmDescriptor, canary: bytes = NO_CANARY) -> Realm:
        """The open realm of `descriptor`. Blocks on a few operations the first time.

        `canary`: 4 bytes that tell engines with different token hashes apart. Raises RealmRefused
        when another canary was here before.
        """
        return self._open().realms.open(descriptor, canary)

    def keys(self, ids: Sequence[ChunkId]) -> list[bytes]:
        """The 16-byte chunk key of each id; memoised."""
        return self._open().keyring.derive(ids)

    # -- the three ---------------------------------------------------------------------------

    def lookup(
        self,
        keys: Sequence[bytes],
        *,
        realm: Realm | None = None,
        layouts: LayoutDescriptor | Sequence[LayoutDescriptor | None] | None = None,
        lock: bool = False,
    ) -> list[bool]:
        """Which chunks a load would find. Memory only: no operation on the file system.

        `layouts` is one for all keys, one each, or None: a key then hits only if the realm holds
        it in exactly one layout. With `lock` the hits are kept from this process's own sweep until
        `unlock`, or for the buffers' time to live at most.
        """
        parts = self._open()
        _check_keys(keys)
        return parts.finder.lookup(keys, realm or self._direct(), layouts, lock=lock)

    def unlock(self, keys: Sequence[bytes], *, realm: Realm | None = None) -> None:
        """Undo one `lookup(..., lock=True)` of these keys. Unknown keys are fine."""
        _check_keys(keys)
        self._open().finder.unlock(keys, realm or self._direct())

    def layouts_of(
        self, keys: Sequence[bytes], *, realm: Realm | None = None
    ) -> list[LayoutDescriptor | None]:
        """The layout each chunk is held in; None for a miss or where there are several."""
        _check_keys(keys)
        return self._open().finder.layouts_of(keys, realm or self._direct())

    def submit_load(
        self,
        items: Sequence[LoadItem],
        *,
        realm: Realm | None = None,
        deadline_seconds: float | None = None,
        on_done: Callable[[LoadTask], None] | None = None,
    ) -> LoadTask:
        """Start loading; never blocks on I/O. `on_done` runs once, on some thread, at the deadline
        at the latest; from then on no thread touches a buffer (I7)."""
        parts = self._open()
        _check_keys([item.key for item in items])
        seconds = self.settings.load_deadline_seconds
        if deadline_seconds is not None:
            seconds = min(seconds, deadline_seconds)
        return parts.loader.submit(items, realm or self._direct(), seconds, on_done)

    def load(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[memoryview | bytearray],
        *,
        layout: LayoutDescriptor = DIRECT_LAYOUT,
        realm: Realm | None = None,
        deadline_seconds: float | None = None,
    ) -> list[bool]:
        """Fill `buffers[i]` (writable, exactly the chunk's size) with the chunk of `keys[i]`.

        Returns which are whole: every byte passed its checksum (I2). Blocks until the deadline.
        """
        items = [
            LoadItem(key, memoryview(buffer).cast("B"), layout)
            for key, buffer in zip(keys, buffers, strict=True)
        ]
        task = self.submit_load(items, realm=realm, deadline_seconds=deadline_seconds)
        try:
            task.wait()
        except BaseException:  # a signal handler's: the buffers are the caller's again (I7)
            task.cancel()
            raise
        return task.results

    def submit_put(
        self,
        items: Sequence[PutItem],
        *,
        realm: Realm | None = None,
        on_done: Callable[[PutTask], None] | None = None,
    ) -> PutTask:
        """Start storing, in prefix order; never blocks on I/O. The buffers must stay as they are
        until `on_done`, which runs when the chunks are published or given up. ValueError for a key
        that is none, or a layout that FORMAT.md has no bytes for."""
        parts = self._open()
        _check_keys([item.key for item in items])
        _check_layouts(items, parts.ledger.fingerprint)
        return parts.putter.submit(realm or self._direct(), items, on_done)

    def put(
        self, items: Sequence[PutItem], *, realm: Realm | None = None, timeout_seconds: float = 60.0
    ) -> PutTask:
        """Store and wait. A store that failed says so in the task; only what could never be
        stored (a key that is none, a layout that cannot be written down) raises ValueError."""
        parts = self._open()
        done = parts.runtime.waiter()
        task = self.submit_put(items, realm=realm, on_done=lambda _: done.set())
        try:
            in_time = done.wait(timeout_seconds)
        except BaseException:  # a signal handler's: the buffers are the caller's again (I7)
            task.cancel()
            raise
        if not in_time:
            task.cancel()
            task.failed = task.failed or f"not done within {timeout_seconds:g} s"
        return task

    def forget(self, keys: Sequence[bytes], *, realm: Realm | None = None) -> list[int]:
        """Stop finding these chunks in this process; bytes each held (0: was not found)."""
        _check_keys(keys)
        return self._open().finder.forget(keys, realm or self._direct())

    # -- time and state ----------------------------------------------------------------------

    def tick(self) -> float:
        """One round of what time brings, without I/O on this thread; seconds until the next.

        The store's own timer thread calls this; with an injected runtime the caller does.
        """
        return self._open().tick()

    def wait_current(self, timeout_seconds: float = 30.0) -> bool:
        """Wait until everything published before this call has been read; False if it was not."""
        return self._open().wait_current(timeout_seconds)

    def usage(self) -> Usage:
        """Bytes and counts, as far as this process knows."""
        return self._open().usage()

    def stats(self) -> dict[str, float]:
        """Counters and gauges under stable names, flat."""
        return self.parts.stats_snapshot()

    @property
    def healthy(self) -> bool:
        """Whether the file system answers."""
        return self.parts.healthy

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Finish what is queued as far as the time allows, say goodbye, end all threads."""
        if self._closed:
            return
        self._closed = True
        if self._made.pid != os.getpid():
            return
        parts, own_runtime = self._made.parts, self._injected[0] is None
        try:
            parts.close(timeout_seconds, own_runtime=own_runtime)
        except BaseException:  # a signal handler's: no time is left, but nothing may go on
            parts.close(0.0, own_runtime=own_runtime)
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self) -> Parts:
        if self._closed:
            raise StoreClosed("the store is closed")
        return self.parts

    def _direct(self) -> Realm:
        return self._open().realms.open(DIRECT_USE, NO_CANARY, wait=False)
