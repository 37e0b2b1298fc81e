"""Orphans: files below packs/ that no journal and no snapshot names.

A writer that dies in the middle of a store leaves one. Clearing them has to be slower than any
writer can be: list the packs, *then* read all journals and snapshots again (a pass begun after the
listing, the dead writers' journals included; a failure holds it up), and of what is still unnamed,
was so a lease ago already, and belongs to a dead writer, adopt what is a valid pack and unlink what
is not, recording it as gone (I1, I5). On GekkoFS a frozen writer's late write into an unlinked name
can abort the daemon, so there orphans are only counted until a tool clears them offline.

A small state machine, moved on by background steps: idle, listing (a few directories a step),
waiting for a pass, sizing, acting. Readers never delete.
"""

from __future__ import annotations

import enum

from sharedfs_backend.context import Context
from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.layout import (
    Commit,
    FormatError,
    Gone,
    NewerVersion,
    PackCommit,
    PackName,
    pack_shard_dirs,
)
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.packcheck import commit_of, read_header
from sharedfs_backend.publisher import Publisher
from sharedfs_backend.refresh import Refresher
from sharedfs_backend.snapshots import SnapshotReader, recognised

DIRECTORIES_A_STEP = 32
ACTIONS_A_STEP = 64


class Phase(enum.Enum):
    """Where the pass is."""

    IDLE = "idle"
    LISTING = "listing"
    WAITING = "waiting"
    SIZING = "sizing"
    ACTING = "acting"


