"""StoredTier: a tier of the routing simulator that is the product's own store, in virtual time.

Each replica has one; in one shared namespace, or each in a directory of its own. What a replica
finds is what its store's catalog says at that moment: others' chunks after a refresh, none that a
sweep dropped. All stores live through the same time. Transfers take what the world says.
"""

from __future__ import annotations

from pathlib import Path

from bench.engine.virtual import VirtualStore
from bench.routing.engine import Tier, World

WARM_UP_SECONDS = 5.0
"""Stores are up for so long before the first request."""


class Stores:
    """The stores of a fleet, and what they wrote together."""

    def __init__(
        self,
        folder: Path,
        replicas: int,
        *,
        is_shared: bool,
        chunk_bytes: int,
        seed: int,
        cap_bytes: int | None = None,
    ) -> None:
        self.is_shared = is_shared
        self._put: set[int] = set()
        self.stores = [
            VirtualStore(
                folder / ("shared" if is_shared else f"private-{place}"),
                chunk_bytes,
                seed=1000 * seed + place,
                cap_bytes=cap_bytes,
            )
            for place in range(replicas)
        ]
        self.advance(0.0)

    def advance(self, now: float) -> None:
        for store in self.stores:
            store.advance(WARM_UP_SECONDS + now)

    def put(self, place: int, blocks: tuple[int, ...]) -> None:
        self._put.update(blocks)
        self.stores[place].put(blocks)

    @property
    def chunks_written(self) -> int:
        return sum(store.chunks_written for store in self.stores)

    @property
    def chunks_duplicate(self) -> int:
        """Written although some replica had written them before."""
        return self.chunks_written - len(self._put)

    def close(self) -> None:
        for store in self.stores:
            store.close()


class StoredTier(Tier):
    """The tier of replica `place`."""

    def __init__(self, world: World, stores: Stores, place: int) -> None:
        super().__init__(world)
        self._stores, self._place = stores, place

    def depth(self, blocks: tuple[int, ...], start: int, now: float) -> int:
        self._stores.advance(now)
        return start + self._stores.stores[self._place].depth(blocks[start:])

    def publish(self, blocks: tuple[int, ...], now: float) -> None:
        self._stores.advance(now)
        self._stores.put(self._place, blocks)
