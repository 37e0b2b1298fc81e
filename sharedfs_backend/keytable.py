"""KeyTable: finds rows by chunk key, for hundreds of keys at once.

An open-addressed hash table of buckets of eight slots. A bucket is eight one-byte tags (one 64-bit
load for each key asked) and eight row numbers; only where a tag agrees is the row looked at. A
bucket that an insertion had to pass by says so, and only then does a search go on to the next one.
So nearly every search ends in its first bucket, deletion just empties a slot, and what churn leaves
behind is a few "passed" marks, which a rebuild clears.

The table is cut into shards by the upper bits of the hash. Each shard grows and is rebuilt by
itself, so the longest single step is bounded whatever the size of the whole (I9).

It stores row numbers and knows neither packs nor spaces: one key may have several slots, and the
caller tells them apart. Not thread-safe: the catalog's lock covers it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sharedfs_backend.columns import reserve

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

WIDTH = 8
SHARD_ROWS = 16384
"""Rows of a shard when the table is full: rebuilding that many takes about two milliseconds."""
BUCKETS_MIN = 32
LOAD_MAX = 0.6
"""Share of slots used before a shard doubles; at 0.6 a twentieth of the buckets overflows."""
PASSED_MAX = 0.25
"""Share of buckets newly marked as passed before a shard is rebuilt as it is."""

_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, from the golden ratio: spreads into the upper bits
_MIX2 = np.uint64(0xD6E8FEB86659FD93)


def hash_keys(keys: U64) -> U64:
    """A well mixed 64-bit hash of keys given as pairs of words, shape (n, 2)."""
    value: U64 = keys[:, 0] ^ (keys[:, 1] * _MIX)
    value ^= value >> np.uint64(32)
    value *= _MIX2
    value ^= value >> np.uint64(29)
    return value


class TableParts(NamedTuple):
    """What a search reads besides `slots`; each array stays where it is."""

    tags: U64
    passed: Mask
    mask: U64
    shard_shift: int
    base_shift: int


class KeyTable:
    """Slots hold int32 row numbers. `rows_max` rows fit; more may be refused by `place`."""

    def __init__(self, rows_max: int) -> None:
        shards = 1
        while shards * SHARD_ROWS < rows_max:
            shards *= 2
        buckets = BUCKETS_MIN
        while buckets * WIDTH * LOAD_MAX * shards < 1.25 * rows_max:
            buckets *= 2
        self._shard_shift = np.uint64(64 - shards.bit_length() + 1)
        self._buckets_max = buckets
        self._base_shift = np.uint64(buckets.bit_length() - 1)
        self._mask = np.full(shards, BUCKETS_MIN - 1, np.uint64)
        self._used = np.zeros(shards, np.int64)
        self._passed_count = np.zeros(shards, np.int64)
        self._passed_fresh = np.zeros(shards, np.int64)
        self._tags = reserve(shards * buckets, np.uint64)
        self._tag_bytes = self._tags.view(np.uint8)
        self._passed = reserve(shards * buckets, np.bool_)
        self.slots: I32 = reserve(shards * buckets * WIDTH, np.int32)

    def __len__(self) -> int:
        return int(self._used.sum())

    # -- searching ---------------------------------------------------------------------------

    def parts(self) -> TableParts:
        """For the compiled search (native/search.c), which goes the way `candidates` goes."""
        shifts = int(self._shard_shift), int(self._base_shift)
        return TableParts(self._tags, self._passed, self._mask, *shifts)

    def candidates(self, hashes: U64) -> tuple[I64, I64]:
        """(indices into `hashes`, slots): every slot that may hold one of the keys.

        A key's slots come in no order; a slot's row may have another key with an equal tag.
        """
        bucket, tag = self._bucket(hashes), _tag(hashes)
        index, slot = self._agreeing(bucket, tag)
        going_on = self._passed[bucket].nonzero()[0]
        if not len(going_on):
            return index, slot
        found = [(index, slot)]
        origin, home = going_on, bucket[going_on]
        bucket, tag, hashes = home, tag[going_on], hashes[going_on]
        while len(origin):
            bucket = self._next(bucket, hashes)
            index, slot = self._agreeing(bucket, tag)
            found.append((origin[index], slot))
            # A shard so full that every bucket was passed ends where it began.
            on = self._passed[bucket] & (self._next(bucket, hashes) != home)
            origin, home, bucket = origin[on], home[on], bucket[on]
            tag, hashes = tag[on], hashes[on]
        return (
            np.concatenate([index for index, _ in found]),
            np.concatenate([slot for _, slot in found]),
        )

    def _agreeing(self, bucket: I64, tag: npt.NDArray[np.uint8]) -> tuple[I64, I64]:
        seen = self._tags[bucket].view(np.uint8).reshape(-1, WIDTH)
        flat = (seen == tag[:, None]).reshape(-1).nonzero()[0]
        index = flat >> 3
        return index, (bucket[index] << 3) + (flat & 7)

    def _shard(self, hashes: U64) -> I64:
        if len(self._mask) == 1:
            return np.zeros(len(hashes), np.int64)
        shard: I64 = (hashes >> self._shard_shift).view(np.int64)
        return shard

    def _bucket(self, hashes: U64) -> I64:
        shard = self._shard(hashes)
        within = (hashes >> np.uint64(8)) & self._mask[shard]
        bucket: I64 = within.view(np.int64) + (shard << self._base_shift.view(np.int64))
        return bucket

    def _next(self, bucket: I64, hashes: U64) -> I64:
        """The bucket after, going round within the shard."""
        shard = self._shard(hashes)
        base = shard << self._base_shift.view(np.int64)
        within = np.bitwise_and(bucket - base + 1, self._mask[shard].view(np.int64))
        following: I64 = base + within
        return following

    # -- changing ----------------------------------------------------------------------------

    def place(self, hashes: U64, rows: I64) -> Mask:
        """Insert rows whose (key, space) has no slot yet; False where the table is full.

        Call `crowded` and `rebuild` before, so that shards stay below their load.
        """
        placed = np.zeros(len(rows), np.bool_)
        index: I64 = np.arange(len(rows))
        bucket, tag = self._bucket(hashes), _tag(hashes)
        for _ in range(self._buckets_max):
            order = np.argsort(bucket, kind="stable")
            index, bucket, tag = index[order], bucket[order], tag[order]
            free: I64 = (self._tags[bucket].view(np.uint8).reshape(-1, WIDTH) == 0).cumsum(axis=1)
            rank = _rank_in_run(bucket)
            fits: Mask = free[:, -1] > rank
            column = (free[fits] > rank[fits, None]).argmax(axis=1)
            slot = (bucket[fits] << 3) + column
            self.slots[slot] = rows[index[fits]]
            self._tag_bytes[slot] = tag[fits]
            placed[index[fits]] = True
            rest = (~fits).nonzero()[0]
            if not len(rest):
                break
            index, bucket, tag = index[rest], bucket[rest], tag[rest]
            self._mark_passed(bucket)
            bucket = self._next(bucket, hashes[index])
        self._used += np.bincount(self._shard(hashes[placed]), minlength=len(self._used))
        return placed

    def _mark_passed(self, bucket: I64) -> None:
        fresh = np.unique(bucket[~self._passed[bucket]])
        self._passed[fresh] = True
        shard = fresh >> self._base_shift.view(np.int64)
        self._passed_count += np.bincount(shard, minlength=len(self._used))

    def clear(self, slot: I64) -> None:
        """Empty these slots, each named once."""
        self._tag_bytes[slot] = 0
        shard = slot >> (self._base_shift.view(np.int64) + 3)
        self._used -= np.bincount(shard, minlength=len(self._used))

    def crowded(self, hashes: U64, expected: int = 0) -> tuple[I64, I64]:
        """(shards to be rebuilt before these keys may be placed, keys to make room for in each).

        `expected` keys in all are about to come, so that a bulk load grows each shard once.
        """
        incoming = np.bincount(self._shard(hashes), minlength=len(self._used))
        buckets = self._mask.view(np.int64) + 1
        full = self._used + incoming > buckets * (WIDTH * LOAD_MAX)
        full &= buckets < self._buckets_max
        worn = self._passed_count > self._passed_fresh + np.maximum(buckets * PASSED_MAX, WIDTH)
        shards = np.flatnonzero((full | worn) & (incoming > 0))
        return shards, np.maximum(incoming[shards], expected // len(self._used))

    def rebuild(self, shard: int, keys: U64, incoming: int) -> None:
        """Lay one shard out anew with room for `incoming` more. `keys`: of all rows, (n, 2)."""
        start = shard * self._buckets_max
        stop = start + int(self._mask[shard]) + 1
        used = np.flatnonzero(self._tag_bytes[start * WIDTH : stop * WIDTH])
        rows = self.slots[start * WIDTH : stop * WIDTH][used].astype(np.int64)
        buckets = stop - start
        while len(rows) + incoming > buckets * WIDTH * LOAD_MAX and buckets < self._buckets_max:
            buckets *= 2
        self._tags[start:stop] = 0
        self._passed[start:stop] = False
        self._mask[shard] = buckets - 1
        self._used[shard] = self._passed_count[shard] = 0
        placed = self.place(hash_keys(keys[rows]), rows)
        assert placed.all(), "a rebuilt shard is never smaller"
        self._passed_fresh[shard] = self._passed_count[shard]

    def resident_bytes(self) -> int:
        """Bytes of the buckets in use (pages of a shard are touched together)."""
        return int((self._mask.astype(np.int64) + 1).sum()) * (WIDTH * 5 + 1)

    def passed_share(self) -> float:
        """Share of buckets a search must go past."""
        return float(self._passed_count.sum() / (self._mask.astype(np.int64) + 1).sum())


def _tag(hashes: U64) -> npt.NDArray[np.uint8]:
    """1 to 255; 0 is an empty slot."""
    return np.maximum(hashes.astype(np.uint8), np.uint8(1))


def _rank_in_run(ordered: I64) -> I64:
    """0, 1, 2, ... within each run of equal values."""
    position = np.arange(len(ordered))
    starts = np.ones(len(ordered), np.bool_)
    starts[1:] = ordered[1:] != ordered[:-1]
    rank: I64 = position - np.maximum.accumulate(np.where(starts, position, 0))
    return rank
