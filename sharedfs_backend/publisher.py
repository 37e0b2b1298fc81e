"""The publisher: this process's own journal, to which it appends what others must know.

The record is the commit (I4): nobody hears of a pack before `publish` succeeded. An append opens
the journal by name without creating it, writes block-aligned entries bound to (writer, offset),
closes and checks the close. Whatever is unusual (retired while this process was frozen, a failed or
slow append, the size limit, a fork) has one remedy: a new writer id and journal, in which all that
lives of this process is published again (after a lease of silence: only what it dropped). So no
append is ever repeated at the same offset (I1).

Slow means: more than half a lease between the ends of two appends; others retire a silent journal
after a whole one. An append that hangs for that long is given up: whoever publishes next goes on
under a new id, and the hung thread finds its turn over when it wakes up (I6).

Calls block on I/O: for a worker lane. Queued records of several callers share an append.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from sharedfs_backend.context import Context
from sharedfs_backend.directories import create_in
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
QUEUE_MAX = 4096
"""Publications that wait for an append; beyond it they fail at once (I9)."""
RENEW_BACKOFF_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

Done = Callable[[bool], None]
Publication = tuple[Sequence[Record], Done]


class Turn:
    """One thread's turn at the journal; `batch` is what it is appending, since `since`."""

    __slots__ = ("batch", "since")

    def __init__(self, since: float) -> None:
        self.batch: list[Publication] = []
        self.since = since


class Journal:
    """The journal in use: where its next entry goes, and when the last one was in place."""

    __slots__ = ("last_end", "offset", "writer")

    def __init__(self, writer: str, offset: int, last_end: float) -> None:
        self.writer = writer
        self.offset = offset
        self.last_end = last_end


