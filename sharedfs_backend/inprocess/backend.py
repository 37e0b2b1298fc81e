"""`SharedFSBackend`: the store as one of LMCache's storage plugins, in the engine's own process.

Thin: names and layouts come from LMCache's keys and metadata, memory from its CPU pool, everything
else from the store. A lookup touches memory only; a store returns at once and LMCache's objects are
held until it is done; a load that fails is a miss. Reference counts: `Lent`; pins: `Pins`;
layerwise retrieval, which LMCache cannot take back: `LayerStage`.

No method but the constructor raises into LMCache, except where a short answer would be taken for
a whole one (a layer lost after its lookup): errors are counted, logged once, and are misses (I6).
Any thread. The module is longer than most because LMCache's interface has 20 methods.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from lmcache.v1.storage_backend.abstract_backend import StoragePluginInterface

from sharedfs_backend.inprocess.chunks import Chunks, release
from sharedfs_backend.inprocess.layers import LayerStage
from sharedfs_backend.inprocess.naming import kv_rank, layer_of
from sharedfs_backend.inprocess.opening import (
    Opened,
    open_backend,
    start_up_errors_are_seen,
    warn_of_hazards,
)
from sharedfs_backend.inprocess.pins import Pins
from sharedfs_backend.inprocess.transfers import Chunk, Puts
from sharedfs_backend.lmcache_common import layout_of_object

log = logging.getLogger("sharedfs_backend.inprocess")

ResultT = TypeVar("ResultT")


class LayerLost(Exception):
    """A layer that a lookup had reported can no longer be loaded, and LMCache cannot be told."""


class SharedFSBackend(StoragePluginInterface):  # type: ignore[misc]  # LMCache is untyped
    """LMCache storage plugin. Settings: the keys `sharedfs.*` of LMCache's `extra_config`."""

    def __init__(
        self,
        config: Any = None,
        metadata: Any = None,
        local_cpu_backend: Any = None,
        loop: Any = None,
        dst_device: str = "cpu",
        *,
        opener: Callable[[Any, Any], Opened] = open_backend,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(dst_device, config, metadata, local_cpu_backend, loop)
        with start_up_errors_are_seen():
            self._opened = opener(config, metadata)
        warn_of_hazards(config)
        self._store, self._realm = self._opened.store, self._opened.realm
        self._pins = Pins()
        self._stage = LayerStage(now)
        self._puts = Puts(self._store, self._realm, self._opened.put_bytes_max)
        self._chunks = Chunks(self._opened, local_cpu_backend, self._stage, self._pins)
        self._closed = False
        self.errors: Counter[str] = Counter()

    def __str__(self) -> str:
        return type(self).__name__

    # Lookups: memory only

    def contains(self, key: Any, pin: bool = False) -> bool:
        """Whether the chunk can be loaded. For the first layer, unpinned: whether all layers can,
        because LMCache asks about no other before it retrieves or skips storing a chunk."""
        if not pin and key in self._stage:
            return True
        if not pin and layer_of(key) == 0:
            every = key.split_layers(self._opened.layouts.layers)
            return self.batched_contains(every) == len(every)
        return self.batched_contains([key], pin) == 1

    def batched_contains(self, keys: list[Any], pin: bool = False) -> int:
        """How many leading chunks can be loaded."""
        try:
            if self._closed or not keys:
                return 0
            if pin and layer_of(keys[0]) is not None and self.local_cpu_backend is not None:
                return len(keys) if self._stage.pin_all(keys, lambda: self._chunks.get(keys)) else 0
            return self._chunks.leading(keys, pin=pin)
        except Exception as error:
            return self._miss("lookup", error, 0)

    async def batched_async_contains(
        self, lookup_id: str, keys: list[Any], pin: bool = False
    ) -> int:
        """The same; pins taken here end with this lookup's load or its cancellation."""
        try:
            if self._closed or not keys:
                return 0
            return self._chunks.leading(keys, pin=pin, lookup_id=lookup_id)
        except Exception as error:
            return self._miss("lookup", error, 0)

    def pin(self, key: Any) -> bool:
        """Keep the chunk from our own sweep until `unpin`. Whether it was found."""
        return self.contains(key, pin=True)

    def unpin(self, key: Any) -> bool:
        """Return one pin. Whether this backend held one."""
        try:
            if self._stage.unpin(key):
                return True
            held = self._pins.remove(self._chunks.digests([key]))
            self._chunks.unlock(held)
            return bool(held)
        except Exception as error:
            return self._miss("unpin", error, False)

    def cancel_request(self, req_id: str) -> None:
        """The request is gone: its asynchronous lookup's pins go with it."""
        try:
            self._chunks.unlock(self._pins.end_lookup(req_id))
        except Exception as error:
            self._miss("cancel", error, None)

    def touch_cache(self) -> None:
        """Recency is taken from lookups; nothing to do."""

    # Stores: off the caller's thread

    def exists_in_put_tasks(self, key: Any) -> bool:
        try:
            return self._chunks.digests([key])[0] in self._puts
        except Exception as error:
            return self._miss("store", error, False)

    def batched_submit_put_task(
        self,
        keys: Sequence[Any],
        objs: list[Any],
        transfer_spec: Any = None,
        on_complete_callback: Callable[[Any], None] | None = None,
    ) -> list[Future[None]] | None:
        """Begin to store and return. The callback comes once for each chunk newly stored."""
        try:
            future = self._submit(keys, objs, on_complete_callback)
            return None if future is None else [future]
        except Exception as error:
            return self._miss("store", error, None)

    async def async_batched_submit_put_task(
        self,
        keys: Sequence[Any],
        objs: list[Any],
        transfer_spec: Any = None,
        on_complete_callback: Callable[[Any], None] | None = None,
    ) -> None:
        """Store and return when it is done. Cancelling the wait does not cancel the store."""
        try:
            future = self._submit(keys, objs, on_complete_callback)
        except Exception as error:
            return self._miss("store", error, None)
        if future is not None:
            await asyncio.shield(asyncio.wrap_future(future))

    def _submit(
        self, keys: Sequence[Any], objs: Sequence[Any], on_stored: Callable[[Any], None] | None
    ) -> Future[None] | None:
        if self._closed or not keys:
            return None
        chunks = [
            Chunk(key, digest, obj, layout_of_object(obj), kv_rank(key.world_size, key.worker_id))
            for key, digest, obj in zip(keys, self._chunks.digests(keys), objs, strict=True)
        ]
        return self._puts.submit(chunks, on_stored)

    # Loads

    def get_blocking(self, key: Any) -> Any | None:
        """The chunk in memory of LMCache's pool, one reference the caller's; None on a miss."""
        return self.batched_get_blocking([key])[0]

    def batched_get_blocking(self, keys: list[Any]) -> list[Any | None]:
        """One object or None for each key, in order."""
        try:
            return [None] * len(keys) if self._closed or not keys else self._chunks.get(keys)
        except Exception as error:
            return self._miss("load", error, [None] * len(keys))

    def get_non_blocking(self, key: Any, location: str | None = None) -> Future[Any] | None:
        """A future of the object (or None), or None where the chunk is not there."""
        try:
            return None if self._closed else self._chunks.get_later(key)
        except Exception as error:
            return self._miss("load", error, None)

    async def batched_get_non_blocking(
        self, lookup_id: str, keys: list[Any], transfer_spec: Any = None
    ) -> list[Any]:
        """The leading chunks that could be loaded, each with one reference the caller's.

        Raises LayerLost where LMCache retrieves layer by layer and one is missing: it would take
        the short answer for a whole one. Cancellation gives every buffer back first (I7).
        """
        objects: list[Any] = []
        try:
            if keys and not self._closed:
                objects = await self._chunks.get_leading(keys)
        except Exception as error:
            self._miss("load", error, None)
        finally:
            self.cancel_request(lookup_id)
        if len(objects) < len(keys) and transfer_spec is None and layer_of(keys[0]) is not None:
            release(objects)
            raise LayerLost(f"{len(keys) - len(objects)} of {len(keys)} chunks of one layer")
        return objects

    # The rest of LMCache's interface

    def remove(self, key: Any, force: bool = True) -> bool:
        """Forget the chunk in this process; other replicas keep it. Whether it was there."""
        return self.batched_remove([key], force) == 1

    def batched_remove(self, keys: list[Any], force: bool = True) -> int:
        """The same for many; without `force` pinned chunks stay."""
        try:
            digests = self._chunks.digests(keys)
            gone = [digest for digest in digests if force or not self._pins.holds(digest)]
            return sum(size > 0 for size in self._store.forget(gone, realm=self._realm))
        except Exception as error:
            return self._miss("remove", error, 0)

    def get_allocator_backend(self) -> Any:
        """LMCache's CPU backend, whose memory we store from and load into."""
        if self.local_cpu_backend is None:
            raise RuntimeError("LMCache gave this process no CPU memory to load into")
        return self.local_cpu_backend

    def close(self) -> None:
        """End what is under way, give every reference and pin back, leave the store (I7)."""
        if self._closed:
            return
        self._closed = True
        for step in (self._puts.close, self._chunks.close, self._stage.clear, self._unpin_all):
            try:
                step()
            except Exception as error:
                self._miss("close", error, None)
        self._opened.lease.release()

    # Below LMCache's interface

    def _unpin_all(self) -> None:
        self._chunks.unlock(self._pins.clear())

    def _miss(self, what: str, error: Exception, result: ResultT) -> ResultT:
        self.errors[what] += 1
        if self.errors[what] == 1:
            log.error("sharedfs: %s failed, counted as a miss from here on", what, exc_info=error)
        return result
