"""Loading: from keys to filled buffers. What the catalog knows becomes reads; outcomes go back.

A miss is a value: not in the catalog, no layout that fits, the file system is sick, or whatever
the reader says. What a load learns about an entry (condemned: gone or damaged; suspended: not now)
is told to the ledger and the catalog, so that the next lookup does not promise it again.

Never does I/O itself; the reader does, on its lane. Keeps I2 with the reader, I6 and I7 through
its deadline and gate.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sharedfs_backend.catalog_values import CHECKSUM_BYTES
from sharedfs_backend.context import Context
from sharedfs_backend.finding import Finder
from sharedfs_backend.layout import LayoutDescriptor
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.misses import Verdict
from sharedfs_backend.reader import PackReader
from sharedfs_backend.readplan import ChunkRead
from sharedfs_backend.readtask import ReadTask
from sharedfs_backend.realms import Realm
from sharedfs_backend.runtime import Waiter

log = logging.getLogger("sharedfs_backend")

SUSPENDED_MAX = 65536
SUSPEND_SECONDS = (1.0, 4.0, 15.0, 60.0)
"""Waits after the 1st, 2nd, ... failure of a pack."""


class LoadItem(NamedTuple):
    """One wanted chunk: its key (16 bytes), where to put it, and the layout the caller expects.

    With `exact=False` the buffer may be larger than the chunk, which then fills its front: a
    serializer's buffers are as large as its output may become.
    """

    key: bytes
    buffer: memoryview
    layout: LayoutDescriptor
    exact: bool = True


class LoadTask:
    """A load under way. `results[i]` is whether chunk i is whole in its buffer; valid once done."""

    def __init__(
        self, count: int, done: Waiter, on_done: Callable[[LoadTask], None] | None
    ) -> None:
        self.results: list[bool] = [False] * count
        self.misses: list[str] = [""] * count
        self.bytes_loaded = 0
        self._done = done
        self._on_done = on_done
        self._read: ReadTask | None = None
        self._positions: dict[bytes, list[int]] = {}
        self._cancelled = False
        self._lock = threading.Lock()

    def attach(self, read: ReadTask, positions: dict[bytes, list[int]]) -> None:
        """Give the task its reads: key -> places within them."""
        with self._lock:
            self._read, self._positions = read, positions
            cancelled = self._cancelled
        if cancelled:
            read.cancel()

    def finish(self) -> None:
        """Everything is decided."""
        on_done, self._on_done = self._on_done, None
        self._done.set()
        if on_done is None:
            return
        try:
            on_done(self)
        except Exception:  # the caller's mistake must not cost a worker
            log.exception("a load's on_done failed")

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        """Until the load is done: at its deadline at the latest, plus copies then under way."""
        read = self._read
        if read is not None:
            read.wait()
        self._done.wait()

    def cancel(self) -> None:
        """On return nothing writes to any buffer; what is not loaded yet is a miss."""
        with self._lock:
            self._cancelled = True
            read = self._read
        if read is not None:
            read.cancel()

    def cancel_keys(self, keys: Sequence[bytes]) -> None:
        """The same for the buffers of some keys."""
        with self._lock:
            read = self._read
            places = [place for key in keys for place in self._positions.get(key, ())]
        if read is not None:
            for place in places:
                read.cancel_chunk(place)


class Backoff:
    """How long a pack is left alone after its 1st, 2nd, ... passing failure (I6). Bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: OrderedDict[int, tuple[float, int]] = OrderedDict()

    def until(self, pack_id: int, now: float) -> float:
        """Note a failure; when the pack may be asked again. Failures of one stall count once."""
        with self._lock:
            until, times = self._times.pop(pack_id, (now, 0))
            if until <= now:
                times += 1
                until = now + SUSPEND_SECONDS[min(times, len(SUSPEND_SECONDS)) - 1]
            self._times[pack_id] = (until, times)
            if len(self._times) > SUSPENDED_MAX:
                self._times.popitem(last=False)
            return until

    def worked(self, pack_id: int) -> None:
        """A load from it succeeded."""
        if pack_id in self._times:
            with self._lock:
                self._times.pop(pack_id, None)


