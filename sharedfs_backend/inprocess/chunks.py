"""LMCache's keys looked up and loaded: what the store has, in memory of LMCache's pool.

    find    keys -> the layout under which each chunk can be loaded, or None; memory only
    pinned  how many leading chunks there are, locked if asked for
    get     blocking; `get_leading` for a coroutine; `get_later` for a future

Memory is allocated for what `find` promises and for nothing else, never by waiting. A load nobody
answers is given up a moment after the store's own deadline (I6). On every path, cancellation
included, each object is either the caller's or back in the pool (I7).

May raise whatever LMCache's allocator or the store raise; the backend turns that into misses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from sharedfs_backend.inprocess import layouts as memory
from sharedfs_backend.inprocess.layers import LayerStage
from sharedfs_backend.inprocess.naming import chunk_id, layer_of
from sharedfs_backend.inprocess.opening import Opened
from sharedfs_backend.inprocess.pins import Pins
from sharedfs_backend.inprocess.transfers import Load, Loads
from sharedfs_backend.layout import LayoutDescriptor

GRACE_SECONDS = 1.0
"""Beyond the store's own deadline; a load it has not answered by then is given up here."""

Found = list[LayoutDescriptor | None]


class Chunks:
    """Reading side of one backend. Any thread."""

    def __init__(self, opened: Opened, allocator: Any, stage: LayerStage, pins: Pins) -> None:
        self._store, self._realm = opened.store, opened.realm
        self._layouts, self._partial = opened.layouts, opened.partial_chunks
        self._allocator, self._stage, self._pins = allocator, stage, pins
        deadline_seconds = opened.settings.load_deadline_seconds
        self._patience_seconds = deadline_seconds + GRACE_SECONDS
        self._loads = Loads(opened.store, opened.realm, deadline_seconds)

    def close(self) -> None:
        self._loads.close()

    def digests(self, keys: Sequence[Any]) -> list[bytes]:
        """The store's chunk key for each of LMCache's."""
        digests: list[bytes] = self._store.keys([chunk_id(key) for key in keys])
        return digests

    def unlock(self, digests: Sequence[bytes]) -> None:
        if digests:
            self._store.unlock(digests, realm=self._realm)

    def find(self, keys: Sequence[Any], digests: Sequence[bytes], *, lock: bool = False) -> Found:
        """The layout under which each chunk can be loaded, None where it cannot."""
        form = self._layouts.form(layer_of(keys[0]))
        hits = self._store.lookup(digests, realm=self._realm, layouts=form.full, lock=lock)
        found: Found = [form.full if hit else None for hit in hits]
        if self._partial and not all(hits):
            self._find_partial(form, digests, found, lock)
        return found

    def _find_partial(
        self, form: memory.Form, digests: Sequence[bytes], found: Found, lock: bool
    ) -> None:
        """Fill the gaps in `found` with chunks of fewer tokens."""
        gaps = [place for place, layout in enumerate(found) if layout is None]
        have = self._store.layouts_of([digests[place] for place in gaps], realm=self._realm)
        fitting = [
            (place, layout)
            for place, layout in zip(gaps, have, strict=True)
            if layout is not None and form.fits(layout)
        ]
        if not fitting:
            return
        hits = self._store.lookup(
            [digests[place] for place, _ in fitting],
            realm=self._realm,
            layouts=[layout for _, layout in fitting],
            lock=lock,
        )
        for (place, layout), hit in zip(fitting, hits, strict=True):
            found[place] = layout if hit else None

    def leading(self, keys: Sequence[Any], *, pin: bool, lookup_id: str | None = None) -> int:
        """How many leading chunks can be loaded; with `pin` they are locked in the store."""
        digests = self.digests(keys)
        count = leading_count(self.find(keys, digests))
        if not pin or count == 0 or not self._pins.room(count):
            return count
        found = self.find(keys[:count], digests[:count], lock=True)
        count = leading_count(found)
        self.unlock([d for d, hit in zip(digests[count:], found[count:], strict=False) if hit])
        self.unlock(self._pins.add(digests[:count], lookup_id))
        return count

    def get(self, keys: Sequence[Any]) -> list[Any | None]:
        """One object or None for each key, in order; blocks until the deadline at most."""
        results: list[Any | None] = [self._stage.take(key) for key in keys]
        wanted = [place for place, obj in enumerate(results) if obj is None]
        if not wanted:
            return results
        places, load = self._start([keys[place] for place in wanted], leading=False)
        if load is None:
            return results
        if not load.wait(self._patience_seconds):
            load.cancel()
        for place, obj in zip(places, load.take(), strict=True):
            results[wanted[place]] = obj
        return results

    def get_later(self, key: Any) -> Future[Any] | None:
        """A future of the object or None; None where there is nothing to load."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        staged = self._stage.take(key)
        if staged is not None:
            future.set_result(staged)
            return future
        _, load = self._start(
            [key], leading=False, on_end=lambda ended: future.set_result(ended.take()[0])
        )
        return None if load is None else future

    async def get_leading(self, keys: Sequence[Any]) -> list[Any]:
        """The leading chunks that could be loaded. A cancellation gives all memory back first."""
        objects: list[Any] = []
        for key in keys:
            staged = self._stage.take(key)
            if staged is None:
                break
            objects.append(staged)
        try:
            if len(objects) < len(keys):
                objects += await self._load_leading(keys[len(objects) :])
        except BaseException:
            release(objects)
            raise
        return objects

    async def _load_leading(self, keys: Sequence[Any]) -> list[Any]:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def wake(load: Load) -> None:
            try:
                loop.call_soon_threadsafe(ended.set)
            except RuntimeError:  # the loop is closed: nobody will take the result
                load.cancel()

        _, load = self._start(keys, leading=True, on_end=wake)
        if load is None:
            return []
        try:
            await asyncio.wait_for(ended.wait(), self._patience_seconds)
        except TimeoutError:
            load.cancel()
        except BaseException:
            load.cancel()
            raise
        loaded = load.take()
        count = leading_count(loaded)
        release(loaded[count:])
        return loaded[:count]

    def _start(
        self,
        keys: Sequence[Any],
        *,
        leading: bool,
        on_end: Callable[[Load], None] = lambda _load: None,
    ) -> tuple[list[int], Load | None]:
        """Allocate for what can be loaded and begin; the places loaded, in the load's order."""
        digests = self.digests(keys)
        found = self.find(keys, digests)
        if leading:
            found = found[: leading_count(found)]
        places = [place for place, layout in enumerate(found) if layout is not None]
        layouts = [layout for layout in found if layout is not None]
        objects = self._allocate(keys, layouts)
        if not objects:
            return [], None
        places, layouts = places[: len(objects)], layouts[: len(objects)]
        load = self._loads.start([digests[place] for place in places], layouts, objects, on_end)
        return places, load

    def _allocate(self, keys: Sequence[Any], layouts: Sequence[LayoutDescriptor]) -> list[Any]:
        """Memory for as many leading chunks as the pool has room for."""
        if self._allocator is None or not layouts:
            return []
        if len(layouts) == self._layouts.layers and layer_of(keys[0]) == 0:
            return memory.allocate_layers(self._allocator, layouts[0], len(layouts)) or []
        objects: list[Any] = []
        try:
            for layout in layouts:
                obj = memory.allocate(self._allocator, layout)
                if obj is None:
                    break
                objects.append(obj)
        except BaseException:
            release(objects)
            raise
        return objects


def leading_count(found: Sequence[object | None]) -> int:
    """How many there are before the first None."""
    return next((place for place, one in enumerate(found) if one is None), len(found))


def release(objects: Sequence[Any | None]) -> None:
    """Give one reference of each object back."""
    for obj in objects:
        if obj is not None:
            obj.ref_count_down()
