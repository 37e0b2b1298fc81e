"""What the adapter's tasks do, on the dispatcher's thread and in the store's callbacks.

Each method carries one call out and puts its result into an outbox, exactly once. Listeners are
told before the result is there, so that LMCache's books agree with what it is told. Buffers: a load
that ends early is stopped first (I7); a store that waited too long in our queue is dropped, because
the buffers' time is counted from its submission. An error of ours is a miss (I6).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult

from sharedfs_backend.layout import LayoutDescriptor
from sharedfs_backend.lmcache_common import Memory, Unreadable
from sharedfs_backend.loading import LoadItem, LoadTask
from sharedfs_backend.mp.calls import Part, Pending, Splitter
from sharedfs_backend.mp.known import KnownKeys
from sharedfs_backend.mp.layouts import LayoutBook
from sharedfs_backend.mp.leases import Leases, Load
from sharedfs_backend.mp.results import Outbox
from sharedfs_backend.putting import PutItem, PutTask
from sharedfs_backend.stats import Stats

QUEUED_SHARE_MAX = 0.1
"""Of the buffers' time to live: a store that waited longer before it began is dropped."""


class Listeners(Protocol):
    """The adapter's side of LMCache's listeners. Never raises."""

    def stored(self, keys: list[Any], sizes: list[int]) -> None: ...

    def accessed(self, keys: list[Any]) -> None: ...

    def deleted(self, keys: list[Any], sizes: list[int]) -> None: ...


@dataclass(slots=True)
class Outboxes:
    lookups: Outbox[Any]
    loads: Outbox[Any]
    stores: Outbox[Any]


class Put:
    """One store on its way: which of its keys are in the store now, and which this task wrote."""

    def __init__(self, task_id: int, keys: Sequence[Any], objects: Sequence[Any], at: float):
        self.task_id, self.keys, self.objects, self.at = task_id, tuple(keys), tuple(objects), at
        self.lock = threading.Lock()
        self.tasks: list[PutTask] = []
        self.present: dict[int, int] = {}  # place -> bytes
        self.written = 0
        self.over = False

    def keep(self, task: PutTask) -> bool:
        """Remember a part; True if the store was given up meanwhile."""
        with self.lock:
            self.tasks.append(task)
            return self.over