class Loader:
    """Turns keys into reads and outcomes into knowledge. Thread-safe; no I/O of its own."""

    def __init__(
        self,
        context: Context,
        ledger: Ledger,
        finder: Finder,
        reader: PackReader,
        healthy: Callable[[], bool],
    ) -> None:
        self._runtime = context.runtime
        self._stats = context.stats
        self._ledger = ledger
        self._finder = finder
        self._reader = reader
        self._healthy = healthy
        self._backoff = Backoff()

    def submit(
        self,
        items: Sequence[LoadItem],
        realm: Realm,
        deadline_seconds: float,
        on_done: Callable[[LoadTask], None] | None,
    ) -> LoadTask:
        task = LoadTask(len(items), self._runtime.waiter(), on_done)
        if not items or not self._healthy():
            if items:
                self._missed(task, range(len(items)), "sick")
            task.finish()
            return task
        now = self._runtime.now()
        spaces = self._finder.spaces_of(realm, [item.layout for item in items])
        keys = b"".join(item.key for item in items)
        located = self._ledger.catalog.locate(keys, spaces, now=now)
        ids = located.pack_ids.tolist()
        packs = {pack_id: self._ledger.by_id(pack_id) for pack_id in set(ids)}
        checksums = located.checksums()
        reads: list[ChunkRead] = []
        buffers: list[memoryview] = []
        places: list[tuple[int, int]] = []
        rows = zip(items, ids, located.offsets.tolist(), located.lengths.tolist(), strict=True)
        for index, (item, pack_id, offset, length) in enumerate(rows):
            pack = packs[pack_id]
            if pack is None:
                self._missed(task, (index,), "unknown")
                continue
            checksum = checksums[CHECKSUM_BYTES * index : CHECKSUM_BYTES * (index + 1)]
            reads.append(ChunkRead(pack.name, offset, length, checksum))
            buffers.append(item.buffer if item.exact else item.buffer[:length])
            places.append((index, pack_id))
        positions: dict[bytes, list[int]] = {}
        for at, (index, _) in enumerate(places):
            positions.setdefault(items[index].key, []).append(at)

        def done(read: ReadTask) -> None:
            try:
                self._learn(task, items, places, read)
            finally:
                task.finish()

        read = self._reader.submit(reads, buffers, deadline=now + deadline_seconds, on_done=done)
        task.attach(read, positions)
        return task

    def _missed(self, task: LoadTask, places: Sequence[int], reason: str) -> None:
        for index in places:
            task.misses[index] = reason
        self._stats.add(f"load_misses_{reason}", len(places))

    def _learn(
        self,
        task: LoadTask,
        items: Sequence[LoadItem],
        places: Sequence[tuple[int, int]],
        read: ReadTask,
    ) -> None:
        now = self._runtime.now()
        loaded_bytes = loaded = 0
        worked: set[int] = set()
        suspended: set[int] = set()
        outcomes = zip(places, read.reads, read.outcomes, strict=True)
        for (index, pack_id), wanted, miss in outcomes:
            if miss is None:
                task.results[index] = True
                loaded += 1
                loaded_bytes += wanted.length
                worked.add(pack_id)
                continue
            self._missed(task, (index,), miss.kind.value)
            pack = self._ledger.by_id(pack_id)
            if pack is None:
                continue
            match miss.verdict:
                case Verdict.CONDEMN_CHUNK:
                    self._ledger.condemn(pack.name, items[index].key)
                case Verdict.CONDEMN_PACK:
                    self._ledger.condemn(pack.name, None)
                case Verdict.SUSPEND:
                    suspended.add(pack_id)
                case Verdict.NONE:
                    pass
        for pack_id in suspended:
            self._ledger.catalog.suspend(pack_id, self._backoff.until(pack_id, now))
        for pack_id in worked - suspended:
            self._backoff.worked(pack_id)
        task.bytes_loaded = loaded_bytes
        self._stats.add("chunks_loaded", loaded)
        self._stats.add("bytes_loaded", loaded_bytes)
