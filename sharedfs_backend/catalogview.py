"""CatalogView: what a namespace holds, for whoever neither stores nor loads. Reads only.

It opens a namespace that exists, keeps the same ledger and catalog as a store by reading journals
and snapshots on under the same budget of operations, and answers lookups from memory (the law's
first line). It has no writer id: it appends, creates, sweeps and removes nothing, and its lookups
count for nobody's recency. Bound of I4: the refresher's.

Thread-safe. One timer thread and at most two workers, which a hanging file system may hold up (I6,
I9); while it hangs, or before the first pass, nothing is known and `is_current` says so.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

from sharedfs_backend.catalog import ANY_SPACE, Catalog
from sharedfs_backend.context import Context
from sharedfs_backend.files import FileFailure, Files, WatchedFiles
from sharedfs_backend.keyring import KeyRing
from sharedfs_backend.layout import NAMESPACE_PATH, LayoutDescriptor
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.opening import open_within_time, reach
from sharedfs_backend.refresh import Refresher
from sharedfs_backend.rules import Rules
from sharedfs_backend.runtime import Runtime, ThreadRuntime
from sharedfs_backend.settings import Settings
from sharedfs_backend.snapshots import SnapshotReader
from sharedfs_backend.snapshotter import Snapshotter
from sharedfs_backend.stats import Stats
from sharedfs_backend.turns import TurnFiles, Turns

TICK_SECONDS_MAX = 0.25
FORGET_SECONDS = 60.0
"""Between two looks for tombstones and writers that nothing can name any more."""
STALE_PASSES = 10
"""So many refresh bounds without a complete pass, and nothing is known any more."""


class CatalogView:
    """See the module. Raises NamespaceError where there is no namespace, or none answers."""

    def __init__(
        self, settings: Settings, *, runtime: Runtime | None = None, files: Files | None = None
    ) -> None:
        own: ThreadRuntime | None = None
        if runtime is None:
            runtime = own = ThreadRuntime(read_workers_max=1, write_workers_max=1)
        self._runtime, self._own = runtime, own
        try:
            found = open_within_time(runtime, settings, files, create=False)
        except BaseException:
            if own is not None:
                own.close(0.0)
            raise
        self.seal = found.seal
        self._watched = WatchedFiles(
            files if files is not None else reach(settings, found.profile), runtime
        )
        self._closing = threading.Event()
        self._turns = Turns(runtime, settings.lease_seconds / 2)
        reading = TurnFiles(self._watched, self._turns)
        self.stats = Stats()
        context = Context(
            reading, runtime, found.seal, found.profile, settings, self.stats, Rules()
        )
        self._catalog = Catalog(settings.chunks_max)
        self._ledger = Ledger(self._catalog, found.seal, Rules(), settings.lease_seconds)
        snapshots = SnapshotReader(context, self._ledger)
        self.refresher = Refresher(
            context, self._ledger, snapshots, lambda changes, writer: None, lambda begun, now: None
        )
        self._snapshotter = Snapshotter(context, self._ledger, snapshots)
        self._keyring = KeyRing(found.seal, settings.keys_memo_max)
        self._next_refresh = self._next_forget = runtime.now()
        self._timer: threading.Thread | None = None
        if self._own is not None:
            self._timer = threading.Thread(target=self._run, name="sharedfs-view", daemon=True)
            self._timer.start()

    # -- asking ------------------------------------------------------------------------------

    def keys(self, ids: Iterable[object]) -> list[bytes]:
        """The 16-byte chunk key of each id, as the store derives it; memoised."""
        return self._keyring.derive(list(ids))

    def held(self, realm: bytes, keys: list[bytes]) -> list[bool]:
        """Which chunks a load in this realm would find, in whichever layout holds them."""
        if not keys:
            return []
        found = self._catalog.find(b"".join(keys), ANY_SPACE, realm=realm, now=self._runtime.now())
        return found.hits

    def layouts(self, realm: bytes) -> list[LayoutDescriptor]:
        """The layouts of what this realm holds."""
        known = [
            self._ledger.layout_of_space(space)
            for space, (digest, _) in enumerate(self._catalog.spaces())
            if digest == realm
        ]
        return [layout for layout in known if layout is not None]

    def __len__(self) -> int:
        """Chunks known, of all realms."""
        return len(self._catalog)

    @property
    def age_seconds(self) -> float:
        """Since the last complete pass over all journals began; infinite before the first."""
        return self._runtime.now() - self.refresher.last_good_pass_started

    @property
    def is_current(self) -> bool:
        """Whether its answers are worth anything."""
        limit = STALE_PASSES * self.refresher.pass_seconds
        return self._watched.healthy and self.age_seconds <= limit

    @property
    def operations(self) -> dict[str, int]:
        """File operations made, by name."""
        return dict(self._watched.operations)

    # -- time --------------------------------------------------------------------------------

    def tick(self) -> float:
        """Start what is due, without I/O on this thread; seconds until the next. The timer does
        this; with an injected runtime the caller does."""
        now = self._runtime.now()
        if now >= self._next_refresh:
            self._turns.start(self._refresh, self.refresher.reset)
        return min(TICK_SECONDS_MAX, max(0.001, self._next_refresh - now))

    def _refresh(self) -> None:
        if self._watched.probe_due():
            with suppress(FileFailure):  # the breaker hears of it
                self._watched.close(self._watched.open_read(NAMESPACE_PATH))
        seconds = self.refresher.step()
        now = self._runtime.now()
        self._next_refresh = now + seconds
        if now >= self._next_forget and self.refresher.passes_done:
            self._next_forget = now + FORGET_SECONDS
            self._snapshotter.forget(now)

    def _run(self) -> None:
        while not self._closing.wait(self.tick()):
            if self._own is not None:
                self._own.relieve()

    def close(self, timeout_seconds: float = 1.0) -> None:
        """End the threads; one that hangs in the file system is left behind."""
        self._closing.set()
        if self._timer is not None:
            self._timer.join(timeout_seconds)
        if self._own is not None:
            self._own.close(timeout_seconds)