class OrphanPass:
    """See the module. One thread at a time calls `step`."""

    def __init__(
        self,
        context: Context,
        ledger: Ledger,
        publisher: Publisher,
        refresher: Refresher,
        snapshots: SnapshotReader,
    ) -> None:
        self._files = context.files
        self._runtime = context.runtime
        self._seal = context.seal
        self._profile = context.profile
        self._stats = context.stats
        self._rules = context.rules
        self._lease_seconds = context.settings.lease_seconds
        self._ledger = ledger
        self._publisher = publisher
        self._refresher = refresher
        self._snapshots = snapshots
        self.phase = Phase.IDLE
        self._directories: list[str] = []
        self._found: list[PackName] = []
        self._listed_at = 0.0
        self._dead_at_start: frozenset[str] = frozenset()
        self._unnamed: dict[PackName, float] = {}
        self._unnamed_since: dict[PackName, float] = {}
        self._acting: list[PackName] = []
        self.settled: set[str] = set()
        """Dead writers with a journal none of whose packs is unnamed any more."""
        self.passes_done = 0
        self.judged_once = False
        """All packs were compared with all records once: usage includes the orphans."""
        self.next_allowed = 0.0
        self.acts = True

    def reset(self) -> None:
        """The thread that was at it hangs: what it had begun is given up."""
        self.phase = Phase.IDLE

    def begin(self) -> None:
        """Start a pass unless one is under way."""
        if self.phase is Phase.IDLE:
            self.phase = Phase.LISTING
            self._directories = list(pack_shard_dirs())
            self._found = []
            self._dead_at_start = frozenset(
                view.writer
                for view in self._ledger.writers()
                if self._ledger.is_dead(view.writer) and not view.vanished
            )

    def step(self) -> bool:
        """Do one part; True while there is more to do now."""
        match self.phase:
            case Phase.IDLE:
                return False
            case Phase.LISTING:
                return self._list_some()
            case Phase.WAITING:
                return self._judge()
            case Phase.SIZING:
                return self._size_some()
            case Phase.ACTING:
                return self._act_some()

    def _abort(self, failure: FileFailure) -> bool:
        self._stats.failed(failure, "an orphan pass")
        self.phase = Phase.IDLE
        return False

    def _list_some(self) -> bool:
        for _ in range(min(DIRECTORIES_A_STEP, len(self._directories))):
            try:
                names = self._files.list(self._directories.pop())
            except FileFailure as failure:
                if failure.kind is FailureKind.MISSING:
                    continue
                return self._abort(failure)
            self._found += [
                name for name in recognised(PackName.parse, names) if not self._is_counted(name)
            ]
        if not self._directories:
            self._refresher.want_all()
            self._listed_at = self._runtime.now()
            self.phase = Phase.WAITING
        return True

    def _judge(self) -> bool:
        """Once all journals were read again, it can be said what is still unnamed."""
        if self._rules.orphans_reread_first and (
            self._refresher.last_whole_pass_started < self._listed_at or self._refresher.is_awaiting
        ):
            return False
        if self._ledger.unreadable_writers() or self._snapshots.newer:
            self._stats.once(
                "orphan_passes_blind",
                "orphans are left alone: a later version writes here, and may name them",
            )
            self.phase = Phase.IDLE
            return False
        self._unnamed = {}
        self.phase = Phase.SIZING
        return True

    def _size_some(self) -> bool:
        """Count what is unnamed as bytes, a few files at a time."""
        now = self._runtime.now()
        for _ in range(min(ACTIONS_A_STEP, len(self._found))):
            name = self._found.pop()
            is_judged = self._rules.orphans_reread_first
            if (is_judged and self._is_counted(name)) or self._ledger.is_own(name.writer):
                continue
            try:
                self._ledger.see_orphan(name, self._files.size(name.path))
                if not (is_judged and self._is_named(name)):
                    self._unnamed[name] = self._unnamed_since.get(name, now)
            except FileFailure as failure:
                if failure.kind is not FailureKind.MISSING:
                    return self._abort(failure)
        if not self._found:
            self._conclude(now)
        return True

    def _conclude(self, now: float) -> None:
        """Usage is known; what may be touched?"""
        unnamed = self._unnamed
        for name in self._ledger.orphans():
            if name not in unnamed and not self._ledger.is_own(name.writer):
                self._ledger.orphan_gone(name)
        self._unnamed_since = unnamed
        may = self.acts and not self._profile.orphans_offline_only
        self._acting = [n for n, since in unnamed.items() if may and self._may_touch(n, since, now)]
        waiting_for = {name.writer for name in unnamed}
        settled = self.settled | (self._dead_at_start - waiting_for)
        self.settled = settled & {v.writer for v in self._ledger.writers() if not v.vanished}
        self.phase = Phase.ACTING
        self.judged_once = True
        self.next_allowed = now + self._lease_seconds / 4

    def _is_named(self, name: PackName) -> bool:
        pack = self._ledger.pack(name)
        if pack is None:
            return False
        return self._rules.orphans_respect_snapshots or not pack.snapshotted

    def _is_counted(self, name: PackName) -> bool:
        """A record says how long the file is, or that it is gone. A drop alone does not: its
        commit may be lost in a damaged journal."""
        pack = self._ledger.pack(name)
        return self._is_named(name) and pack is not None and (pack.committed or pack.gone)

    def _may_touch(self, name: PackName, since: float, now: float) -> bool:
        if not self._rules.orphans_of_the_dead_only:
            return True
        is_old = now - since >= self._lease_seconds or not self._rules.orphans_reread_first
        return is_old and self._ledger.is_dead(name.writer)

    def _act_some(self) -> bool:
        commits: list[PackCommit] = []
        gone: list[PackName] = []
        for _ in range(min(ACTIONS_A_STEP, len(self._acting))):
            name = self._acting.pop()
            if self._is_named(name) and self._rules.orphans_reread_first:
                continue  # since then
            try:
                commit = self._examine(name)
                if commit is None:
                    self._files.unlink(name.path)
                    gone.append(name)
                else:
                    commits.append(commit)
            except FileFailure as failure:
                if failure.kind is FailureKind.MISSING:
                    self._ledger.orphan_gone(name)
                else:
                    self._stats.failed(failure, "examining an orphan")
        self._publish(commits, gone)
        if not self._acting:
            self.phase = Phase.IDLE
            self.passes_done += 1
        return bool(self._acting)

    def _examine(self, name: PackName) -> PackCommit | None:
        """The commit record this orphan should have had, None if it is no valid pack."""
        try:
            header = read_header(self._files, self._seal, name)
        except NewerVersion as error:
            raise FileFailure(
                FailureKind.UNSUPPORTED, "read", name.path, f"{error}: left alone"
            ) from None
        except FormatError:
            return None
        return commit_of(name, header)

    def _publish(self, commits: list[PackCommit], gone: list[PackName]) -> None:
        if commits:
            self._stats.add("orphans_adopted", len(commits))
            self._publisher.publish((Commit(tuple(commits)),), lambda _: None)
        if gone:
            self._stats.add("orphans_removed", len(gone))
            for name in gone:
                self._ledger.orphan_gone(name)
            self._publisher.publish((Gone(tuple(gone)),), lambda _: None)
