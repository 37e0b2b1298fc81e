"""The publisher: this process's own journal, to which it appends what others must know.

The record is the commit (I4): nobody hears of a pack before `publish` succeeded. An append opens
the journal by name without creating it, writes block-aligned entries bound to (writer, offset),
closes and checks the close. Whatever is unusual (the journal was retired while this process was
frozen, an append failed or was slow, the size limit, a fork) has one remedy: a new writer id with
a new journal, into which everything live of this process is published again. So a journal's past
never matters to its future, and no append is ever repeated at the same offset (I1).

Slow means: more than half a lease between the ends of two appends. Others retire a silent journal
after a whole lease, so an append inside that time cannot have gone into an unlinked file.

Calls block on I/O and belong on a worker lane. Queued records of several callers share an append.
Nothing here decides what to publish.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from sharedfs_backend.context import Context
from sharedfs_backend.facts import Pack
from sharedfs_backend.files import FailureKind, FileFailure, Handle
from sharedfs_backend.layout import (
    FORMAT_MAJOR,
    Begin,
    Commit,
    Drop,
    End,
    Gone,
    PackCommit,
    Record,
    encode_entry,
    journal_path,
    split_records,
)
from sharedfs_backend.ledger import Ledger

log = logging.getLogger(__name__)

ENTRY_BYTES_MAX = 1 << 20
JOURNAL_BYTES_MAX = 8 << 20
"""Past this a new journal is begun, so that retiring the old one frees its bytes."""
RENEW_BACKOFF_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

Done = Callable[[bool], None]


class Publisher:
    """Appends records under a writer id of its own making. Any thread may call `publish`."""

    def __init__(
        self, context: Context, ledger: Ledger, journal_bytes_max: int = JOURNAL_BYTES_MAX
    ) -> None:
        self._files = context.files
        self._runtime = context.runtime
        self._seal = context.seal
        self._stats = context.stats
        self._rules = context.rules
        self._slow_seconds = context.settings.lease_seconds / 2
        self._ledger = ledger
        self._journal_bytes_max = journal_bytes_max
        self._lock = threading.Lock()
        self._queue: list[tuple[Sequence[Record], Done]] = []
        self._busy = False
        self._closed = False
        self._writer: str | None = None
        self._offset = 0
        self._last_end = 0.0
        self._own: list[str] = []
        self._failures = 0
        self._retry_at = 0.0

    @property
    def writer(self) -> str | None:
        """The id in use, None before the first publication and after an unusual end."""
        return self._writer

    def publish(self, records: Sequence[Record], on_done: Done) -> None:
        """Append `records`; `on_done(True)` once they are the commit, `on_done(False)` if not.

        `on_done` runs on this or on another publishing thread, before that thread goes on.
        """
        with self._lock:
            self._queue.append((records, on_done))
            if self._busy:
                return
            self._busy = True
        while True:
            with self._lock:
                batch, self._queue = self._queue, []
                if not batch:
                    self._busy = False
                    return
            done = self._write([record for records, _ in batch for record in records])
            for _, tell in batch:
                tell(done)

    def ensure_writer(self, on_done: Done) -> None:
        """A journal exists under a current id: packs are named after it."""
        self.publish((), on_done)

    def end(self) -> None:
        """Say goodbye: the journal may be retired at once. Called last, on closing."""
        if self._writer is not None:
            self.publish((End(None),), lambda _: None)
        with self._lock:
            self._closed = True

    # -- one append at a time below this line ------------------------------------------------

    def _write(self, records: list[Record]) -> bool:
        if self._closed:
            return False
        for _ in range(2):
            if self._is_stale() and not self._renew():
                return False
            if not records or self._append(records):
                return True
            self._writer = None
        return False

    def _is_stale(self) -> bool:
        if self._writer is None or self._offset >= self._journal_bytes_max:
            return True
        silent_seconds = self._runtime.now() - self._last_end
        return self._rules.slow_append_renews and silent_seconds > self._slow_seconds

    def _append(self, records: list[Record]) -> bool:
        assert self._writer is not None
        writer, offset = self._writer, self._offset
        parts: list[bytes] = []
        for group in split_records(records, ENTRY_BYTES_MAX):
            parts.append(encode_entry(writer, offset, group, self._seal))
            offset += len(parts[-1])
        try:
            self._write_parts(journal_path(writer), self._offset, parts)
        except FileFailure as failure:
            self._stats.failed(failure, "append")
            return False
        end = self._runtime.now()
        if self._rules.slow_append_renews and end - self._last_end > self._slow_seconds:
            self._stats.add("journal_slow_appends")
            return False
        self._last_end = end
        self._offset = offset
        self._ledger.apply(writer, offset, records, end)
        return True

    def _write_parts(self, path: str, offset: int, parts: list[bytes]) -> None:
        if self._rules.append_never_creates:
            handle = self._files.open_write(path)
        else:
            try:
                handle = self._files.open_write(path)
            except FileFailure as failure:
                if failure.kind is not FailureKind.MISSING:
                    raise
                handle = self._files.create(path)
        self._write_and_close(handle, offset, parts)

    def _write_and_close(self, handle: Handle, offset: int, parts: list[bytes]) -> None:
        """A handle is closed once, also when that fails."""
        try:
            self._files.write(handle, offset, parts)
        except FileFailure:
            self._close_quietly(handle)
            raise
        self._files.close(handle)

    def _renew(self) -> bool:
        """A new id and journal, holding what is live of this process's past."""
        if self._runtime.now() < self._retry_at:
            return False
        full = self._writer is not None and self._offset >= self._journal_bytes_max
        writer = self._runtime.random_bytes(8).hex()
        if full and not self._append([End(writer)]):
            full = False
        self._writer = None
        again = [] if full else self._republished()
        start = self._runtime.now()
        records: list[Record] = [Begin(FORMAT_MAJOR, self._runtime.random_bytes(16)), *again]
        parts, offset = [], 0
        for group in split_records(records, ENTRY_BYTES_MAX):
            parts.append(encode_entry(writer, offset, group, self._seal))
            offset += len(parts[-1])
        self._ledger.own(writer, start)
        try:
            handle = self._files.create(journal_path(writer))
        except FileFailure as failure:
            return self._renewal_failed(writer, failure)
        try:
            self._write_and_close(handle, 0, parts)
        except FileFailure as failure:
            self._remove_quietly(writer)
            return self._renewal_failed(writer, failure)
        end = self._runtime.now()
        if self._rules.slow_append_renews and end - start > self._slow_seconds:
            self._stats.add("journal_slow_appends")
            return False
        self._failures = 0
        self._retry_at = 0.0
        self._own.append(writer)
        self._writer, self._offset, self._last_end = writer, offset, end
        self._ledger.apply(writer, offset, records, end)
        self._stats.add("journals_begun")
        return True

    def _renewal_failed(self, writer: str, failure: FileFailure) -> bool:
        self._ledger.forget_writer(writer)
        self._stats.failed(failure, "journal")
        wait = RENEW_BACKOFF_SECONDS[min(self._failures, len(RENEW_BACKOFF_SECONDS) - 1)]
        self._failures += 1
        self._retry_at = self._runtime.now() + wait
        return False

    def _republished(self) -> list[Record]:
        if not self._rules.renewal_republishes or not self._own:
            return []
        own = set(self._own)
        packs = [pack for pack in self._ledger.packs() if own.intersection(pack.committers)]
        commits = [
            commit
            for pack in packs
            if pack.live and not pack.snapshotted
            for commit in (self.commit_of(pack),)
            if commit is not None
        ]
        dropped = [p for p in self._ledger.packs() if p.dropped and not p.gone]
        gone = [p for p in self._ledger.packs() if p.gone and not p.snapshotted]
        records: list[Record] = []
        if commits:
            records.append(Commit(tuple(commits)))
        if dropped:
            records.append(Drop(tuple(p.name for p in dropped)))
        if gone:
            records.append(Gone(tuple(p.name for p in gone)))
        return records

    def commit_of(self, pack: Pack) -> PackCommit | None:
        """The commit record of a pack in the catalog, None if its entries are not held."""
        entries = self._ledger.catalog.entries_of(pack.pack_id) if pack.pack_id >= 0 else None
        if entries is None or pack.layout is None:
            return None
        return PackCommit(
            name=pack.name,
            realm=pack.realm,
            layout=pack.layout,
            rank=pack.rank,
            version=pack.version,
            total_bytes=pack.total_bytes,
            entries=entries,
        )

    def _close_quietly(self, handle: Handle) -> None:
        with suppress(FileFailure):  # the write before it failed already and was counted
            self._files.close(handle)

    def _remove_quietly(self, writer: str) -> None:
        with suppress(FileFailure):  # a journal without a valid entry says nothing to anybody
            self._files.unlink(journal_path(writer))
