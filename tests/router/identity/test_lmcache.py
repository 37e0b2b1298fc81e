"""Exact mode's arithmetic against LMCache's own: hashes, ranks, and keys through a whole server."""

from __future__ import annotations

import argparse
import json
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

with warnings.catch_warnings():  # what LMCache's own imports warn about is not ours to change
    warnings.simplefilter("ignore")
    import lmcache.v1.distributed.storage_manager  # noqa: F401  # warns when imported
    from lmcache.v1.distributed.api import _lookup_kv_ranks, ipc_key_to_object_keys
    from lmcache.v1.distributed.l2_adapters.factory import load_all_adapters
    from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
    from lmcache.v1.multiprocess.token_hasher import TokenHasher

    load_all_adapters()

from router import announce
from router.chunkhash import chunk_hashes
from router.tier import Keyspace, Tier, kv_ranks
from sharedfs_backend.catalogview import CatalogView
from sharedfs_backend.files import LocalFiles
from sharedfs_backend.layout import Seal
from tests.mp.test_through_lmcache import Server
from tests.store.inline import InlineRuntime, settings_for

CHUNK = 16


@pytest.mark.parametrize("chunk", [1, 16, 256])
def test_chunk_hashes_are_lmcaches(chunk: int) -> None:

    ids = [random.Random(3).randrange(1 << 32) for _ in range(3 * chunk + chunk // 2)]
    theirs = TokenHasher(chunk, "blake3").compute_chunk_hashes(ids)
    assert chunk_hashes(ids, chunk) == theirs and len(theirs) >= 3


@pytest.mark.parametrize("world", [1, 2, 8])
def test_ranks_are_lmcaches(world: int) -> None:

    key = IPCCacheServerKey.from_token_ids("m", world, None, [])
    assert list(kv_ranks(world)) == _lookup_kv_ranks(key)


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Server]]:

    servers: list[Server] = []

    def make(root: Path) -> Server:
        spec = {
            "type": "plugin",
            "module_path": "sharedfs_backend.mp",
            "class_name": "SharedFSL2Adapter",
            "adapter_params": {"root": str(root), "shard": "s1"},
        }
        servers.append(Server(spec))
        return servers[-1]

    yield make
    for server in servers:
        server.manager.close()


@pytest.mark.slow
@pytest.mark.parametrize("salt", ["", "tenant"])
def test_what_lmcache_stores_through_the_plugin_is_found_by_its_tokens(
    tmp_path: Path, serve: Callable[[Path], Server], salt: str
) -> None:
    """Tokens hashed by LMCache's hasher, keys made by its own function, stored by its storage
    manager through the adapter; found from the tokens and what a replica announces."""

    root = tmp_path / "ns"
    ids = [random.Random(4).randrange(50_000) for _ in range(5 * CHUNK)]
    hashes = TokenHasher(CHUNK, "blake3").compute_chunk_hashes(ids[: 4 * CHUNK])
    server = serve(root)
    for rank in range(2):
        key = IPCCacheServerKey.from_token_ids("org/model", 2, rank, ids, cache_salt=salt)
        (keys,) = ipc_key_to_object_keys(key, hashes[: 4 - rank], [0])
        server.write(keys)
    options = argparse.Namespace(model_identity=None, shard="s1", serde="")
    realm = announce._realm(options, "org/model", "blake3", Seal())
    runtime = InlineRuntime()
    runtime.time += 10
    view = CatalogView(settings_for(root), runtime=runtime, files=LocalFiles(str(root)))
    view.tick()
    space = Keyspace(bytes.fromhex(realm), CHUNK, kv_ranks(2))
    assert Tier(view).held_tokens(chunk_hashes(ids, CHUNK), space, salt) == 3 * CHUNK
    names = [json.loads(path.read_bytes())["digest"] for path in (root / "realms").iterdir()]
    assert names == [realm]
