"""Starting the in-process adapter: its configuration, its identity, and refusals that are seen."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from sharedfs_backend.exceptions import ConfigError, RealmRefused
from sharedfs_backend.inprocess.hashing import EngineHash, canary_of, engine_hash, key_hash
from sharedfs_backend.inprocess.naming import hash_bytes, kv_rank, salt_of
from sharedfs_backend.inprocess.options import settings_from
from sharedfs_backend.inprocess.shared import SharedStores
from sharedfs_backend.settings import Settings
from tests.inprocess.engine import (
    TOKEN_DATABASE,
    VLLM_HASHES,
    Engine,
    Store,
    config,
    config_from,
    metadata,
    start,
)

EXAMPLE = Path(__file__).parents[2] / "launch" / "config" / "inprocess.yaml"


@pytest.fixture(autouse=True)
def no_hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)


def start_with_example(root: Path) -> Engine:
    """An engine configured by the example file, with nothing but its root replaced."""
    made = config_from(EXAMPLE)
    made.extra_config["sharedfs.root"] = str(root)
    made.max_local_cpu_size = 0.01
    return start(made=made)


def test_the_example_configuration_is_four_lines_and_complete() -> None:
    assert len(EXAMPLE.read_text().splitlines()) == 4
    made = config_from(EXAMPLE)
    assert made.storage_plugins == ["sharedfs"]
    assert settings_from(made.extra_config) == Settings(root="/mnt/shared/kv")


def test_lmcache_loads_the_plugin_that_the_example_names(tmp_path: Path) -> None:
    from collections import OrderedDict

    from lmcache.v1.storage_backend import storage_plugin_launcher

    made = config_from(EXAMPLE)
    made.extra_config["sharedfs.root"] = str(tmp_path / "kv")
    backends: OrderedDict[str, Any] = OrderedDict()
    storage_plugin_launcher(made, metadata(), None, None, "cpu", backends)
    [(name, backend)] = backends.items()
    assert (name, str(backend)) == ("sharedfs", "SharedFSBackend")
    backend.close()


def test_the_root_is_the_one_required_setting() -> None:
    with pytest.raises(ConfigError, match=r"sharedfs\.root"):
        settings_from({"other_plugin.root": "/x"})
    assert settings_from({"sharedfs.root": "/x", "other.key": 1}).root == "/x"


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="refresh_secs"):
        settings_from({"sharedfs.root": "/x", "sharedfs.refresh_secs": 1})


@pytest.mark.parametrize("algorithm", ["builtin", "xxhash", "xxhash_cbor"])
def test_a_hash_that_differs_in_every_process_is_refused(algorithm: str) -> None:
    with pytest.raises(ConfigError, match="pre_caching_hash_algorithm: sha256_cbor"):
        start(pre_caching_hash_algorithm=algorithm)


def test_a_fixed_hash_seed_makes_any_algorithm_acceptable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    engine = start(pre_caching_hash_algorithm="builtin")
    assert engine.store.descriptors[0].hash_family == "lmcache-inprocess-hash"
    engine.close()


def test_a_random_hash_seed_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    with pytest.raises(ConfigError, match="PYTHONHASHSEED is random"):
        start()


def test_a_vllm_that_seeds_every_algorithm_at_random_needs_a_seed() -> None:
    old = EngineHash("sha256_cbor", lambda tokens, prefix: 1, seeded_by_constant=False)
    with pytest.raises(ConfigError, match="PYTHONHASHSEED=0"):
        key_hash("sha256_cbor", {}, blending=False, engine=old)
    assert key_hash("sha256_cbor", {"PYTHONHASHSEED": "0"}, blending=False, engine=old)


def test_the_canary_follows_the_engines_own_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = canary_of(engine_hash("sha256_cbor"))
    assert before == canary_of(engine_hash("sha256_cbor"))
    assert before != canary_of(engine_hash("sha256"))
    monkeypatch.setattr(TOKEN_DATABASE, "NONE_HASH", 12345)  # as another seed would make it
    assert before != canary_of(engine_hash("sha256_cbor"))


def test_asking_for_the_hash_draws_no_new_seed() -> None:
    before = (TOKEN_DATABASE.NONE_HASH, getattr(VLLM_HASHES, "NONE_HASH", None))
    engine_hash("sha256_cbor").chain([1, 2, 3], None)
    assert (TOKEN_DATABASE.NONE_HASH, getattr(VLLM_HASHES, "NONE_HASH", None)) == before


def test_a_segment_hash_is_another_family() -> None:
    def family(blending: bool) -> str:
        engine = engine_hash("sha256_cbor")
        return key_hash("sha256_cbor", {}, blending=blending, engine=engine).family

    assert family(False) != family(True)


def test_two_engines_whose_hashes_disagree_do_not_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"sharedfs.root": str(tmp_path / "kv")}
    from sharedfs_backend.store import Store as RealStore

    stores = SharedStores(lambda settings: RealStore(settings=settings))
    first = start(stores=stores, extra=extra)
    monkeypatch.setattr(TOKEN_DATABASE, "NONE_HASH", 12345)
    with pytest.raises(RealmRefused):
        start(stores=stores, extra=extra)
    first.close()


def test_the_realm_names_model_shard_and_hash() -> None:
    engine = start(extra={"sharedfs.shard": "west"})
    [descriptor] = engine.store.descriptors
    engine.close()
    assert descriptor.model_identity == "test"
    assert descriptor.identity_verified
    assert descriptor.shard == "west"
    assert descriptor.hash_family == "lmcache-inprocess-sha256_cbor"
    assert [len(canary) for canary in engine.store.canaries] == [4]


def test_a_refusal_is_logged_as_a_banner_and_raised(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL), pytest.raises(ConfigError):
        start(pre_caching_hash_algorithm="builtin")
    [record] = [r for r in caplog.records if r.levelno == logging.CRITICAL]
    assert "THIS ENGINE SHARES NO KV" in record.getMessage()
    assert "pre_caching_hash_algorithm: sha256_cbor" in record.getMessage()


def test_a_refused_realm_leaves_no_store_open() -> None:
    store = Store(refuse_realms=True)
    stores = SharedStores(lambda _settings: store)
    with pytest.raises(RealmRefused):
        start(store=store, stores=stores)
    assert store.closed == 1


def test_constructed_twice_without_close_shares_one_store() -> None:
    opened: list[Store] = []

    def open_store(_settings: Settings) -> Store:
        opened.append(Store())
        return opened[-1]

    stores = SharedStores(open_store)
    first, second = start(stores=stores), start(stores=stores)
    assert len(opened) == 1
    first.close()
    assert opened[0].closed == 0
    second.close()
    second.close()
    assert opened[0].closed == 1


def test_other_settings_get_another_store() -> None:
    stores = SharedStores(lambda _settings: Store())
    first = start(stores=stores)
    second = start(stores=stores, extra={"sharedfs.refresh_seconds": 2.0})
    assert first.backend._store is not second.backend._store
    first.close()
    second.close()


def test_an_unverified_identity_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        start(extra={"sharedfs.model_identity": None}).close()
    assert any("cannot be identified" in r.getMessage() for r in caplog.records)


def test_lora_is_warned_about(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sharedfs_backend.inprocess import opening

    monkeypatch.setattr(opening, "lora_enabled", lambda: True)
    with caplog.at_level(logging.WARNING):
        start().close()
    assert any("lmcache.tag.lora" in r.getMessage() for r in caplog.records)


def test_layerwise_with_the_cpu_cache_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        start(use_layerwise=True, local_cpu=True).close()
    assert any("local_cpu: false" in r.getMessage() for r in caplog.records)


def test_names_are_canonical() -> None:
    assert hash_bytes(-1) == b"\xff" * 8
    assert hash_bytes(b"digest") == b"digest"
    assert salt_of(None) == salt_of(()) == ""
    assert salt_of((("b", 1), ("a", "2"))) == '[["a","2"],["b","1"]]'
    assert kv_rank(8, 3) == 8 << 16 | 3
    with pytest.raises(ConfigError):
        kv_rank(1 << 16, 0)


def test_a_scheduler_without_memory_can_look_up(tmp_path: Path) -> None:
    made = config(extra={"sharedfs.root": str(tmp_path)})
    engine = start(made=made)
    engine.backend.local_cpu_backend = None
    with pytest.raises(RuntimeError, match="no CPU memory"):
        engine.backend.get_allocator_backend()
    engine.close()
