"""Doubts: packs of which nobody knows whether their commit was published, or still will be.

An append that failed may have reached the file all the same, and one that hangs may do so long
after it was given up. So the file of such a pack is not touched before its drop is on record: under
the new writer id it is committed and dropped in one append, so that all count its bytes until
they are gone and nobody loads it, whenever the old record comes. While that cannot be written it is
tried again, and the pack stays what it is: published, or an orphan whose bytes this process counts.
What turns up in the journal after all, read back, was published. Only a full disk, on which no
record finds room, lets the file go first: then a late record names what is missing, a miss (I5).

`note` does no I/O; one thread at a time calls `step`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from sharedfs_backend.context import Context
from sharedfs_backend.layout import Commit, Drop, PackCommit, PackName
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.publisher import Publisher

log = logging.getLogger("sharedfs_backend")

DOUBTS_MAX = 1024
"""One forgotten costs nothing but time: it is live if its record came, else an orphan (I9)."""
WITHDRAWN_A_STEP = 16
"""Commits of ordinary packs and their drop fit one entry."""


class Doubts:
    """See the module. `on_dropped(names)`: on record, to be unlinked after the drop delay.
    `on_full(names)`: no record can be written for want of space."""

    def __init__(
        self,
        context: Context,
        ledger: Ledger,
        publisher: Publisher,
        *,
        on_dropped: Callable[[Iterable[PackName]], None],
        on_full: Callable[[Iterable[PackName]], None],
    ) -> None:
        self._stats = context.stats
        self._ledger = ledger
        self._publisher = publisher
        self._on_dropped = on_dropped
        self._on_full = on_full
        self._lock = threading.Lock()
        self._packs: dict[PackName, PackCommit] = {}
        self._is_asking = False

    def __len__(self) -> int:
        return len(self._packs)

    def note(self, commits: Sequence[PackCommit]) -> None:
        """The append that was to commit these failed, or was given up."""
        with self._lock:
            for commit in commits:
                self._packs[commit.name] = commit
            while len(self._packs) > DOUBTS_MAX:
                del self._packs[next(iter(self._packs))]

    def step(self) -> None:
        """Say of some what nobody can misunderstand, unless that is being said already."""
        self._settle_known()
        with self._lock:
            if self._is_asking or not self._packs:
                return
            self._is_asking = True
            commits = tuple(self._packs.values())[:WITHDRAWN_A_STEP]
        names = tuple(commit.name for commit in commits)

        def done(published: bool) -> None:
            with self._lock:
                self._is_asking = False
            if published:
                self._forget(names)
                self._on_dropped(names)
                self._stats.add("packs_withdrawn", len(names))
            elif self._publisher.is_full:
                self._forget(names)
                self._on_full(names)

        try:
            self._publisher.publish((Commit(commits), Drop(names)), done)
        except Exception:  # our own mistake, perhaps in one of these: not to be made every second
            log.exception("%d packs in doubt are left as they are", len(names))
            self._forget(names)

    def _settle_known(self) -> None:
        """Read in a journal meanwhile: published after all, dropped on record, or gone."""
        with self._lock:
            names = list(self._packs)
        known = [pack for name in names if (pack := self._ledger.pack(name)) is not None]
        settled = [pack for pack in known if pack.live or pack.dropped or pack.gone]
        if settled:
            self._forget(pack.name for pack in settled)
            self._on_dropped([pack.name for pack in settled if pack.dropped and not pack.gone])

    def _forget(self, names: Iterable[PackName]) -> None:
        with self._lock:
            for name in names:
                self._packs.pop(name, None)