class TurnOver(Exception):
    """Inside this module: this thread hung for so long that another has taken over."""


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
        self._lease_seconds = context.settings.lease_seconds
        self._slow_seconds = context.settings.lease_seconds / 2
        self._ledger = ledger
        self._journal_bytes_max = journal_bytes_max
        self._lock = threading.Lock()
        self._queue: list[Publication] = []
        self._closed = False
        self._turn: Turn | None = None
        self._journal: Journal | None = None
        self._own: list[str] = []
        self._last_end = float("-inf")
        self._failures = 0
        self._retry_at = 0.0
        self._full = False

    @property
    def writer(self) -> str | None:
        """The id in use, None before the first publication and after an unusual end."""
        journal = self._journal
        return None if journal is None else journal.writer

    @property
    def is_full(self) -> bool:
        """Whether the last append failed for want of space."""
        return self._full

    def publish(self, records: Sequence[Record], on_done: Done) -> None:
        """Append `records`; `on_done(True)` once they are the commit, `on_done(False)` if not.

        `on_done` runs on this or on another publishing thread, before that thread goes on. What it
        raises is raised there once everything queued has been dealt with.
        """
        with self._lock:
            accepted = not self._closed and len(self._queue) < QUEUE_MAX
            if accepted:
                self._queue.append((records, on_done))
        if accepted:
            self._take_turn()
        else:
            self._stats.add("publications_refused")
            on_done(False)

    def ensure_writer(self, on_done: Done) -> None:
        """A journal exists under a current id: packs are named after it."""
        self.publish((), on_done)

    def end(self) -> None:
        """Say goodbye: the journal may be retired at once. Called last, on closing."""
        with self._lock:
            self._closed = True
            if self._journal is not None:
                self._queue.append(((End(None),), lambda _: None))
        self._take_turn()

    # -- turns -------------------------------------------------------------------------------

    def _take_turn(self) -> None:
        """Append what is queued, unless another thread is doing so and does not hang."""
        now = self._runtime.now()
        lost: list[Publication] = []
        with self._lock:
            hanging = self._turn
            if hanging is not None:
                if not self._rules.slow_append_renews or now - hanging.since <= self._slow_seconds:
                    return
                lost, hanging.batch = hanging.batch, []
                self._journal = None
            turn = self._turn = Turn(now)
        if hanging is not None:
            self._stats.add("journal_hung_appends")
        errors = self._tell(lost, False)
        while (batch := self._next_batch(turn)) is not None:
            try:
                done = self._write_batch(turn, batch, errors)
            except TurnOver:
                return
            with self._lock:
                if self._turn is not turn:
                    return  # everybody concerned was told
                turn.batch = []
            errors += self._tell(batch, done)
        if errors:
            raise errors[0]

    def _next_batch(self, turn: Turn) -> list[Publication] | None:
        with self._lock:
            if self._turn is not turn:
                return None
            batch, self._queue = self._queue, []
            if not batch:
                self._turn = None
                return None
            turn.batch, turn.since = batch, self._runtime.now()
            return batch

    def _tell(self, batch: list[Publication], done: bool) -> list[Exception]:
        errors: list[Exception] = []
        for _, on_done in batch:
            try:
                on_done(done)
            except Exception as error:  # raised by the caller when all have been told
                errors.append(error)
        return errors

    def _write_batch(self, turn: Turn, batch: list[Publication], errors: list[Exception]) -> bool:
        try:
            return self._write(turn, [record for records, _ in batch for record in records])
        except TurnOver:
            raise
        except Exception as error:  # records that cannot be encoded: our own mistake
            errors.append(error)
            return False

    # -- one append at a time below this line ------------------------------------------------

    def _write(self, turn: Turn, records: list[Record]) -> bool:
        for _ in range(2):
            journal = self._journal
            if journal is None or self._is_stale(journal):
                journal = self._renew(turn, journal)
            if journal is None:
                return False
            if not records or self._append(turn, journal, records):
                return True
            self._install(turn, None)
        return False

    def _install(self, turn: Turn, journal: Journal | None) -> None:
        with self._lock:
            if self._turn is not turn:
                raise TurnOver
            self._journal = journal

    def _require_turn(self, turn: Turn) -> None:
        """After every call that may have hung: another thread may have gone on without it."""
        if self._turn is not turn:
            raise TurnOver

    def _is_stale(self, journal: Journal) -> bool:
        silent_seconds = self._runtime.now() - journal.last_end
        is_silent = self._rules.slow_append_renews and silent_seconds > self._slow_seconds
        return is_silent or self._is_long(journal)

    def _is_long(self, journal: Journal) -> bool:
        return journal.offset >= self._journal_bytes_max

    def _append(self, turn: Turn, journal: Journal, records: list[Record]) -> bool:
        data, offset = self._encoded(journal.writer, journal.offset, records)
        try:
            if not self._write_parts(turn, journal, data):
                return False
        except FileFailure as failure:
            self._require_turn(turn)
            self._full = failure.kind is FailureKind.NO_SPACE
            self._stats.failed(failure, "append")
            return False
        end = self._runtime.now()
        self._require_turn(turn)
        self._full = False
        if self._is_slow(journal, end):
            return False
        journal.last_end, journal.offset, self._last_end = end, offset, end
        self._ledger.apply(journal.writer, offset, records, end)
        return True

    def _is_slow(self, journal: Journal, now: float) -> bool:
        """What is in place by now is too late: others may have retired the journal meanwhile."""
        is_slow = self._rules.slow_append_renews and now - journal.last_end > self._slow_seconds
        if is_slow:
            self._stats.add("journal_slow_appends")
        return is_slow

    def _encoded(self, writer: str, offset: int, records: list[Record]) -> tuple[list[bytes], int]:
        """Entries for `records` from `offset` on, and where they end."""
        parts: list[bytes] = []
        for group in split_records(records, ENTRY_BYTES_MAX):
            parts.append(encode_entry(writer, offset, group, self._seal))
            offset += len(parts[-1])
        return parts, offset

    def _write_parts(self, turn: Turn, journal: Journal, parts: list[bytes]) -> bool:
        """False, and nothing is written, if even the open took too long."""
        path = journal_path(journal.writer)
        if self._rules.append_never_creates:
            handle = self._files.open_write(path)
        else:
            try:
                handle = self._files.open_write(path)
            except FileFailure as failure:
                if failure.kind is not FailureKind.MISSING:
                    raise
                handle = self._files.create(path)
        if self._turn is not turn or self._is_slow(journal, self._runtime.now()):
            self._close_quietly(handle)
            self._require_turn(turn)
            return False
        self._write_and_close(handle, journal.offset, parts)
        return True

    def _write_and_close(self, handle: Handle, offset: int, parts: list[bytes]) -> None:
        """A handle is closed once, also when that fails."""
        try:
            self._files.write(handle, offset, parts)
        except FileFailure:
            self._close_quietly(handle)
            raise
        self._files.close(handle)

    def _renew(self, turn: Turn, old: Journal | None) -> Journal | None:
        """A new id and journal, holding what is live of this process's past."""
        if self._runtime.now() < self._retry_at:
            return None
        writer = self._runtime.random_bytes(8).hex()
        is_ended = old is not None and self._is_long(old) and self._append(turn, old, [End(writer)])
        self._install(turn, None)
        start = self._runtime.now()
        again = [] if is_ended else self._republished(start)
        records: list[Record] = [Begin(FORMAT_MAJOR, self._runtime.random_bytes(16)), *again]
        data, offset = self._encoded(writer, 0, records)
        self._ledger.own(writer, start)
        try:
            handle = create_in(self._files, journal_path(writer))
        except FileFailure as failure:
            self._renewal_failed(turn, writer, failure)
            return None
        try:
            self._require_soon(turn, start, handle)
            self._write_and_close(handle, 0, data)
        except FileFailure as failure:
            self._remove_quietly(writer)
            self._renewal_failed(turn, writer, failure)
            return None
        end = self._runtime.now()
        if self._rules.slow_append_renews and end - start > self._slow_seconds:
            self._stats.add("journal_slow_appends")
            return None
        journal = Journal(writer, offset, end)
        self._install(turn, journal)
        self._failures, self._retry_at, self._full = 0, 0.0, False
        is_old = start - self._last_end > self._lease_seconds  # nor is it said by a later renewal
        self._own = [writer] if is_old else [*filter(self._ledger.is_own, self._own), writer]
        self._last_end = end
        self._ledger.apply(writer, offset, records, end)
        self._stats.add("journals_begun")
        return journal

    def _require_soon(self, turn: Turn, start: float, handle: Handle) -> None:
        """What was gathered at `start` is not said once it is old, or another thread has said it"""
        age = self._runtime.now() - start
        if (self._rules.slow_append_renews and age > self._slow_seconds) or self._turn is not turn:
            self._close_quietly(handle)
            raise FileFailure(FailureKind.TIMEOUT, "create", handle.path, "over half a lease")

    def _renewal_failed(self, turn: Turn, writer: str, failure: FileFailure) -> None:
        self._ledger.forget_writer(writer)
        self._stats.failed(failure, "journal")
        self._require_turn(turn)
        self._full = failure.kind is FailureKind.NO_SPACE
        wait = RENEW_BACKOFF_SECONDS[min(self._failures, len(RENEW_BACKOFF_SECONDS) - 1)]
        self._failures += 1
        self._retry_at = self._runtime.now() + wait

    def _republished(self, now: float) -> list[Record]:
        """After a lease of silence nothing is called live: others may have retired the old journal,
        dropped what it held and forgotten that; a commit said again would bring it back."""
        if not self._rules.renewal_republishes or not self._own:
            return []
        own = set(self._own)
        is_old = now - self._last_end > self._lease_seconds
        known = [] if is_old else self._ledger.packs()
        packs = [pack for pack in known if own.intersection(pack.committers)]
        commits = [
            commit
            for pack in packs
            if pack.live and not pack.snapshotted
            for commit in (self.commit_of(pack),)
            if commit is not None
        ]
        dropped = self._ledger.pending()
        gone = [p for p in self._ledger.packs() if p.gone and not p.snapshotted]
        records: list[Record] = [Commit(tuple(commits))] if commits else []
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
