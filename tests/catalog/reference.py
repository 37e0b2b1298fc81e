"""What the catalog promises, in plain dicts: slow, obvious, and written without looking at it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from sharedfs_backend.layout import ChunkEntry, EntryTable


@dataclass
class ReferencePack:
    sort_key: bytes
    space: int
    version: int
    entries: tuple[ChunkEntry, ...]
    hidden: set[bytes] = field(default_factory=set)
    suspended_until: float = float("-inf")


@dataclass
class Reference:
    """`chosen`: (key, space) -> pack id. A loser is never reconsidered when its winner goes."""

    realm_of_space: list[bytes]
    packs: dict[int, ReferencePack] = field(default_factory=dict)
    chosen: dict[tuple[bytes, int], int] = field(default_factory=dict)

    def add(self, pack_id: int, pack: ReferencePack) -> None:
        self.packs[pack_id] = pack
        for entry in pack.entries:
            holder = self.chosen.get((entry.key, pack.space))
            if holder is None or self._before(pack, self.packs[holder]):
                self.chosen[entry.key, pack.space] = pack_id

    @staticmethod
    def _before(new: ReferencePack, old: ReferencePack) -> bool:
        if new.version != old.version:
            return new.version > old.version
        return new.sort_key < old.sort_key

    def remove(self, pack_id: int) -> None:
        self.packs.pop(pack_id, None)
        self.chosen = {item: held for item, held in self.chosen.items() if held != pack_id}

    def find(self, key: bytes, space: int, now: float) -> int:
        return self._unsuspended(self._visible(key, space), now)

    def find_any(self, key: bytes, realm: bytes, now: float) -> int:
        spaces = [space for space, owner in enumerate(self.realm_of_space) if owner == realm]
        found = [held for space in spaces if (held := self._visible(key, space)) >= 0]
        return self._unsuspended(found[0], now) if len(found) == 1 else -1

    def _visible(self, key: bytes, space: int) -> int:
        held = self.chosen.get((key, space), -1)
        return -1 if held >= 0 and key in self.packs[held].hidden else held

    def _unsuspended(self, held: int, now: float) -> int:
        return -1 if held >= 0 and self.packs[held].suspended_until > now else held

    def highest_version(self, key: bytes, space: int) -> int:
        held = self.chosen.get((key, space), -1)
        return self.packs[held].version if held >= 0 else 0

    def findable(self) -> int:
        return sum(key not in self.packs[held].hidden for (key, _), held in self.chosen.items())


def entry(rng: random.Random, key: bytes) -> ChunkEntry:
    """A row with a place, a length and a checksum of its own."""
    return ChunkEntry(key, 4096 * rng.randrange(1 << 30), rng.randrange(1 << 32), rng.randbytes(16))


def table(*entries: ChunkEntry) -> EntryTable:
    return EntryTable.from_entries(entries)
