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
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from sharedfs_backend.layout import Seal, chunk_key

Context = tuple[int, int, str]
"""(kv rank, object group, cache salt): nearly always one for a whole request."""

_hash_of = attrgetter("chunk_hash")
_theirs = attrgetter("kv_rank", "object_group_id", "cache_salt")
_ours = attrgetter("kv_rank", "object_group", "cache_salt")


class KeyRing:
    """At most `memo_max` keys are remembered, at about 200 bytes each."""

    def __init__(self, seal: Seal, memo_max: int) -> None:
        self._seal = seal
        self._generation_max = max(1, memo_max // 2)
        self._lock = threading.Lock()
        self._young: dict[Context, dict[bytes, bytes]] = {}
        self._old: dict[Context, dict[bytes, bytes]] = {}
        self._young_count = 0
        self._old_count = 0
        self.derived = 0
        """Keys derived so far, the others were remembered."""

    def __len__(self) -> int:
        """Keys remembered; one that is in both generations counts twice."""
        return self._young_count + self._old_count

    def derive(self, ids: Sequence[Any]) -> list[bytes]:
        """The 16-byte key of each identifier, in order."""
        if not ids:
            return []
        contexts = self._contexts(ids)
        hashes = list(map(_hash_of, ids))
        with self._lock:
            if len(set(contexts)) == 1:
                return self._of_one_context(contexts[0], hashes)
            return self._of_many_contexts(contexts, hashes)

    def joined(self, ids: Sequence[Any]) -> bytes:
        """The same keys joined, as the catalog takes them."""
        return b"".join(self.derive(ids))

    @staticmethod
    def _contexts(ids: Iterable[Any]) -> list[Context]:
        first = next(iter(ids))
        context_of = _theirs if hasattr(first, "object_group_id") else _ours
        return list(map(context_of, ids))

    def _of_one_context(self, context: Context, hashes: list[bytes]) -> list[bytes]:
        """The usual case, without a Python loop when all are remembered."""
        keys = list(map(self._young.get(context, {}).get, hashes))
        pairs = zip(hashes, keys, strict=True)
        return [key or self._renew(context, chunk_hash) for chunk_hash, key in pairs]

    def _of_many_contexts(self, contexts: list[Context], hashes: list[bytes]) -> list[bytes]:
        memo_of = self._young.get
        pairs = list(zip(contexts, hashes, strict=True))
        keys = [None if (memo := memo_of(one)) is None else memo.get(hash_) for one, hash_ in pairs]
        return [key or self._renew(*pair) for pair, key in zip(pairs, keys, strict=True)]

    def _renew(self, context: Context, chunk_hash: bytes) -> bytes:
        """A key that is not in the young generation: from the old one, or derived."""
        memo = self._young.setdefault(context, {})
        key = memo.get(chunk_hash) or self._old.get(context, {}).get(chunk_hash)
        if key is None:
            key = chunk_key(self._seal, chunk_hash, *context)
            self.derived += 1
        if chunk_hash not in memo:
            memo[chunk_hash] = key
            self._young_count += 1
            if self._young_count >= self._generation_max:
                self._old, self._old_count = self._young, self._young_count
                self._young, self._young_count = {}, 0
        return key
