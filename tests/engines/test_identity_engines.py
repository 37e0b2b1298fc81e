"""Real engines that differ do not share; two ranks' KV outlives everything that made it (I5, I8).

A float32 and a bfloat16 engine of one model, on one namespace: they write under equal keys, and
only the layout tells their KV apart. Reuse is what the reading engine counts. Nightly, because
they take minutes: fresh engines of both kinds find their own, and so do two tensor-parallel ranks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bench.demo.fleet import Fleet, Replica
from bench.demo.prompts import tokens
from bench.demo.replica_spec import CHUNK_TOKENS, ReplicaSpec, plugin_adapter
from sharedfs_backend.store import Store

VISIBLE_SECONDS = 120.0
REFRESH_SECONDS = 0.2
TWO_CORES = 2


def adapter(root: Path) -> dict[str, object]:
    return plugin_adapter(root, refresh_seconds=REFRESH_SECONDS)


def wait_stored(root: Path, chunks: int) -> None:
    """Until that many chunks can be found, and every server has read on since."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    with Store(str(root), create=False) as store:
        while True:
            assert store.wait_current()
            if (found := store.usage().chunk_count) >= chunks:
                break
            assert time.monotonic() < deadline, f"{found} chunks of {chunks} were stored"
            time.sleep(0.1)
    time.sleep(10 * REFRESH_SECONDS)


def reloaded(replica: Replica, prompt: Sequence[int], salt: str | None = None) -> int:
    """Tokens of this request whose KV came from elsewhere."""
    before = replica.prompt_tokens("external_kv_transfer")
    replica.complete(prompt, tokens_max=2, cache_salt=salt)
    return replica.prompt_tokens("external_kv_transfer") - before


@pytest.fixture(scope="module")
def dtypes(
    fleet: Fleet, model: Path, root: Path, cores: tuple[str, str]
) -> tuple[Replica, Replica]:
    """A float32 and a bfloat16 replica of one model."""
    wide, narrow = fleet.start(
        *(
            ReplicaSpec(name, model, core=core, adapter=adapter(root), dtype=name)
            for name, core in zip(("float32", "bfloat16"), cores, strict=True)
        )
    )
    for replica in (wide, narrow):
        replica.complete(tokens("identity/warm-up", 20), tokens_max=2)
    return wide, narrow


def test_float32_and_bfloat16_do_not_share(dtypes: tuple[Replica, Replica], root: Path) -> None:
    wide, narrow = dtypes
    prompt = tokens("identity/dtypes", 4 * CHUNK_TOKENS + 20)
    assert reloaded(wide, prompt) == 0
    wait_stored(root, 4)
    assert reloaded(narrow, prompt) == 0
    wait_stored(root, 2 * 4)
    assert narrow.server_metrics().total("sharedfs_chunks_loaded") == 0
    assert len(list((root / "realms").iterdir())) == 1  # one model: the layout keeps them apart


def test_another_salt_reloads_nothing_on_an_engine_of_either_kind(
    dtypes: tuple[Replica, Replica], root: Path
) -> None:
    wide, narrow = dtypes
    prompt = tokens("identity/salts", 2 * CHUNK_TOKENS + 20)
    before = chunks(root)
    assert reloaded(wide, prompt, "tenant-1") == 0
    wait_stored(root, before + 2)
    assert reloaded(narrow, prompt, "tenant-1") == 0
    assert reloaded(narrow, prompt, "tenant-2") == 0
    assert narrow.server_metrics().total("sharedfs_chunks_loaded") == 0


@pytest.mark.nightly
def test_a_fresh_engine_of_each_kind_reloads_its_own(
    dtypes: tuple[Replica, Replica], root: Path
) -> None:
    """After both have stored one prompt: killed, started again, and asked for it once more."""
    prompt = tokens("identity/restarts", 4 * CHUNK_TOKENS + 20)
    before = chunks(root)
    assert [reloaded(replica, prompt) for replica in dtypes] == [0, 0]
    wait_stored(root, before + 8)
    restart(dtypes)
    assert [reloaded(replica, prompt) for replica in dtypes] == [4 * CHUNK_TOKENS] * 2


def restart(replicas: Sequence[Replica]) -> None:
    """Everything of these replicas is killed; then they start again, on other ports."""
    for replica in replicas:
        replica.stop(kill=True)
    for replica in replicas:
        replica.start()
    for replica in replicas:
        replica.wait_ready()
        replica.complete(tokens("identity/warm-up", 20), tokens_max=2)


def chunks(root: Path) -> int:
    with Store(str(root), create=False) as store:
        assert store.wait_current()
        return store.usage().chunk_count


@pytest.fixture
def two_ranks(model: Path, tmp_path: Path) -> Iterator[Replica]:
    """One engine of two tensor-parallel ranks, each on a core of its own."""
    allowed = sorted(os.sched_getaffinity(0))
    assert len(allowed) >= TWO_CORES
    spec = ReplicaSpec(
        "ranks",
        model,
        core=f"{allowed[0]}|{allowed[-1]}",
        adapter=adapter(tmp_path / "kv"),
        tensor_parallel=2,
        engine_arguments=("--distributed-executor-backend", "mp"),
    )
    with Fleet(tmp_path / "logs") as fleet:
        (replica,) = fleet.start(spec)
        yield replica


@pytest.mark.engine
@pytest.mark.nightly
def test_two_ranks_store_all_is_killed_and_a_fresh_engine_hits(
    two_ranks: Replica, tmp_path: Path
) -> None:
    prompt = tokens("identity/ranks", 4 * CHUNK_TOKENS + 20)
    cold = two_ranks.complete(prompt, tokens_max=8)
    wait_stored(tmp_path / "kv", 2 * 4)  # a chunk of each rank
    restart([two_ranks])
    before = two_ranks.prompt_tokens("external_kv_transfer")
    warm = two_ranks.complete(prompt, tokens_max=8)
    assert two_ranks.prompt_tokens("external_kv_transfer") - before == 4 * CHUNK_TOKENS
    assert warm.tokens == cold.tokens
