"""Two real vLLM engines with LMCache inside them reuse each other's KV through one directory.

No server: the storage plugin lives in each engine's worker. The counters of the reading engine
prove the reuse, because an engine without its connector is healthy too.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.demo.fleet import Fleet, Replica
from bench.demo.model import ensure_model
from sharedfs_backend.store import Store
from tests.engines.inprocess import replica

CHUNK_TOKENS = 256
REFRESH_SECONDS = 0.2
VISIBLE_SECONDS = 60.0

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Pair:
    a: Replica
    b: Replica
    root: Path

    def wait_for_chunks(self, count: int) -> None:
        """Wait until the namespace holds so many chunks, and for both engines' next refresh."""
        deadline = time.monotonic() + VISIBLE_SECONDS
        with Store(str(self.root), create=False) as store:
            while True:
                store.wait_current()
                if (found := store.usage().chunk_count) >= count:
                    break
                assert time.monotonic() < deadline, f"{found} chunks of {count} were stored"
                time.sleep(0.1)
        time.sleep(5 * REFRESH_SECONDS)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("inprocess")
    model, root = ensure_model(folder / "model"), folder / "kv"
    settings = {"sharedfs.refresh_seconds": REFRESH_SECONDS}
    lora = ("--enable-lora",)  # no adapter is loaded: it computes what the base model computes
    with Fleet(folder / "logs") as fleet:
        a, b = fleet.start(
            replica("A", model, root, "0", settings),
            replica("B", model, root, "1", settings, lora),
        )
        for engine in (a, b):
            engine.complete([5] * 20, tokens_max=2)
        yield Pair(a, b, root)


def prompt(seed: int, tokens: int) -> list[int]:
    choice = random.Random(seed)
    return [choice.randrange(3, 4000) for _ in range(tokens)]


def complete_tagged(engine: Replica, tokens: list[int], tag: str) -> None:
    """A request that names a LoRA adapter's digest the way docs/IDENTITY.md says."""
    body = {
        "model": str(engine.spec.model),
        "prompt": tokens,
        "max_tokens": 2,
        "kv_transfer_params": {"lmcache.tag.lora": tag},
    }
    connection = http.client.HTTPConnection("127.0.0.1", engine.ports.engine, timeout=120)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    status = connection.getresponse().status
    connection.close()
    assert status == 200


def reloaded(engine: Replica) -> int:
    return engine.prompt_tokens("external_kv_transfer")


def test_one_engine_reloads_what_the_other_stored(pair: Pair) -> None:
    tokens = prompt(1, 2100)
    cold = pair.a.complete(tokens, tokens_max=12)
    pair.wait_for_chunks(8)
    before = reloaded(pair.b)
    warm = pair.b.complete(tokens, tokens_max=12)
    assert reloaded(pair.b) - before == (len(tokens) - 1) // CHUNK_TOKENS * CHUNK_TOKENS
    assert warm.tokens == cold.tokens


def test_a_prompt_that_shares_its_first_half_reloads_that_half(pair: Pair) -> None:
    half = prompt(2, 4 * CHUNK_TOKENS + 10)
    pair.b.complete(half + prompt(3, 500), tokens_max=2)
    pair.wait_for_chunks(8 + 5)
    before = reloaded(pair.a)
    pair.a.complete(half + prompt(4, 500), tokens_max=2)
    assert reloaded(pair.a) - before == 4 * CHUNK_TOKENS


def test_requests_with_another_tag_do_not_share(pair: Pair) -> None:
    first, second = prompt(5, 3 * CHUNK_TOKENS + 10), prompt(6, 3 * CHUNK_TOKENS + 10)
    complete_tagged(pair.a, first, "lora-1")
    complete_tagged(pair.a, second, "lora-1")
    pair.wait_for_chunks(8 + 5 + 1 + 6)
    before = reloaded(pair.b)
    complete_tagged(pair.b, first, "lora-2")
    assert reloaded(pair.b) == before
    complete_tagged(pair.b, second, "lora-1")
    assert reloaded(pair.b) - before == 3 * CHUNK_TOKENS


def test_an_engine_with_lora_is_warned_about_its_salt(pair: Pair) -> None:
    warning = "lmcache.tag.lora"
    assert warning in pair.b.log_path("engine").read_text(errors="replace")
    assert warning not in pair.a.log_path("engine").read_text(errors="replace")
