"""From LMCache's model name to a realm of the store, off every request's thread.

Finding a model's identity reads files, and opening a realm may too, so both happen on a thread of
their own; a lookup waits for the answer at the dispatcher, not in it. Until then `get` says None.
A model whose realm cannot be had (its identity is refused, or hash or settings disagree, I8) is
REFUSED: all its lookups miss and its stores are dropped, with the reason logged once.

Hash family: LMCache does not tell an adapter its hash algorithm; the length of the chunk hash goes
into the realm, and a model used with two lengths has two realms. Bounded (I9): `MODELS_MAX` names.
Any thread may call; knows nothing of tasks or buffers.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from sharedfs_backend.layout import RealmDescriptor
from sharedfs_backend.settings import Settings

log = logging.getLogger("sharedfs_backend.mp")

MODELS_MAX = 256
"""Model names (with hash lengths) one server may use; more are refused."""


class Refused(enum.Enum):
    """The model's realm cannot be had."""

    REFUSED = "refused"


REFUSED = Refused.REFUSED

Slot = tuple[str, int]
"""Model name as LMCache gives it, and the length of its chunk hashes in bytes."""


class Identity(Protocol):
    """What `sharedfs_backend.identity` finds out about a model."""

    @property
    def text(self) -> str: ...

    @property
    def verified(self) -> bool: ...

    @property
    def note(self) -> str: ...


def slot_of(key: Any) -> Slot:
    """Which realm an ObjectKey belongs to."""
    return key.model_name, len(key.chunk_hash)


class Realms:
    """Slot -> realm. `on_ready(slot)` is called on the resolving thread once `get` knows."""

    def __init__(
        self,
        store: Any,
        settings: Settings,
        identify: Callable[[str], Identity],
        on_ready: Callable[[Slot], None],
    ) -> None:
        self._store, self._settings = store, settings
        self._identify, self._on_ready = identify, on_ready
        self._lock = threading.Lock()
        self._known: dict[Slot, Any] = {}
        self._wanted: deque[Slot] = deque()
        self._asked: set[Slot] = set()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.serde = settings.serde

    def get(self, slot: Slot) -> Any | Refused | None:
        """The realm, REFUSED, or None while it is being found out (which this call starts)."""
        found = self._known.get(slot)
        if found is not None:
            return found
        with self._lock:
            if self._closed or (len(self._asked) >= MODELS_MAX and slot not in self._asked):
                return REFUSED
            if slot not in self._asked:
                self._asked.add(slot)
                self._wanted.append(slot)
                if self._thread is None:
                    self._start()
        return self._known.get(slot)

    def snapshot(self) -> dict[Slot, Any]:
        return dict(self._known)

    def close(self, timeout_seconds: float) -> None:
        """Stop resolving. A thread stuck in a file system is abandoned after the timeout."""
        with self._lock:
            self._closed = True
            self._wanted.clear()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="sharedfs-realms", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._thread = None
                    return
                slot = self._wanted.popleft()
            self._known[slot] = self._resolve(slot)
            if not self._closed:
                self._on_ready(slot)

    def _resolve(self, slot: Slot) -> Any | Refused:
        model, hash_bytes = slot
        try:
            identity = self._identify(model)
            if not identity.verified:
                log.warning("sharedfs: model %r: %s", model, identity.note)
            return self._store.realm(
                RealmDescriptor(
                    model_identity=identity.text,
                    identity_verified=identity.verified,
                    shard=self._settings.shard,
                    serde=self.serde,
                    hash_family=f"lmcache-mp-{hash_bytes * 8}",
                )
            )
        except Exception as error:  # whatever it is: this model is not shared, all others are
            log.error("sharedfs: nothing is shared for model %r: %s", model, error)
            return REFUSED
