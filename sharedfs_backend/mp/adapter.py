"""`SharedFSL2Adapter`: LMCache's multi-process mode on one store shared by a fleet.

    LMCache --submit--> dispatcher --keys, layouts--> Store --callback--> outbox --event fd-->

Submits only enqueue: LMCache calls them on threads shared by all requests. The one thing done at
once is the part of an unlock that LMCache relies on when it returns: the copies into the buffers of
an abandoned load are stopped (I7). Everything below is a miss when it fails (I6), and nothing is
called, signalled or left running after `close`. Locks are counted and returned, or expire; they
hold off our own sweep. Sizes are real bytes: a chunk that was there already costs none.

Usage by cache salt and `list_l2_keys` cover what passed through this process: the namespace knows
keys as digests. LMCache's own evictor sees one process only, so no capacity is declared to it;
`delete` makes this process forget chunks, the sweep frees space for all.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import KeyEntry, KeyListPage
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface

from sharedfs_backend.gate import Gate
from sharedfs_backend.lmcache_common import Memory
from sharedfs_backend.misses import MissKind
from sharedfs_backend.mp.calls import Pending, Splitter
from sharedfs_backend.mp.config import SharedFSL2AdapterConfig
from sharedfs_backend.mp.dispatcher import Dispatcher, Work
from sharedfs_backend.mp.guard import guarded, nothing
from sharedfs_backend.mp.known import KnownKeys
from sharedfs_backend.mp.layouts import LayoutBook
from sharedfs_backend.mp.leases import Leases, Load
from sharedfs_backend.mp.metrics import METRICS
from sharedfs_backend.mp.realms import Identity, Realms
from sharedfs_backend.mp.results import Outbox
from sharedfs_backend.mp.runner import Outboxes, Put, Runner
from sharedfs_backend.mp.serde import UNDESCRIBED, serde_on_the_stack
from sharedfs_backend.stats import Stats
from sharedfs_backend.store import Store

log = logging.getLogger("sharedfs_backend.mp")

RECONCILE_KEYS = 1024
"""Known keys compared with the catalog each second, in memory."""

CLOSE_SECONDS = 5.0
"""For work under way when the adapter is closed."""

_ALWAYS: Mapping[str, int] = {
    **{f"load_misses_{kind.value}": 0 for kind in MissKind},
    "load_misses_layout": 0,
    "bytes_loaded": 0,
    "bytes_stored": 0,
    "chunks_found": 0,
    "chunks_missed": 0,
    "chunks_loaded": 0,
    "chunks_stored": 0,
    "chunks_deduplicated": 0,
    "chunks_dropped": 0,
    "packs_dropped": 0,
    "packs_unlinked": 0,
    "sweeps_asked": 0,
}
"""Shown from the start: a dashboard cannot tell a number that is missing from one that is zero."""


class SharedFSL2Adapter(L2AdapterInterface):  # type: ignore[misc]  # LMCache is untyped
    """See the module's text. Thread-safe; LMCache uses two controller threads and a few more."""

    def __init__(
        self,
        config: SharedFSL2AdapterConfig | Mapping[str, Any],
        *,
        l1_memory_desc: Any = None,
        store: Any = None,
        identify: Callable[[str], Identity] | None = None,
        now: Callable[[], float] = time.monotonic,
        **_unused: Any,
    ) -> None:
        """`store`, `identify` and `now` are for tests; further keywords of LMCache are ignored."""
        super().__init__(max_capacity_bytes=0)
        if not isinstance(config, SharedFSL2AdapterConfig):
            config = SharedFSL2AdapterConfig.from_dict(dict(config))
        settings = self._settings = config.settings
        self._now = now
        self._stats = Stats()
        self._store = store if store is not None else Store(settings.root, settings=settings)
        self._ids = itertools.count()
        self._closed = False
        self._callbacks = Gate()
        self._out = Outboxes(Outbox(), Outbox(), Outbox())
        self._leases = Leases(settings.buffer_ttl_seconds)
        self._known = KnownKeys()
        self._reconciled = -1
        self._dispatcher = Dispatcher(settings.load_deadline_seconds, self._idle, now=now)
        self._realms = Realms(
            self._store, settings, identify or self._identify, self._dispatcher.signal
        )
        memory = Memory(getattr(l1_memory_desc, "ptr", 0), getattr(l1_memory_desc, "size", 0))
        self._runner = Runner(
            store=self._store,
            splitter=Splitter(self._store, self._realms),
            layouts=LayoutBook(lambda: bool(self._realms.serde)),
            leases=self._leases,
            known=self._known,
            memory=memory,
            out=self._out,
            listeners=self,
            stats=self._stats,
            now=now,
            buffer_ttl_seconds=settings.buffer_ttl_seconds,
            deadline_seconds=settings.load_deadline_seconds,
        )
        self._metrics = METRICS.add(settings.root, self.metrics)

    def _identify(self, model_name: str) -> Identity:
        from sharedfs_backend.identity import model_identity  # reads files: not at start-up

        override = self._settings.identity_override(model_name)
        strict = self._settings.strict_identity
        return model_identity(model_name, override=override, strict=strict)

    # -- event descriptors -----------------------------------------------------------------------

    def get_store_event_fd(self) -> int:
        return self._out.stores.fd

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._out.lookups.fd

    def get_load_event_fd(self) -> int:
        return self._out.loads.fd

    # -- stores ----------------------------------------------------------------------------------

    @guarded(lambda self, *_args, **_kw: self._failed_store())
    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Enqueue a store. The buffers stay LMCache's; they are read until the result is there."""
        task_id = next(self._ids)
        put = Put(task_id, keys, objects, self._now())
        self._runner.puts[task_id] = put
        pending = Pending(lambda: self._runner.put_done(put))
        self._enqueue(
            lambda: self._runner.put(put, pending),
            lambda: pending.give_up(lambda: self._runner.no_put(put)),
            urgent=False,
        )
        return task_id

    @guarded(lambda *_: {})
    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        """Every store finished since the last call, once."""
        return self._out.stores.take_all()

    # -- lookups and locks -------------------------------------------------------------------------

    @guarded(lambda self, keys, *_args, **_kw: self._missed(self._out.lookups, keys))
    def submit_lookup_and_lock_task(
        self, keys: list[Any], group_layout_descs: dict[int, Any] | None = None
    ) -> int:
        """Enqueue a lookup; the hits are locked once its result is there."""
        task_id, count = next(self._ids), len(keys)
        self._enqueue(
            lambda: self._runner.lookup(task_id, keys, group_layout_descs),
            lambda: self._runner.no_lookup(task_id, count),
        )
        return task_id

    @guarded(nothing)
    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        """The bitmap of hits, once; None before."""
        return self._out.lookups.take(task_id)

    @guarded(nothing)
    def submit_unlock(self, keys: list[Any]) -> None:
        """Return one lock for each key. A load LMCache gives up by this is stopped on return."""
        self._leases.release(keys)
        self._enqueue(lambda: self._runner.unlock(keys), nothing)

    # -- loads -----------------------------------------------------------------------------------

    @guarded(lambda self, keys, *_args, **_kw: self._missed(self._out.loads, keys))
    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Enqueue a load into LMCache's buffers."""
        task_id = next(self._ids)
        load = Load(task_id, keys, objects, self._now())
        self._leases.opened(load)
        pending = Pending(lambda: self._runner.loaded(load))
        self._enqueue(
            lambda: self._runner.load(load, pending),
            lambda: pending.give_up(lambda: self._runner.no_load(load)),
        )
        return task_id

    @guarded(nothing)
    def query_load_result(self, task_id: int) -> Any:
        """The bitmap of loaded chunks, once; None before."""
        bitmap = self._out.loads.take(task_id)
        if bitmap is not None:
            self._leases.handed_out(task_id)
        return bitmap

    # -- eviction, listing, usage, status ----------------------------------------------------------

    @guarded(nothing)
    def delete(self, keys: list[Any]) -> None:
        """Forget chunks in this process. Unknown and locked keys are skipped."""
        if not self._closed:
            self._runner.forget(keys)

    @guarded(lambda *_args, **_kw: KeyListPage((), None), allowed=ValueError)
    def list_l2_keys(
        self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None
    ) -> KeyListPage:
        """A page of the keys this process stored or loaded. ValueError as LMCache documents."""
        if page_size <= 0:
            raise ValueError(f"page_size must be positive, got {page_size}")
        if cursor is not None and not (cursor.isascii() and cursor.isdigit()):
            raise ValueError(f"malformed cursor {cursor!r}")
        after = -1 if cursor is None else int(cursor)
        rows, following = self._known.page(after, page_size, model_name)
        entries = tuple(KeyEntry(key.to_encoded_object_key(), size) for key, size in rows)
        return KeyListPage(entries, None if following is None else str(following))

    @guarded(lambda *_: {"is_healthy": False, "type": "sharedfs"})
    def report_status(self) -> dict[str, Any]:
        """For LMCache's status page; `is_healthy` is false while the file system is sick."""
        usage = self._store.usage()
        return {
            "is_healthy": self._dispatcher.alive and self._store.healthy,
            "type": "sharedfs",
            "root": self._settings.root,
            "live_bytes": usage.live_bytes,
            "pack_count": usage.pack_count,
            "chunk_count": usage.chunk_count,
            "cap_bytes": usage.cap_bytes,
            "models": {name: _shown(realm) for (name, _), realm in self._realms.snapshot().items()},
            "serde": self._realms.serde,
            "metrics": dict(self.metrics()),
        }

    def metrics(self) -> Mapping[str, int | float]:
        """The store's numbers and the adapter's own, flat."""
        own: dict[str, int | float] = {
            "adapter_queue": self._dispatcher.waiting,
            "adapter_parked": self._dispatcher.parked,
            "adapter_overflows": self._dispatcher.overflows,
            "adapter_failures": self._dispatcher.failures,
            "adapter_loads_open": self._leases.loading,
            "adapter_stores_open": len(self._runner.puts),
            "adapter_locks": self._leases.locked,
            "adapter_load_keys_stopped": self._leases.stopped_keys,
            "adapter_keys_known": len(self._known),
        }
        own |= {
            name if name in _ALWAYS else f"adapter_{name}": value
            for name, value in self._stats.snapshot().items()
        }
        return {**_ALWAYS, **own, **self._store.stats()}

    @guarded(nothing, allowed=ValueError)
    def set_backend_identity(self, name: str, shared: bool = False) -> None:
        """LMCache's tag for events; and the moment to see which serializer wraps us (I8)."""
        super().set_backend_identity(name, shared)
        if not self._settings.serde:
            self._realms.serde = serde_on_the_stack()
            if self._realms.serde == UNDESCRIBED:
                log.warning(
                    "sharedfs: LMCache's serializer could not be described; set `serde` in "
                    "adapter_params to a name that changes with its settings"
                )

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop everything; a second call does nothing. On return no buffer is touched any more."""
        if self._closed:
            return
        self._closed = True
        METRICS.remove(self._metrics)
        steps: Sequence[Callable[[], object]] = (
            lambda: self._realms.close(CLOSE_SECONDS),
            lambda: self._dispatcher.close(CLOSE_SECONDS),
            self._stop_all,
            lambda: self._callbacks.shut(CLOSE_SECONDS),
            lambda: self._store.close(timeout_seconds=CLOSE_SECONDS),
            self._out.lookups.close,
            self._out.loads.close,
            self._out.stores.close,
        )
        for step in steps:
            try:
                step()
            except Exception:
                log.exception("sharedfs: a step of closing failed; the others are done")

    def _stop_all(self) -> None:
        for load in self._leases.abandon_all():
            load.stop_all()
        for put in list(self._runner.puts.values()):
            self._runner.stop_put(put)

    # -- inside ------------------------------------------------------------------------------------

    def _enqueue(
        self, run: Callable[[], None], give_up: Callable[[], None], *, urgent: bool = True
    ) -> None:
        if not self._dispatcher.submit(Work(run, give_up, self._now(), urgent)):
            give_up()

    def _missed(self, outbox: Outbox[Any], keys: Any) -> int:
        """A task that is over, having found nothing."""
        task_id = next(self._ids)
        outbox.put(task_id, Bitmap(len(keys)))
        return task_id

    def _failed_store(self) -> int:
        task_id = next(self._ids)
        self._out.stores.put(task_id, L2StoreResult(False, 0))
        return task_id

    def _idle(self) -> None:
        self._leases.settle()
        keys, self._reconciled = self._known.slice(self._reconciled, RECONCILE_KEYS)
        if keys:
            self._runner.reconcile(keys)

    def stored(self, keys: list[Any], sizes: list[int]) -> None:
        """Announce keys stored for the first time through this process."""
        self._tell(lambda: self._notify_keys_stored(keys, sizes))

    def accessed(self, keys: list[Any]) -> None:
        """Announce keys loaded."""
        self._tell(lambda: self._notify_keys_accessed(keys))

    def deleted(self, keys: list[Any], sizes: list[int]) -> None:
        """Announce keys that left the store, or LMCache's books."""
        self._tell(lambda: self._notify_keys_deleted(keys, sizes))

    def _tell(self, call: Callable[[], None]) -> None:
        with self._callbacks.enter() as is_open:
            if is_open:
                try:
                    call()
                except Exception as error:
                    self._stats.once("listener_errors", "a listener failed: %r", error)


def _shown(realm: Any) -> str:
    digest = getattr(realm, "digest", None)
    return digest.hex() if digest is not None else "refused"
