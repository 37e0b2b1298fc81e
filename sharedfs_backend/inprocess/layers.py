"""Chunks kept layer by layer: loaded whole when looked up, because later is too late.

With `use_layerwise` LMCache decides what it has retrieved before it loads anything, and has no way
to take back a layer that then cannot be had: a missing one would leave garbage in the engine's
cache without a word. So a lookup that pins (it precedes every retrieval) loads all layers of the
chunk into LMCache's own pool and reports a hit only for what is really there (I6). The objects
stay until the pins are returned, or for `STAY_SECONDS` where nobody returns them (I9).

Thread-safe. Knows neither store nor keys: `load` is given.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

STAY_SECONDS = 300.0
"""LMCache's own limit for a pin that nobody returns (`pin_timeout_sec`)."""


@dataclass(slots=True)
class _Staged:
    obj: Any
    pins: int
    since: float


class LayerStage:
    """Layer key -> loaded memory object, with the number of pins on it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._staged: OrderedDict[Hashable, _Staged] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._staged

    def __len__(self) -> int:
        return len(self._staged)

    def pin_all(self, keys: Sequence[Hashable], load: Callable[[], Sequence[Any | None]]) -> bool:
        """Whether all layers are staged and pinned now. `load` gets what is missing, all keys in
        order, references included; where one of them cannot be had, none is kept."""
        self._expire()
        if self._pin_present(keys):
            return True
        loaded = load()
        if len(loaded) < len(keys) or any(obj is None for obj in loaded):
            for obj in loaded:
                if obj is not None:
                    obj.ref_count_down()
            return False
        surplus: list[Any] = []
        with self._lock:
            for key, obj in zip(keys, loaded, strict=True):
                entry = self._staged.get(key)
                if entry is None:
                    entry = self._staged[key] = _Staged(obj, 0, self._now())
                else:
                    surplus.append(obj)
                entry.pins += 1
        for obj in surplus:
            obj.ref_count_down()
        return True

    def take(self, key: Hashable) -> Any | None:
        """The object with a reference more, which is the caller's; None where it is not staged."""
        with self._lock:
            entry = self._staged.get(key)
            if entry is None:
                return None
            entry.obj.ref_count_up()
            return entry.obj

    def unpin(self, key: Hashable) -> bool:
        """Return one pin; the last one lets the object go. Whether there was one."""
        with self._lock:
            entry = self._staged.get(key)
            if entry is None:
                return False
            entry.pins -= 1
            if entry.pins > 0:
                return True
            del self._staged[key]
        entry.obj.ref_count_down()
        return True

    def clear(self) -> None:
        with self._lock:
            left = list(self._staged.values())
            self._staged.clear()
        for entry in left:
            entry.obj.ref_count_down()

    def _pin_present(self, keys: Sequence[Hashable]) -> bool:
        with self._lock:
            if not all(key in self._staged for key in keys):
                return False
            for key in keys:
                self._staged[key].pins += 1
            return True

    def _expire(self) -> None:
        oldest = self._now() - STAY_SECONDS
        gone = []
        with self._lock:
            while self._staged:
                key, entry = next(iter(self._staged.items()))
                if entry.since > oldest:
                    break
                gone.append(self._staged.pop(key))
        for entry in gone:
            entry.obj.ref_count_down()
