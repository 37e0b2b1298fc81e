"""Copying packs from one store into another: several at a time, in order, until a time is over.

    take the next pack -> leave out what the target has -> load (verified) -> put (published)

Each worker has one buffer, so memory is bounded whatever the packs are (I9). A pack is not begun
when the slowest one lately would not have been done in time. At the end of the time loads and puts
under way are called off: no buffer is touched any more (I7), what was not published is a file
without a trailer at most, which the target's own housekeeping removes. A failure costs a chunk,
not the run; only a target that takes nothing any more, or a source that no longer answers, ends it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sharedfs_backend.facts import Pack
from sharedfs_backend.layout import EntryTable, RealmDescriptor
from sharedfs_backend.loading import LoadItem
from sharedfs_backend.putting import PutItem
from sharedfs_backend.realms import NO_CANARY, Realm
from sharedfs_backend.stage.choosing import Choice
from sharedfs_backend.store import Store

WORKERS = 4
"""As many packs are read and written at once as one client's writers gain from."""
TRANSFER_BYTES_MAX = 256 << 20
"""Of one worker's buffer; a larger pack is copied in parts, which become packs of their own."""
FAILURES_MAX = 8
"""So many packs in a row of which nothing arrived: the target is full, or somebody is down."""
POLL_SECONDS = 0.1
CANCEL_SECONDS = 0.5
PUT_SECONDS = 120.0
"""One pack's write may take as long; a put may wait for credit below a cap for a part of it."""

NAMELESS = RealmDescriptor("", False, "", "", "")
"""A realm is copied by its digest; what it stands for is its file's business."""


