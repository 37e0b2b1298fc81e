"""One simulated replica: opens the store, asks for prompts, stores what it did not find, dies.

It behaves like LMCache: the full key list is looked up, the prefix found is loaded into lent
buffers, the rest is computed (here: known from the key) and stored from other buffers; some loads
are cancelled. It checks at once what can be checked at once: bytes (I2), deadlines (I6), no file
operation in a lookup, no forbidden one in a load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sharedfs_backend.files import FileFailure
from sharedfs_backend.loading import LoadItem, LoadTask
from sharedfs_backend.putting import PutItem, PutTask
from sharedfs_backend.runtime import Lane, Waiter
from sharedfs_backend.store import Store
from tests.protocol.content import LAYOUT, REALMS, Document, content
from tests.sim.files import SimFiles
from tests.sim.runtime import SimRuntime
from tests.sim.world import Client

if TYPE_CHECKING:
    from tests.protocol.fleet import Fleet

FORBIDDEN_IN_LOADS = ("create", "write", "flush", "unlink", "list", "mkdir", "stat")
# Of a deadline or a time to live: what handing over between tasks may add.
SLACK_SECONDS = 1.0


class Process:
    """One life of one replica."""

    def __init__(self, fleet: Fleet, client: Client) -> None:
        self.fleet, self.client, self.world = fleet, client, fleet.world
        self.files = SimFiles(client, fleet.disk, fleet.chaos)
        self.store: Store | None = None
        self.counts: Counter[str] = Counter()
        self.opened_at = 0.0
        self.closed = False
        self._requests = 0

    # -- life -----------------------------------------------------------------------------------

    def live(self) -> None:
        """Open, serve until told to rest, then only keep the store's chores going."""
        while self.store is None:
            try:
                self.store = self._open()
            except FileFailure:
                self.world.sleep(1.0)
        self.opened_at = self.world.time
        self.fleet.opened(self)
        self.world.start(self.client, "chores", self._chores, tag="chores")
        for number in range(1, self.fleet.scenario.requests):
            self.world.start(self.client, f"serve{number}", self._serve, tag="serve")
        self._serve()

    def _serve(self) -> None:
        choice = self.world.random
        while self.fleet.serving and not self.closed:
            self.request(choice.choice(self.fleet.documents))
            self.world.sleep(choice.random() * 2 * self.fleet.scenario.think_seconds)
            if self.fleet.serving and choice.random() < self.fleet.scenario.graceful_rate:
                self.close()

    @property
    def is_over(self) -> bool:
        """Killed or closed."""
        return self.client.dead or self.closed

    def close(self) -> None:
        """Stop in good order."""
        assert self.store is not None
        self.closed = True
        self.store.close(timeout_seconds=5.0)
        self.fleet.closed(self)

    def _open(self) -> Store:
        scenario = self.fleet.scenario
        return Store(
            "/simulated",
            settings=scenario.settings(),
            runtime=SimRuntime(
                self.world, self.client, workers_max={Lane.WRITE: scenario.write_workers}
            ),
            files=self.files,
            rules=scenario.rules,
        )

    def _chores(self) -> None:
        assert self.store is not None
        while not self.closed:
            self.store.parts.wait(self.store.tick())

    # -- one request ----------------------------------------------------------------------------

    def request(self, document: Document) -> None:
        """Look up, load, store."""
        self._requests += 1
        found = self.lookup(document)
        if found:
            self.load(document, document.keys[:found])
        if found < len(document.keys):
            self.put(document, document.keys[found:])

    def lookup(self, document: Document) -> int:
        """Length of the prefix found. No file operation is allowed in it."""
        store = self.store
        assert store is not None
        realm = store.realm(REALMS[document.realm])
        task = self.world.current
        task.tag, before = f"{self.client}-lookup-{self._requests}", task.tag
        hits = store.lookup(document.keys, realm=realm)
        done = self.files.by_tag.get(task.tag)
        task.tag = before
        if done:
            self.fleet.disk.violate(f"{self.client} did {dict(done)} in a lookup")
        found = hits.index(False) if False in hits else len(hits)
        self.counts["hits"] += found
        self.counts["misses"] += len(hits) - found
        return found

    def load(self, document: Document, keys: Sequence[bytes]) -> list[bool]:
        """Load chunks; every one reported loaded is right, and nothing comes late."""
        store, world = self.store, self.world
        assert store is not None
        buffers = [bytearray(len(content(key))) for key in keys]
        items = [
            LoadItem(key, memoryview(buffer), LAYOUT)
            for key, buffer in zip(keys, buffers, strict=True)
        ]
        done = SimRuntime(world, self.client).waiter()
        realm = store.realm(REALMS[document.realm])
        tag = f"{self.client}-load-{self._requests}"
        task = self.world.current
        task.tag, before = tag, task.tag

        def on_done(_task: LoadTask) -> None:
            done.set()

        load = store.submit_load(items, realm=realm, on_done=on_done)
        task.tag = before
        limit = self.fleet.settings.load_deadline_seconds + SLACK_SECONDS
        load_was_cancelled = world.random.random() < self.fleet.scenario.cancel_rate
        if load_was_cancelled:
            done.wait(world.random.random() * 0.01)
            load.cancel()
            results = list(load.results) if done.is_set() else [False] * len(keys)
        elif self._is_over_in_time(done, limit):
            results = load.results
        else:
            self.fleet.disk.violate(f"{tag} is not over {limit} s after its submission (I6)")
            return [False] * len(keys)
        if self.fleet.scenario.is_calm and not load_was_cancelled and not all(results):
            self.fleet.disk.violate(f"{tag} missed chunks without any trouble: {load.misses}")
        for key, buffer, good in zip(keys, buffers, results, strict=True):
            if good and buffer != content(key):
                self.fleet.disk.violate(f"{tag}: {key.hex()} is loaded with wrong bytes (I2)")
            self.fleet.lender.take_back(self.client, tag, buffer, reuse=False)
        self.counts["loaded"] += sum(results)
        self.counts["lost"] += len(results) - sum(results)
        self._check_load_operations(tag)
        return results

    def _is_over_in_time(self, done: Waiter, limit_seconds: float) -> bool:
        """Whether it is within the limit. A frozen process can do nothing: it has its slack anew
        once it goes on, however long or short it was frozen."""
        done.wait(limit_seconds)
        while not done.is_set():
            left = self.client.frozen_until + SLACK_SECONDS - self.world.time
            if left <= 0:
                return False
            done.wait(left)
        return True

    def _check_load_operations(self, tag: str) -> None:
        done = self.files.by_tag.get(tag, Counter())
        forbidden = {op: done[op] for op in FORBIDDEN_IN_LOADS if done[op]}
        if forbidden:
            self.fleet.disk.violate(f"{tag} did {forbidden}")

    def put(self, document: Document, keys: Sequence[bytes]) -> PutTask | None:
        """Store chunks from buffers that are void after their time to live."""
        store, world = self.store, self.world
        assert store is not None
        buffers = [bytearray(content(key)) for key in keys]
        items = [
            PutItem(key, memoryview(buffer), LAYOUT, 0)
            for key, buffer in zip(keys, buffers, strict=True)
        ]
        done = SimRuntime(world, self.client).waiter()
        realm = store.realm(REALMS[document.realm])
        tag = f"{self.client}-put-{self._requests}"
        task = self.world.current
        task.tag, before = tag, task.tag

        def on_done(put: PutTask) -> None:
            self.fleet.told(self, [k for k, good in zip(keys, put.stored, strict=True) if good])
            done.set()

        put = store.submit_put(items, realm=realm, on_done=on_done)
        task.tag = before
        done.wait(self.fleet.settings.buffer_ttl_seconds)
        for buffer in buffers:
            self.fleet.lender.take_back(self.client, tag, buffer, reuse=True)
        if done.is_set():
            self.counts["stored"] += sum(put.stored)
            self.counts["refused"] += put.failed is not None
            return put
        self.counts["overdue"] += 1
        return None
