"""Refresh: reading on in other writers' journals, within a budget of operations per second.

A *pass* lists journals/ once and polls every other writer that may still write: open, read, close.
`pass_seconds` is the bound of I4: max(refresh interval, operations of a pass / budget). Nothing
here lists packs or runs on a request's path; a lookup that misses may only ask for an early pass.

A pass ends by listing snapshots/ and reading what is new there: a journal may be begun, ended and
retired between two passes, or while this process was frozen, and is in a snapshot only then. A
journal listed but missing when opened was retired between the two (I4, I5).

One thread at a time calls `step`; it does what is due and affordable and says when to call again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from sharedfs_backend.context import Context
from sharedfs_backend.directories import is_namespace
from sharedfs_backend.facts import Changes
from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.layout import (
    JOURNALS,
    Stop,
    journal_path,
    parse_journal_name,
    scan,
)
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.lostjournals import LostJournals
from sharedfs_backend.snapshots import SnapshotReader, recognised

READ_BYTES = 1 << 20
POLL_BYTES_MAX = 64 << 20
"""Read of one journal in one poll; the rest waits for the next, so that none starves others."""
POLL_OPERATIONS = 3
LISTINGS = 2
EARLY_SECONDS = 0.2
"""Least time between passes that misses ask for."""
AWAIT_SECONDS, AWAIT_EVERY_SECONDS = 120.0, 2.0
"""How long, and how often, a snapshot is looked for that must exist (listings may be cached)."""
DEAD_POLL_PASSES = 32
"""A dead writer's journal is looked at in every 32nd pass, and when all are to be read again: it
grows only by an append that hung, or whose process was frozen in it."""


class Refresher:
    """See the module. `on_changes(changes, writer)` and `on_pass(started, now)` are called back."""

    def __init__(
        self,
        context: Context,
        ledger: Ledger,
        snapshots: SnapshotReader,
        on_changes: Callable[[Changes, str], None],
        on_pass: Callable[[float, float], None],
    ) -> None:
        self._files = context.files
        self._runtime = runtime = context.runtime
        self._seal = context.seal
        self._stats = context.stats
        self._refresh_seconds = context.settings.refresh_seconds
        self._rate = operations_per_second = context.settings.refresh_ops_per_second
        self._ledger = ledger
        self._snapshots = snapshots
        self._on_changes = on_changes
        self._on_pass = on_pass
        self._tokens = float(operations_per_second)
        self._tokens_at = runtime.now()
        self._todo: list[str] | None = None
        self._pass_failed = False
        self._pass_started = 0.0
        self._next_pass = runtime.now()
        self._last_pass_end = float("-inf")
        self._early = threading.Event()
        self._awaiting: dict[str, float] = {}
        self._next_await = 0.0
        self._snapshots_wanted = True
        self._all_wanted_at: float | None = None
        self._missed_dead = False
        self.unread = LostJournals(context.settings.lease_seconds)
        self._lease_seconds = context.settings.lease_seconds
        self._lost_since: float | None = None
        self.passes_done = 0
        self.passes_begun = 0
        self.last_good_pass_started = float("-inf")
        self.last_whole_pass_started = float("-inf")
        """Of the last good pass that read on in the journals of the dead, too."""

    # -- asked for from elsewhere ------------------------------------------------------------

    def ask_early(self) -> bool:
        """A lookup missed: bring the next pass forward. True if that changes anything."""
        now = self._runtime.now()
        if self._early.is_set() or now - self._last_pass_end < EARLY_SECONDS:
            return False
        self._early.set()
        return True

    @property
    def is_asked(self) -> bool:
        """Whether an early pass was asked for and has not begun."""
        return self._early.is_set()

    @property
    def is_awaiting(self) -> bool:
        """Whether a journal has vanished whose snapshot was not seen yet."""
        return bool(self._awaiting)

    def reset(self) -> None:
        """The thread that was at it hangs: what it had begun is begun anew."""
        self._todo = None

    def want_all(self) -> None:
        """Let the next passes read everything, until one could: snapshots, and the journals of
        the dead."""
        self._snapshots_wanted = True
        self._all_wanted_at = self._runtime.now()

    @property
    def pass_seconds(self) -> float:
        """Bound of I4: the time one pass over all journals takes at most, in seconds."""
        polls = len(self._ledger.live_writers(None)) * POLL_OPERATIONS + LISTINGS
        return max(self._refresh_seconds, polls / self._rate)

    # -- one thread --------------------------------------------------------------------------

    def step(self) -> float:
        """Do what is due; seconds until there is more."""
        now = self._runtime.now()
        if self._todo is None:
            if now < self._next_pass and not self._early.is_set():
                return self._next_pass - now
            if not self._afford(LISTINGS):
                return LISTINGS / self._rate
            self._begin_pass(now)
        while self._todo:
            if not self._afford(POLL_OPERATIONS):
                return POLL_OPERATIONS / self._rate
            self._poll(self._todo.pop())
        awaited = self._awaited(self._runtime.now())
        if self._snapshots_wanted or awaited:
            self._read_snapshots()
        return self._end_pass()

    def _begin_pass(self, now: float) -> None:
        self._early.clear()
        self._pass_started = now
        self._pass_failed = self._missed_dead = False
        self.passes_begun += 1
        self._todo = []
        listed = self._listed(now)
        found = recognised(parse_journal_name, listed)
        self._ledger.see_journals(found, now)
        if self.passes_done:
            self._snapshots_wanted = True
        elif self._snapshots_wanted:
            # cold: snapshots first, so that only the journals' uncovered rest is read
            self._read_snapshots()
        look_at_dead = self._all_wanted_at is not None or self.passes_begun % DEAD_POLL_PASSES == 1
        views = self._ledger.writers()
        journals = {journal_path(view.writer) for view in views if not view.vanished}
        self.unread.keep_only(journals | {name.path for name in self._snapshots.unreadable})
        if self._lost_since is not None and self._pass_failed:
            return  # nobody is taken to be gone because a directory is
        for view in views:
            if self._ledger.is_current(view.writer) or view.vanished or view.unreadable:
                continue
            if look_at_dead or not self._ledger.is_dead(view.writer) or not view.covered:
                self._todo.append(view.writer)
            else:
                self._missed_dead = True
        self._todo.sort(key=lambda _: self._runtime.random_bytes(2))

    def _read_snapshots(self) -> None:
        self._snapshots_wanted = False
        if not self._snapshots.read_new():
            self._pass_failed = True
            self._snapshots_wanted = True
        for name, failure in self._snapshots.unreadable.items():
            self.unread.failed(name.path, failure, self._runtime.now())

    def _listed(self, now: float) -> list[str]:
        """What lies in journals/. Where the directory itself was removed, nothing; but that may be
        the mount's mistake, and others may write there: then no pass is good for a lease."""
        try:
            listed = self._files.list(JOURNALS)
        except FileFailure as failure:
            if failure.kind is FailureKind.MISSING and is_namespace(self._files):
                self._lost_since = now if self._lost_since is None else self._lost_since
                if now - self._lost_since >= self._lease_seconds or not self._knows_others():
                    return []
            self._stats.failed(failure, "listing the journals")
            self._pass_failed = True
            return []
        self._lost_since = None
        return listed

    def _knows_others(self) -> bool:
        """Whether somebody else may be writing."""
        return any(
            not (view.ended or view.vanished or self._ledger.is_current(view.writer))
            for view in self._ledger.writers()
        )

    def _awaited(self, now: float) -> bool:
        """A retired journal's rest is in a snapshot that is perhaps not listed here yet: look."""
        for writer, until in list(self._awaiting.items()):
            if self._snapshots.covers(writer) or now > until:
                del self._awaiting[writer]
        if not self._awaiting or now < self._next_await:
            return False
        self._next_await = now + AWAIT_EVERY_SECONDS
        return True

    def _end_pass(self) -> float:
        now = self._runtime.now()
        self._todo = None
        self._last_pass_end = now
        self.passes_done += 1
        if not self._pass_failed:
            self.last_good_pass_started = self._pass_started
            if not self._missed_dead:
                self.last_whole_pass_started = self._pass_started
                if self._all_wanted_at is not None and self._pass_started >= self._all_wanted_at:
                    self._all_wanted_at = None
            self._on_pass(self._pass_started, now)
        self._next_pass = max(self._pass_started + self._refresh_seconds, now)
        return max(0.0, self._next_pass - now)

    def _afford(self, operations: int) -> bool:
        now = self._runtime.now()
        self._tokens = min(self._rate, self._tokens + (now - self._tokens_at) * self._rate)
        self._tokens_at = now
        if self._tokens < operations:
            return False
        self._tokens -= operations
        return True

    def _poll(self, writer: str) -> None:
        view = self._ledger.writer(writer)
        if view is None:
            return
        begun = self._runtime.now()
        try:
            handle = self._files.open_read(journal_path(writer))
        except FileFailure as failure:
            if failure.kind is FailureKind.MISSING:
                self.unread.settled(journal_path(writer))
                self._ledger.retire(writer)
                if not self._snapshots.covers(writer):
                    self._awaiting[writer] = self._runtime.now() + AWAIT_SECONDS
            else:
                self._poll_failed(writer, failure)
            return
        data: bytes | None
        offset = view.covered
        try:
            data = self._read_on(handle, offset)
        except FileFailure as failure:
            self._poll_failed(writer, failure)
            data = None
        try:
            self._files.close(handle)
        except FileFailure as failure:
            self._stats.failed(failure, "closing a journal read")
        if data:
            self._take(writer, offset, data)
        if data is not None:
            # What was read is as old as the open at worst: this process may have been frozen since.
            self._ledger.polled(writer, begun, offset + len(data))
            self.unread.settled(journal_path(writer))

    def _read_on(self, handle: object, offset: int) -> bytes:
        """What is there from `offset` on. Reads beyond the first are paid for afterwards."""
        buffer = memoryview(bytearray(READ_BYTES))  # our own: a read that hung may still come
        parts: list[bytes] = []
        total = 0
        while total < POLL_BYTES_MAX:
            count = self._files.read(handle, offset + total, buffer)  # type: ignore[arg-type]
            if count:
                parts.append(bytes(buffer[:count]))
                total += count
            if count < len(buffer):
                break
            self._tokens -= 1
        return b"".join(parts)

    def _take(self, writer: str, offset: int, data: bytes) -> None:
        found = scan(data, writer, offset, self._seal)
        now = self._runtime.now()
        ends = [entry_offset for entry_offset, _ in found.entries[1:]]
        ends += [found.next_offset] if found.entries else []
        records = [records for _, records in found.entries]
        changes = self._ledger.apply_all(writer, zip(ends, records, strict=True), now)
        if changes.committed or changes.dropped:
            self._on_changes(changes, writer)
        if found.skipped_bytes:
            self._stats.once(
                "journal_blocks_skipped",
                "journal %s: %d damaged bytes before offset %d were skipped",
                writer,
                found.skipped_bytes,
                found.next_offset,
            )
        if found.stopped is Stop.UNKNOWN_KIND:
            view = self._ledger.writer(writer)
            if view is not None:
                view.unreadable = True
            self._stats.once(
                "journals_newer",
                "journal %s: written by a newer version from offset %d on; upgrade to read it",
                writer,
                found.next_offset,
            )

    def _poll_failed(self, writer: str, failure: FileFailure) -> None:
        """What the dead may still say is needed for a whole pass only, not for a good one."""
        if self._ledger.is_dead(writer):
            self._missed_dead = True
            self.unread.settled(journal_path(writer))  # nobody waits for it
        else:
            self._pass_failed = True
            self.unread.failed(journal_path(writer), failure, self._runtime.now())
        self._stats.failed(failure, "reading a journal")
