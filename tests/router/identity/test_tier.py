"""The shared tier as the router sees it: the store's keys, in a catalog that only reads."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from router.chunkhash import chunk_hashes
from router.tier import Keyspace, Tier, kv_ranks
from sharedfs_backend.catalogview import STALE_PASSES, CatalogView
from sharedfs_backend.exceptions import NamespaceMissing
from sharedfs_backend.files import CountingFiles, FailureKind, LocalFiles
from sharedfs_backend.layout import Drop, RealmDescriptor, Seal
from sharedfs_backend.store import ChunkId
from tests.files.faulty import FaultyFiles
from tests.store.inline import Client, InlineRuntime, chunks_of, items_of, settings_for

REALM = RealmDescriptor("m", True, "", "", "lmcache-mp-256")
CHUNK = 16


class Watcher:
    """A catalog view in an inline world, its files counted and failing on demand."""

    def __init__(self, root: Path) -> None:
        self.runtime = InlineRuntime(5)
        self.faulty = FaultyFiles(LocalFiles(str(root)))
        self.files = CountingFiles(self.faulty)
        self.view = CatalogView(settings_for(root), runtime=self.runtime, files=self.files)
        self.tier = Tier(self.view)

    def refresh(self) -> None:
        self.runtime.time += 2.0
        self.view.tick()

    def held(self, hashes: list[bytes], ranks: int = 1, groups: int = 1, salt: str = "") -> object:
        space = Keyspace(REALM.digest(Seal()), CHUNK, kv_ranks(ranks), groups)
        return self.tier.held_tokens(hashes, space, salt)


@pytest.fixture
def writer(tmp_path: Path) -> Client:
    return Client(tmp_path)


def store(
    client: Client, hashes: list[bytes], rank: int = 0, group: int = 0, salt: str = ""
) -> None:
    keys = client.store.keys([ChunkId(chunk, rank, group, salt) for chunk in hashes])
    data = list(chunks_of(len(keys)).values())
    items = items_of(dict(zip(keys, data, strict=True)))
    assert not client.store.put(items, realm=client.store.realm(REALM)).failed


def hashes_of(count: int, seed: int = 1) -> list[bytes]:
    source = random.Random(seed)
    return chunk_hashes([source.randrange(50_000) for _ in range(count * CHUNK)], CHUNK)


def test_what_was_stored_is_held_after_one_refresh(writer: Client, tmp_path: Path) -> None:
    hashes, watcher = hashes_of(5), Watcher(tmp_path)
    watcher.refresh()
    store(writer, hashes[:3], kv_ranks(1)[0])
    assert watcher.held(hashes) == 0
    watcher.refresh()
    assert watcher.held(hashes) == 3 * CHUNK


def test_a_hole_ends_the_prefix(writer: Client, tmp_path: Path) -> None:
    hashes, watcher = hashes_of(5), Watcher(tmp_path)
    store(writer, [hashes[0], hashes[1], hashes[3]], kv_ranks(1)[0])
    watcher.refresh()
    assert watcher.held(hashes) == 2 * CHUNK


def test_a_chunk_counts_when_every_rank_and_group_has_it(writer: Client, tmp_path: Path) -> None:
    hashes, watcher = hashes_of(3), Watcher(tmp_path)
    first, second = kv_ranks(2)
    for rank, group, count in ((first, 0, 3), (second, 0, 2), (first, 1, 1), (second, 1, 1)):
        store(writer, hashes[:count], rank, group)
    watcher.refresh()
    assert (watcher.held(hashes, 2), watcher.held(hashes, 2, 2)) == (2 * CHUNK, CHUNK)


def test_salts_are_kept_apart(writer: Client, tmp_path: Path) -> None:
    hashes, watcher = hashes_of(3), Watcher(tmp_path)
    store(writer, hashes, kv_ranks(1)[0], salt="a")
    watcher.refresh()
    assert [watcher.held(hashes, salt=salt) for salt in ("a", "b", "")] == [3 * CHUNK, 0, 0]


def test_lookups_cost_no_operation(writer: Client, tmp_path: Path) -> None:
    hashes, watcher = hashes_of(3), Watcher(tmp_path)
    store(writer, hashes, kv_ranks(1)[0])
    watcher.refresh()
    watcher.files.reset()
    for seed in range(50):
        watcher.held(hashes + hashes_of(3, seed))
    assert sum(watcher.files.counts.values()) == 0


def test_the_view_only_reads(writer: Client, tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    names = sorted(tmp_path.rglob("*"))
    for _ in range(200):
        watcher.refresh()
    watcher.view.close()
    done = {name for name, count in watcher.files.counts.items() if count}
    assert done <= {"list", "open", "read", "close"} and done
    assert sorted(tmp_path.rglob("*")) == names


def test_the_view_refreshes_within_the_stores_budget(writer: Client, tmp_path: Path) -> None:
    writer.put(chunks_of(3))
    others = [Client(tmp_path, seed) for seed in range(2, 6)]
    for other in others:
        other.put(chunks_of(1, seed=other.runtime.random_bytes(1)[0]))
    runtime, files = InlineRuntime(9), CountingFiles(LocalFiles(str(tmp_path)))
    settings = settings_for(tmp_path, refresh_ops_per_second=4)
    view = CatalogView(settings, runtime=runtime, files=files)
    files.reset()
    for _ in range(100):
        runtime.time += 1.0
        view.tick()
    assert 100 < sum(files.counts.values()) <= 4 * 101


def test_while_nothing_is_read_nothing_is_known(writer: Client, tmp_path: Path) -> None:
    hashes, watcher = hashes_of(3), Watcher(tmp_path)
    store(writer, hashes, kv_ranks(1)[0])
    assert watcher.held(hashes) is None
    watcher.refresh()
    watcher.faulty.fail("list", FailureKind.IO)
    for _ in range(STALE_PASSES):
        watcher.refresh()
    assert watcher.held(hashes) is None
    watcher.faulty.heal()
    for _ in range(30):
        watcher.refresh()
    assert watcher.held(hashes) == 3 * CHUNK


def test_dropped_packs_are_held_no_more(writer: Client, tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    hashes = hashes_of(3)
    store(writer, hashes, kv_ranks(1)[0])
    watcher.refresh()
    assert watcher.held(hashes) == 3 * CHUNK
    (pack,) = writer.store.parts.ledger.packs()
    writer.store.parts.publisher.publish((Drop((pack.name,)),), lambda published: None)
    watcher.refresh()
    assert watcher.held(hashes) == 0


def test_the_view_creates_no_namespace(tmp_path: Path) -> None:
    with pytest.raises(NamespaceMissing):
        CatalogView(settings_for(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_in_the_real_world_it_follows_by_itself_and_ends_its_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    writer = Client(tmp_path)
    hashes = hashes_of(3)
    view = CatalogView(settings_for(tmp_path, refresh_seconds=0.01))
    store(writer, hashes, kv_ranks(1)[0])
    space = Keyspace(REALM.digest(Seal()), CHUNK, kv_ranks(1))
    while Tier(view).held_tokens(hashes, space) != 3 * CHUNK:
        pass
    view.close(10)
    assert {t for t in threading.enumerate() if t.is_alive()} - before == set()