class Runner:
    """Lookups, loads, stores, unlocks against one store. See the module's text."""

    def __init__(
        self,
        store: Any,
        splitter: Splitter,
        layouts: LayoutBook,
        leases: Leases,
        known: KnownKeys,
        memory: Memory,
        out: Outboxes,
        listeners: Listeners,
        stats: Stats,
        now: Callable[[], float],
        buffer_ttl_seconds: float,
        deadline_seconds: float,
    ) -> None:
        self._store, self._splitter, self._layouts = store, splitter, layouts
        self._leases, self._known, self._memory = leases, known, memory
        self._out, self._listeners, self._stats, self._now = out, listeners, stats, now
        self._ttl, self._deadline = buffer_ttl_seconds, deadline_seconds
        self.puts: dict[int, Put] = {}

    # -- lookups and locks ---------------------------------------------------------------------

    def lookup(self, task_id: int, keys: Sequence[Any], descs: Any) -> None:
        """Find and lock; pure memory."""
        hits: list[int] = []
        for part in self._splitter.split(keys):
            found = self._find(keys, part, descs)
            if all(found):
                hits += part.places
            else:
                hits += [place for place, hit in zip(part.places, found, strict=True) if hit]
        bitmap = Bitmap(len(keys))
        if hits:
            locked = keys if len(hits) == len(keys) else [keys[place] for place in hits]
            self._leases.grant(tuple(locked), self._now())
            bitmap.batched_set(hits)
        self._out.lookups.put(task_id, bitmap)

    def _find(self, keys: Sequence[Any], part: Part, descs: Any) -> list[bool]:
        mine = keys if len(part.places) == len(keys) else [keys[place] for place in part.places]
        groups = [key.object_group_id for key in mine]
        sure: dict[int, LayoutDescriptor | None] = {}
        trials: list[tuple[LayoutDescriptor, ...]] = []
        for group in set(groups):
            sure[group], first = self._layouts.wanted(part.slot, group, (descs or {}).get(group))
            trials.append(first)
        # Hints no object has confirmed yet: true if they find anything.
        for attempt in zip_longest(*trials):
            both = {group: sure[group] or one for group, one in zip(sure, attempt, strict=True)}
            found = self._ask(part, groups, both)
            if any(found):
                return found
        return self._ask(part, groups, sure)

    def _ask(
        self, part: Part, groups: list[int], wanted: dict[int, LayoutDescriptor | None]
    ) -> list[bool]:
        demand = self._layouts.demand(part.realm.digest, part.digests, groups, wanted)
        found: list[bool] = self._store.lookup(
            part.digests, realm=part.realm, layouts=demand, lock=True
        )
        return found

    def no_lookup(self, task_id: int, count: int) -> None:
        self._stats.add("lookups_given_up")
        self._out.lookups.put(task_id, Bitmap(count))

    def unlock(self, keys: Sequence[Any]) -> None:
        """The store's side of an unlock; `Leases.release` was called at submission."""
        self._leases.settle()
        for part in self._splitter.split(keys, wait=False):
            self._store.unlock(part.digests, realm=part.realm)

    # -- loads ---------------------------------------------------------------------------------

    def load(self, load: Load, pending: Pending) -> None:
        """Start the reads. The load's lock is held meanwhile, so that an unlock waits."""
        for part in self._splitter.split(load.keys):
            groups = [load.keys[place].object_group_id for place in part.places]
            objects = [load.objects[place] for place in part.places]
            layouts = self._layouts.of_objects(part.slot, groups, objects)
            exact = not self._layouts.serialized
            if not exact:
                there = self._store.layouts_of(part.digests, realm=part.realm)
                layouts = self._layouts.fitting(layouts, there)
            views = [self._view(obj, writable=True) for obj in objects]
            with load.lock:
                rows = [
                    (place, digest, LoadItem(digest, view, layout, exact))
                    for place, digest, view, layout in zip(
                        part.places, part.digests, views, layouts, strict=True
                    )
                    if view is not None and place not in load.void
                ]
                if rows:
                    self._submit_load(load, part, rows, pending)
        pending.arrived()

    def _submit_load(
        self, load: Load, part: Part, rows: list[tuple[int, bytes, LoadItem]], pending: Pending
    ) -> None:
        places = [place for place, _digest, _item in rows]
        items = [item for _place, _digest, item in rows]

        def done(task: LoadTask) -> None:
            failed = []
            for place, item, good in zip(places, items, task.results, strict=True):
                if good:
                    load.good.append(place)
                elif place not in load.void:
                    failed.append(item)
            try:
                self._learn(part, failed)
            finally:
                pending.arrived()

        pending.expect()
        left = self._deadline - (self._now() - load.at)
        task = self._store.submit_load(
            items, realm=part.realm, deadline_seconds=max(left, 0.001), on_done=done
        )
        load.parts.append((places, [digest for _place, digest, _item in rows], task))

    def _learn(self, part: Part, failed: Sequence[LoadItem]) -> None:
        """Are they there in another layout? Then no lookup promises them again in ours."""
        if not failed:
            return
        there = self._store.layouts_of([item.key for item in failed], realm=part.realm)
        for item, layout in zip(failed, there, strict=True):
            if layout is not None and layout != item.layout:
                self._layouts.mismatch(part.realm.digest, item.key, item.layout)
                self._stats.add("load_misses_layout")

    def loaded(self, load: Load) -> None:
        """All parts are in: report."""
        places = sorted(place for place in load.good if place not in load.void)
        keys = [load.keys[place] for place in places]
        bitmap = Bitmap(len(load.keys))
        try:
            if places:
                bitmap.batched_set(places)
                sizes = [load.objects[place].get_size() for place in places]
                self._admit(keys, sizes, stored=False)
                self._listeners.accessed(keys)
        finally:  # whatever the books say, LMCache waits for this
            self._out.loads.put(load.task_id, bitmap)

    def no_load(self, load: Load) -> None:
        """Report a miss for everything; nothing writes to the buffers any more (I7)."""
        self._stats.add("loads_given_up")
        load.stop_all()
        self._out.loads.put(load.task_id, Bitmap(len(load.keys)))

    # -- stores --------------------------------------------------------------------------------

    def put(self, put: Put, pending: Pending) -> None:
        """Hand the chunks over. A key given twice is stored once."""
        if self._now() - put.at > QUEUED_SHARE_MAX * self._ttl:
            self._stats.once("stores_late", "a store waited too long to begin and was dropped")
            pending.arrived()
            return
        for part in self._splitter.split(put.keys):
            groups = [put.keys[place].object_group_id for place in part.places]
            objects = [put.objects[place] for place in part.places]
            layouts = self._layouts.of_objects(part.slot, groups, objects)
            items: dict[bytes, PutItem] = {}
            places: dict[bytes, list[int]] = {}
            for place, digest, obj, layout in zip(
                part.places, part.digests, objects, layouts, strict=True
            ):
                places.setdefault(digest, []).append(place)
                view = None if digest in items else self._view(obj, writable=False)
                if view is not None:
                    rank = rank_of(put.keys[place].kv_rank)
                    items[digest] = PutItem(digest, view, layout, rank)
            if items:
                self._submit_put(put, part, list(items.values()), places, pending)
        pending.arrived()

    def _submit_put(
        self,
        put: Put,
        part: Part,
        items: list[PutItem],
        places: dict[bytes, list[int]],
        pending: Pending,
    ) -> None:
        sizes = [len(item.buffer) for item in items]

        def done(task: PutTask) -> None:
            with put.lock:
                for item, size, is_new, is_there in zip(
                    items, sizes, task.stored, task.present, strict=True
                ):
                    put.written += size if is_new else 0
                    if is_there:
                        for place in places[item.key]:
                            put.present[place] = size
            pending.arrived()

        if put.over:
            return
        pending.expect()
        task = self._store.submit_put(items, realm=part.realm, on_done=done)
        if put.keep(task):
            task.cancel()

    def put_done(self, put: Put) -> None:
        """All parts are in: tell the listeners about keys that are new here, then LMCache."""
        self.puts.pop(put.task_id, None)
        places = sorted(put.present)
        whole = len(places) == len(put.keys)
        try:
            if places:
                sizes = [put.present[place] for place in places]
                self._admit([put.keys[place] for place in places], sizes, stored=True)
        finally:  # whatever the books say, LMCache waits for this
            self._out.stores.put(put.task_id, L2StoreResult(whole, put.written))

    def no_put(self, put: Put) -> None:
        """Report failure; on return nothing reads the buffers any more (I7)."""
        self._stats.add("stores_given_up")
        self.puts.pop(put.task_id, None)
        self.stop_put(put)
        self._out.stores.put(put.task_id, L2StoreResult(False, 0))

    def stop_put(self, put: Put) -> None:
        with put.lock:
            put.over = True
            tasks = list(put.tasks)
        for task in tasks:
            task.cancel()

    # -- the rest ------------------------------------------------------------------------------

    def forget(self, keys: Sequence[Any]) -> None:
        """Chunk-level forget in this process; keys LMCache has locked stay."""
        free = self._leases.unlocked(keys)
        for part in self._splitter.split(free, wait=False):
            self._store.forget(part.digests, realm=part.realm)
        self._drop(free)

    def reconcile(self, keys: Sequence[Any]) -> None:
        """Take out of LMCache's books what the store no longer has (swept, condemned)."""
        for part in self._splitter.split(keys, wait=False):
            there = self._store.layouts_of(part.digests, realm=part.realm)
            doubtful = [n for n, layout in enumerate(there) if layout is None]
            self._drop([keys[part.places[n]] for n in doubtful if self._lost(keys, part, n)])

    def _lost(self, keys: Sequence[Any], part: Part, number: int) -> bool:
        """Not there at all, or there in several layouts? Asks for each layout in use here."""
        group = keys[part.places[number]].object_group_id
        return not any(
            self._store.lookup([part.digests[number]], realm=part.realm, layouts=layout)[0]
            for layout in self._layouts.in_use(part.slot, group)
        )

    def _drop(self, keys: Sequence[Any]) -> None:
        gone = self._known.remove(keys)
        if gone.keys:
            self._listeners.deleted(gone.keys, gone.sizes)

    def _admit(self, keys: list[Any], sizes: list[int], *, stored: bool) -> None:
        fresh, gone = self._known.admit(keys, sizes, stored=stored)
        if gone.keys:
            self._listeners.deleted(gone.keys, gone.sizes)
        if fresh.keys:
            self._listeners.stored(fresh.keys, fresh.sizes)

    def _view(self, obj: Any, *, writable: bool) -> memoryview | None:
        try:
            return self._memory.view(obj, writable=writable)
        except Unreadable as error:
            self._stats.once("buffers_unreadable", "a buffer cannot be used: %s", error)
            return None


def rank_of(kv_rank: int) -> int:
    """World size and global rank from LMCache's packed rank: what tells the content apart."""
    return (kv_rank >> 16) & 0xFFFF
