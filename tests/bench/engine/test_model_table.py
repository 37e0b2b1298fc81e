"""The table of models: sizes known from elsewhere, shapes that have them, modelled speeds."""

from __future__ import annotations

from math import prod

import pytest

from bench.engine.content import Content
from bench.engine.hardware import GPUS, prefill_on
from bench.engine.l1 import L1
from bench.engine.models import DTYPE_BYTES, MODELS


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("llama-3.1-8b-bf16", 131_072),
        ("llama-3.1-8b-fp8", 65_536),
        ("llama-3.1-70b-bf16", 327_680),
        ("qwen2.5-1.5b-fp16", 28_672),
        ("qwen3.5-35b-a3b-bf16", 20_480),
        ("deepseek-v3-bf16-tp8", 70_272),
    ],
)
def test_a_tokens_kv_has_its_known_size(name: str, size: int) -> None:
    assert MODELS[name].kv_bytes_per_token == size


@pytest.mark.parametrize("name", MODELS)
def test_a_chunks_shape_has_its_size(name: str) -> None:
    model = MODELS[name]
    assert prod(model.chunk_shape(256)) * DTYPE_BYTES[model.dtype] == model.chunk_bytes(256)
    assert model.chunk_bytes(256) * model.ranks >= 256 * model.kv_bytes_per_token


def test_ranks_share_heads_and_keep_one_latent() -> None:
    assert MODELS["llama-3.1-70b-bf16-tp8"].rank_bytes_per_token == 327_680 // 8
    assert MODELS["llama-3.1-70b-bf16-tp8"].ranks == 8
    assert MODELS["deepseek-v3-bf16-tp8"].ranks == 1


def test_an_a100_prefills_8b_at_about_ten_thousand_tokens_a_second() -> None:
    prefill = prefill_on(GPUS["A100"], MODELS["llama-3.1-8b-bf16"])
    assert 7_000 < 4096 / prefill.seconds(4096, 4096) < 13_000


def test_content_is_told_apart_by_its_key_and_by_every_byte() -> None:
    import numpy as np

    content, into = Content(5000), np.zeros(5000, np.uint8)
    keys = [bytes([number]) * 40 for number in range(3)]
    content.fill(into, keys[0])
    assert content.matches(into, keys[0]) and not content.matches(into, keys[1])
    first = into.copy()
    content.fill(into, keys[1])
    assert (first[40:] != into[40:]).any()
    into[-1] ^= 1
    assert not content.matches(into, keys[1])


def test_l1_evicts_the_least_recently_used_that_nobody_reads() -> None:
    tier = L1(["a", "b", "c"])
    tier.commit(tier.reserve("xyz"))
    tier.unlock("xyz")
    tier.lock("x")
    tier.lock("y")
    tier.unlock("y")
    assert tier.reserve("w") and tier.lock("xyz") == [True, True, False]


def test_l1_gives_nothing_for_what_is_resident_reserved_or_beyond_its_room() -> None:
    tier = L1(["a", "b"])
    tier.reserve("x")
    assert list(tier.reserve("xyz")) == ["y"]
    tier.discard("x")
    assert list(tier.reserve("z")) == ["z"]


def test_a_temporary_key_leaves_with_its_last_reader() -> None:
    tier = L1(["a"])
    tier.commit(tier.reserve("x"), temporary=True)
    tier.lock("x")
    tier.unlock("x")
    assert tier.lock("x") == [True]
    tier.unlock("xx")
    assert tier.lock("x") == [False]