@dataclass(slots=True)
class Tally:
    """What became of the packs so far. Bytes are payload."""

    packs_copied: int = 0
    packs_present: int = 0
    chunks_copied: int = 0
    bytes_copied: int = 0
    bytes_present: int = 0
    packs_failed: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Chunks by reason."""


class Copier:
    """Copies `choices` in order. `run` blocks; the workers are threads of its own, which end with
    it unless a file system holds them."""

    def __init__(
        self,
        source: Store,
        target: Store,
        choices: Sequence[Choice],
        *,
        stop_at: float | None,
        refused_realms: frozenset[bytes] = frozenset(),
        workers: int = WORKERS,
    ) -> None:
        self._source = source
        self._target = target
        self._now = source.parts.runtime.now
        self._stop_at = stop_at
        self._refused = refused_realms
        self._workers = workers
        profile = target.parts.profile
        limit = target.settings.pack_bytes_max or profile.pack_bytes_max
        self._transfer_bytes = min(limit, TRANSFER_BYTES_MAX)
        self._lock = threading.Lock()
        self._queue = deque(choices)
        self._seconds: deque[float] = deque(maxlen=2 * workers)
        self._in_a_row = 0
        self._stopped = threading.Event()
        self.out_of_time = False
        self.given_up = False
        self.tally = Tally()
        self.done_bytes = 0
        """File bytes of the packs that need no more work: for a progress bar."""
        self.present: list[Choice] = []
        """What the target held already."""

    @property
    def left(self) -> int:
        """Packs not begun."""
        return len(self._queue)

    def run(self, on_progress: Callable[[int], None]) -> None:
        """Until everything is copied, or the time is over. `on_progress(done_bytes)` is called now
        and then, on this thread."""
        threads = [
            threading.Thread(target=self._work, name=f"sharedfs-stage-{number}", daemon=True)
            for number in range(min(self._workers, len(self._queue)))
        ]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                on_progress(self.done_bytes)
                if self._remaining() <= -2 * CANCEL_SECONDS:
                    return  # a thread held by a hanging call ends with the process
                next(t for t in threads if t.is_alive()).join(POLL_SECONDS)
            on_progress(self.done_bytes)
        finally:
            self._stopped.set()

    # -- one worker --------------------------------------------------------------------------

    def _work(self) -> None:
        buffer = memoryview(bytearray(0))
        while (choice := self._next()) is not None:
            began = self._now()
            pack = self._source.parts.ledger.pack(choice.name)
            table = None if pack is None else self._table(pack)
            if pack is None or table is None:
                self._count(choice, failures={"vanished": 1})
                continue
            if pack.realm in self._refused:
                self._count(choice, failures={"other hashes": len(table)})
                continue
            buffer = self._copy(choice, pack, table, buffer)
            with self._lock:
                self._seconds.append(self._now() - began)

    def _next(self) -> Choice | None:
        with self._lock:
            if self._stopped.is_set() or not self._queue:
                return None
            slowest = max(self._seconds, default=0.0)
            if self._remaining() <= slowest:
                self.out_of_time = True
                return None
            return self._queue.popleft()

    def _table(self, pack: Pack) -> EntryTable | None:
        return self._source.parts.catalog.entries_of(pack.pack_id) if pack.pack_id >= 0 else None

    def _copy(
        self, choice: Choice, pack: Pack, table: EntryTable, buffer: memoryview
    ) -> memoryview:
        """Returns the buffer, perhaps a larger one."""
        missing = self._missing(pack, table)
        failures: Counter[str] = Counter()
        chunks = nbytes = 0
        for group in self._groups(table, missing):
            needed = sum(int(table.length_array()[index]) for index in group)
            if buffer.nbytes < needed:
                buffer = memoryview(bytearray(needed))
            copied, copied_bytes, why = self._transfer(pack, table, group, buffer)
            chunks, nbytes = chunks + copied, nbytes + copied_bytes
            failures += why
        present = sum(map(int, table.length_array())) if not missing else 0
        self._count(choice, chunks=chunks, nbytes=nbytes, present=present, failures=failures)
        return buffer

    def _missing(self, pack: Pack, table: EntryTable) -> list[int]:
        """Indices of the chunks that the target does not hold. Memory only, and no lookup that
        would count for recency."""
        assert pack.layout is not None
        ledger = self._target.parts.ledger
        space = ledger.catalog.known_space(pack.realm, ledger.fingerprint(pack.layout))
        if space is None:
            return list(range(len(table)))
        found = ledger.catalog.find(bytes(table.keys), space, now=self._now())
        return [index for index, is_there in enumerate(found.hits) if not is_there]

    def _groups(self, table: EntryTable, indices: Sequence[int]) -> list[list[int]]:
        """Runs of these chunks, each as large as a buffer may be."""
        lengths = table.length_array()
        groups: list[list[int]] = []
        room = 0
        for index in indices:
            length = int(lengths[index])
            if not groups or length > room:
                groups.append([])
                room = self._transfer_bytes
            groups[-1].append(index)
            room -= length
        return groups

    def _transfer(
        self, pack: Pack, table: EntryTable, indices: Sequence[int], buffer: memoryview
    ) -> tuple[int, int, Counter[str]]:
        """(chunks, bytes, failed chunks by reason) of one load and one put."""
        assert pack.layout is not None
        realm = Realm(pack.realm, NAMELESS, NO_CANARY)
        views: list[memoryview] = []
        at = 0
        for index in indices:
            end = at + table[index].length
            views.append(buffer[at:end])
            at = end
        keys = [table[index].key for index in indices]
        loads = [LoadItem(key, view, pack.layout) for key, view in zip(keys, views, strict=True)]
        load = self._source.submit_load(
            loads, realm=realm, deadline_seconds=max(0.0, min(PUT_SECONDS, self._remaining()))
        )
        load.wait()
        good = [index for index, is_whole in enumerate(load.results) if is_whole]
        failures = Counter(reason for reason in load.misses if reason)
        if not good:
            return 0, 0, failures
        items = [PutItem(keys[i], views[i].toreadonly(), pack.layout, pack.rank) for i in good]
        done = threading.Event()
        task = self._target.submit_put(items, realm=realm, on_done=lambda _: done.set())
        if not done.wait(max(0.0, min(PUT_SECONDS, self._remaining()))):
            task.cancel(CANCEL_SECONDS)
            failures["not in time"] += len(items) - sum(task.stored)
        elif lost := task.present.count(False):
            failures[task.failed or "not stored"] += lost
        return sum(task.stored), task.bytes_written, failures

    def _count(
        self,
        choice: Choice,
        *,
        failures: dict[str, int],
        chunks: int = 0,
        nbytes: int = 0,
        present: int = 0,
    ) -> None:
        with self._lock:
            tally = self.tally
            tally.chunks_copied += chunks
            tally.bytes_copied += nbytes
            tally.failures.update(failures)
            self.done_bytes += choice.total_bytes
            if failures:
                tally.packs_failed += 1
                self._in_a_row = 0 if chunks else self._in_a_row + 1
                if self._in_a_row >= FAILURES_MAX:
                    self.given_up = True
                    self._stopped.set()
                return
            self._in_a_row = 0
            if present:
                tally.packs_present += 1
                tally.bytes_present += present
                self.present.append(choice)
            else:
                tally.packs_copied += 1

    def _remaining(self) -> float:
        return float("inf") if self._stop_at is None else self._stop_at - self._now()
