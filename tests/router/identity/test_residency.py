"""KV events become residency: the engine's blocks, its stream, and what may be lost of it."""

from __future__ import annotations

import asyncio
import random
import warnings
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]  # it ships no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import residency
from router.canonical import TOKEN_BYTES
from router.kv_events import Batch, Follower, follow
from router.prefix import BLOCK_BYTES, chain, token_seed
from router.residency import Residency, ResidencyMap, Stored

OURS = BLOCK_BYTES // TOKEN_BYTES
"""Tokens of one of our blocks."""
PARTS = OURS // 16


def tokens(count: int, seed: int = 1) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(50_000) for _ in range(count)]


def ours(ids: Sequence[int], adapter: str = "", salt: str = "") -> list[int]:
    """The chain over these ids: what an exact ask for them has as its blocks."""
    return chain(array("I", ids).tobytes(), token_seed(adapter, salt), BLOCK_BYTES, 1 << 20)


class Cache:
    """An engine's prefix cache: blocks by a hash of all before them, leaves removed first."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.held: dict[bytes, list[int]] = {}
        """Block hash -> all tokens to its end."""
        self.parents: dict[bytes, bytes | None] = {}

    def store(self, ids: Sequence[int], **more: Any) -> list[dict[str, Any]]:
        """One event for what is not held yet, as vLLM makes it."""
        parent: bytes | None = None
        start, fresh = 0, list[bytes]()
        for end in range(self.block, len(ids) + 1, self.block):
            name = self.hash(ids[:end])
            if name in self.held:
                parent, start = name, end
            else:
                self.held[name] = list(ids[:end])
                self.parents[name] = fresh[-1] if fresh else parent
                fresh.append(name)
        event = {
            "type": "BlockStored",
            "block_hashes": fresh,
            "parent_block_hash": parent,
            "token_ids": list(ids[start : start + len(fresh) * self.block]),
            "block_size": self.block,
            "medium": "GPU",
            "group_idx": 0,
        }
        return [{**event, **more}] if fresh else []

    def leaves(self) -> list[bytes]:
        inner = set(self.parents.values())
        return [name for name in self.held if name not in inner]

    def evict(self, choice: int) -> list[dict[str, Any]]:
        if not self.held:
            return []
        leaves = self.leaves()
        gone = leaves[choice % len(leaves)]
        del self.held[gone], self.parents[gone]
        return [{"type": "BlockRemoved", "block_hashes": [gone], "medium": "GPU"}]

    @staticmethod
    def hash(prefix: Sequence[int]) -> bytes:
        return hash(tuple(prefix)).to_bytes(8, "big", signed=True)

    def ours(self) -> set[int]:
        """Blocks of ours all of whose tokens are held."""
        return {block for leaf in self.leaves() for block in ours(self.held[leaf])}


class Listener:
    """What a follower told, put together."""

    def __init__(self) -> None:
        self.resident: set[int] = set()
        self.follower = Follower(self.hear)
        self.number = 0

    def hear(self, change: Residency) -> None:
        if change.cleared:
            self.resident.clear()
        self.resident -= set(change.removed)
        self.resident |= set(change.stored)

    def batch(self, events: Sequence[Any]) -> Batch:
        self.number += 1
        return Batch(self.number - 1, msgpack.packb([0.0, list(events), 0]))

    def take(self, events: Sequence[Any]) -> None:
        self.follower.take(self.batch(events))


@pytest.mark.parametrize("block", [1, 8, 16, 128, 200, 256, 400])
def test_what_an_engine_stores_is_resident_in_our_blocks(block: int) -> None:
    cache, listener, ids = Cache(block), Listener(), tokens(1000)
    listener.take(cache.store(ids))
    assert listener.resident == set(ours(ids[: 1000 // block * block]))


STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1400)), max_size=40)


@settings(deadline=None, max_examples=50)
@given(STEPS, st.sampled_from([8, 16, 96, 128, 200, 400]))
def test_residency_is_what_the_cache_holds(steps: list[tuple[int, int]], block: int) -> None:
    cache, listener = Cache(block), Listener()
    trunk = tokens(600)
    for kind, value in steps:
        branch = trunk[: value % 601] + tokens(value, seed=kind)
        listener.take(cache.evict(value) if kind > 6 else cache.store(branch))
        assert listener.resident == cache.ours()
    while events := cache.evict(0):
        listener.take(events)
    assert listener.resident == set() and len(listener.follower.map) == 0
    assert listener.follower.map._nodes == {}


def test_adapters_and_salts_are_told_apart() -> None:
    ids = tokens(2 * OURS)
    listener = Listener()
    listener.take(Cache(OURS).store(ids, lora_name="l", extra_keys=[["l", "salt"], ["l"]]))
    assert listener.resident == set(ours(ids, "l", "salt"))
    listener.take(Cache(OURS).store(tokens(2 * OURS, 2), extra_keys=[["salt"], None]))
    assert listener.resident >= set(ours(tokens(2 * OURS, 2), "", "salt"))


@pytest.mark.parametrize("extra", [[["img", 3]], [b"digest"], [["img", 3], "salt"]])
def test_blocks_with_images_or_embeddings_are_left_out_and_counted(extra: list[Any]) -> None:
    listener, cache, ids = Listener(), Cache(OURS), tokens(4 * OURS)
    listener.take(cache.store(ids, extra_keys=[None, extra, None, None]))
    assert listener.resident == set(ours(ids[:OURS]))
    assert listener.follower.map.unmapped == 3


def test_blocks_whose_parent_is_not_known_are_left_out_and_counted() -> None:
    listener, cache, ids = Listener(), Cache(OURS), tokens(4 * OURS)
    cache.store(ids[: 2 * OURS])
    listener.take(cache.store(ids))
    assert (listener.resident, listener.follower.map.unmapped) == (set(), 2)


def test_other_media_groups_and_windows_do_not_count() -> None:
    listener, ids = Listener(), tokens(2 * OURS)
    for more in (
        {"medium": "CPU"},
        {"medium": "STORAGE"},
        {"group_idx": 1},
        {"kv_cache_spec_sliding_window": 1024},
    ):
        listener.take(Cache(OURS).store(ids, **more))
    assert listener.resident == set()
    listener.take(Cache(OURS).store(ids, medium=None))
    assert len(listener.resident) == 2


def test_a_cleared_cache_holds_nothing() -> None:
    listener = Listener()
    listener.take(Cache(16).store(tokens(2 * OURS)))
    listener.take([{"type": "AllBlocksCleared"}])
    assert listener.resident == set()


def test_a_lost_message_empties_the_map() -> None:
    listener, cache = Listener(), Cache(16)
    listener.take(cache.store(tokens(2 * OURS)))
    listener.batch(cache.evict(0))  # never arrives
    listener.take(cache.store(tokens(2 * OURS, 2)))
    assert listener.resident == set(ours(tokens(2 * OURS, 2)))
    assert listener.follower.gaps == 1


def test_an_engine_that_starts_anew_holds_nothing_of_before() -> None:
    listener, other = Listener(), Listener()
    for seed in range(3):
        listener.take(Cache(16).store(tokens(256, seed)))
    for number in range(1, 3):  # the first one was missed
        batch = other.batch(Cache(16).store(tokens(256, 7)))
        if number > 1:
            listener.follower.take(batch)
    assert listener.resident == set(ours(tokens(256, 7)))


def test_a_message_that_comes_replayed_and_as_it_is_counts_once() -> None:
    listener, cache = Listener(), Cache(16)
    first, second = listener.batch(cache.store(tokens(2 * OURS))), listener.batch(cache.evict(0))
    for batch, replayed in ((first, True), (second, True), (first, False), (second, False)):
        listener.follower.take(batch, replayed=replayed)
    assert listener.resident == cache.ours() and listener.follower.batches == 2


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", msgpack.packb(3), msgpack.packb([0.0]), msgpack.packb([0.0, 3]),
     b"\x92\x00\x91\x81\x90\x01"],  # a list as a map's key
)  # fmt: skip
def test_a_malformed_message_is_counted(payload: bytes) -> None:
    listener = Listener()
    listener.follower.take(Batch(0, payload))
    assert listener.follower.malformed == 1


@pytest.mark.parametrize(
    "event",
    [
        3,
        {"type": "BlockStored"},
        {"type": "BlockRemoved", "block_hashes": 3},
        {**Cache(16).store(tokens(16))[0], "token_ids": ["x"] * 16},
        {**Cache(16).store(tokens(16))[0], "token_ids": [-1] * 16},
        {**Cache(16).store(tokens(16))[0], "extra_keys": 3},
    ],
)
def test_a_malformed_event_is_counted(event: Any) -> None:
    listener = Listener()
    listener.take([event, *Cache(16).store(tokens(2 * OURS))])
    assert listener.follower.malformed == 1 and len(listener.resident) == 2


def test_a_kind_of_event_from_later_is_passed_over() -> None:
    listener = Listener()
    listener.take([{"type": "BlockMoved", "block_hashes": [1]}])
    assert listener.follower.malformed == 0


def test_the_number_of_blocks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "NODES_MAX", 10)
    known, ids = ResidencyMap(), tokens(320)
    known.stored(Stored(list(range(20)), None, ids, 16))
    assert (len(known._nodes), known.unmapped) == (10, 10)


def test_shared_beginnings_are_forgotten_with_what_ends_in_them() -> None:
    """Thousands of branches off one half block leave nothing behind in it."""
    cache, listener, trunk = Cache(64), Listener(), tokens(64)
    for seed in range(50):
        listener.take(cache.store(trunk + tokens(64, seed)))
        listener.take(cache.evict(0))
    node = listener.follower.map._nodes[Cache.hash(trunk)]
    assert len(node.ours) == 0 and len(cache.held) == 1


def parts(ids: Sequence[int], start: int, end: int) -> list[dict[str, Any]]:
    """The event of blocks `start` to `end` alone, 16 tokens each."""
    cache = Cache(16)
    cache.store(ids[: 16 * start])
    return cache.store(ids[: 16 * end])


def test_a_block_said_again_is_still_under_what_it_was_under() -> None:
    listener, ids = Listener(), tokens(OURS)
    listener.take(parts(ids, 0, PARTS))
    listener.take(parts(ids, 0, 1))
    assert listener.resident == set(ours(ids))
    listener.take([{"type": "BlockRemoved", "block_hashes": [Cache.hash(ids[:16])]}])
    assert listener.resident == set()


def test_a_block_of_which_a_part_is_gone_is_not_resident() -> None:
    listener, ids = Listener(), tokens(OURS)
    listener.take(parts(ids, 0, PARTS // 2))
    listener.take([{"type": "BlockRemoved", "block_hashes": [Cache.hash(ids[:32])]}])
    listener.take(parts(ids, PARTS // 2, PARTS))
    assert listener.resident == set()


# -- over real sockets, from vLLM's own publisher --------------------------------------------------


@pytest.fixture
def publishers() -> Iterator[Any]:
    with warnings.catch_warnings():  # what vLLM's own imports warn about is not ours to change
        warnings.simplefilter("ignore")
        from vllm.distributed import kv_events

    made: list[Any] = []

    def make(folder: str, **more: Any) -> Any:
        made.append(
            kv_events.ZmqEventPublisher(
                0, f"ipc://{folder}/events", f"ipc://{folder}/replay", **more
            )
        )
        return made[-1]

    make.events = kv_events  # type: ignore[attr-defined]  # the module, for its classes
    yield make
    for publisher in made:
        publisher.shutdown()


async def until(listener: Listener, wanted: set[int]) -> None:
    while listener.resident != wanted:
        await asyncio.sleep(0.01)


@pytest.mark.slow
def test_vllms_publisher_is_followed_from_what_was_before(
    publishers: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Stored before we listened: told again at the replay endpoint. Then as it happens."""
    folder, ids, events = str(tmp_path_factory.mktemp("e")), tokens(4 * OURS), publishers.events
    publisher, listener, cache = publishers(folder), Listener(), Cache(16)

    def publish(raw: list[dict[str, Any]]) -> None:
        made = []
        for event in raw:
            kind = getattr(events, event.pop("type"))
            more = {"lora_id": None, "lora_name": None} if kind is events.BlockStored else {}
            made.append(kind(**event, **more))
        publisher.publish(events.KVEventBatch(ts=0.0, events=made))

    async def scene() -> None:
        publish(cache.store(ids[: 2 * OURS]))
        task = asyncio.create_task(
            follow(listener.follower, f"ipc://{folder}/events", f"ipc://{folder}/replay")
        )
        await until(listener, set(ours(ids[: 2 * OURS])))
        publish(cache.store(ids))
        await until(listener, set(ours(ids)))
        for _ in range(PARTS):
            publish(cache.evict(0))
        await until(listener, set(ours(ids[: 3 * OURS])))
        publisher.publish(events.KVEventBatch(ts=0.0, events=[events.AllBlocksCleared()]))
        await until(listener, set())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scene(), 60))
    follower = listener.follower
    assert (follower.gaps, follower.malformed, follower.map.unmapped) == (0, 0, 0)
    assert follower.batches == PARTS + 3
