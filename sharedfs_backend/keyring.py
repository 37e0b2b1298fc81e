"""KeyRing: chunk keys from LMCache's identifiers, remembered so that they are derived once.

The same identifiers are asked for on every request of a conversation, and a derivation costs as
much as the whole lookup that follows. What is remembered is bounded (I9) without any bookkeeping
per use: there are two generations, each at most half the limit; a full young one becomes the old
one, the old one before it is forgotten, and what is asked for again moves to the young one.

It needs no class of LMCache: anything with `chunk_hash`, `kv_rank`, `cache_salt` and
`object_group_id` (LMCache's name) or `object_group` (ours) will do. Knows nothing of realms or of
the catalog. Serves I8: rank, group and salt are part of every key. Usable from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

from sharedfs_backend.layout import Seal, chunk_key

Id = tuple[bytes, int, int, str]
"""(chunk hash, kv rank, object group, cache salt): what a key is derived from."""

AT_ONCE_MAX = 512
"""Derived under the lock at a time, in about a millisecond: somebody else's short list waits."""


class KeyRing:
    """At most `memo_max` keys are remembered, at about 300 bytes each."""

    def __init__(self, seal: Seal, memo_max: int) -> None:
        self._seal = seal
        self._generation_max = max(1, memo_max // 2)
        self._lock = threading.Lock()
        self._young: dict[Id, bytes] = {}
        self._old: dict[Id, bytes] = {}
        self.derived = 0
        """Keys derived so far, the others were remembered."""

    def __len__(self) -> int:
        """Keys remembered; one that is in both generations counts twice."""
        return len(self._young) + len(self._old)

    def derive(self, ids: Sequence[Any]) -> list[bytes]:
        """The 16-byte key of each identifier, in order."""
        if not ids:
            return []
        if hasattr(ids[0], "object_group_id"):
            wanted = [(i.chunk_hash, i.kv_rank, i.object_group_id, i.cache_salt) for i in ids]
        else:
            wanted = [(i.chunk_hash, i.kv_rank, i.object_group, i.cache_salt) for i in ids]
        if len(wanted) <= AT_ONCE_MAX:
            return self._keys_of(wanted)
        keys: list[bytes] = []
        for start in range(0, len(wanted), AT_ONCE_MAX):
            keys += self._keys_of(wanted[start : start + AT_ONCE_MAX])
        return keys

    def joined(self, ids: Sequence[Any]) -> bytes:
        """The same keys joined, as the catalog takes them."""
        return b"".join(self.derive(ids))

    def _keys_of(self, wanted: Sequence[Id]) -> list[bytes]:
        with self._lock:
            keys = list(map(self._young.get, wanted))  # no Python loop when all are remembered
            if None in keys:
                pairs = zip(wanted, keys, strict=True)
                return [key or self._renew(one) for one, key in pairs]
        return cast("list[bytes]", keys)

    def _renew(self, one: Id) -> bytes:
        """A key that is not in the young generation: from the old one, or derived."""
        key = self._young.get(one) or self._old.get(one)
        if key is None:
            key = chunk_key(self._seal, *one)
            self.derived += 1
        if one not in self._young:
            self._young[one] = key
            if len(self._young) >= self._generation_max:
                self._old, self._young = self._young, {}
        return key
