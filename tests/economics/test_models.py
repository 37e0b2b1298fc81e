"""What a model's config says: KV of every kind of attention, ranks, weights passed, speeds."""

from __future__ import annotations

import pytest

from sharedfs_backend.economics import (
    kv_bytes_per_token,
    kv_bytes_per_token_of_rank,
    parameters_passed,
    prefill_of_speed,
)

LLAMA_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
}
HYBRID = {
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
}


def test_only_layers_with_attention_keep_kv_by_interval() -> None:
    assert kv_bytes_per_token(HYBRID) == 2 * 10 * 2 * 256 * 2


def test_only_layers_with_attention_keep_kv_by_their_kinds() -> None:
    kinds = ["linear_attention", "full_attention", "sliding_attention", "linear_attention"] * 10
    assert kv_bytes_per_token(HYBRID | {"layer_types": kinds}) == 2 * 20 * 2 * 256 * 2


def test_a_multimodal_models_text_part_counts() -> None:
    assert kv_bytes_per_token({"text_config": LLAMA_8B, "vision_config": {}}) == 131_072


@pytest.mark.parametrize(("ranks", "share"), [(1, 131_072), (4, 32_768), (8, 16_384), (16, 16_384)])
def test_a_rank_holds_its_share_of_the_heads_and_one_at_least(ranks: int, share: int) -> None:
    assert kv_bytes_per_token_of_rank(LLAMA_8B, ranks) == share


def test_every_rank_holds_the_whole_latent() -> None:
    config = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert kv_bytes_per_token_of_rank(config, 8) == kv_bytes_per_token(config) == 70_272


def test_a_dense_models_weights_are_all_passed_but_embeddings() -> None:
    assert parameters_passed(LLAMA_8B) == pytest.approx(8.03e9 - 2 * 128_256 * 4096, rel=0.001)


def test_of_a_mixture_only_the_chosen_experts_are_passed() -> None:
    assert 2e9 < parameters_passed(HYBRID) < 3e9


def test_a_prefill_of_a_speed_has_that_speed_at_its_length() -> None:
    prefill = prefill_of_speed(LLAMA_8B, 8000.0, at_tokens=4096)
    assert prefill.seconds(4096, 4096) == pytest.approx(4096 / 8000)
    assert prefill.seconds(65536, 65536) > 1.3 * 65536 / 8000  # attention grows


def test_a_speed_beyond_the_fixed_part_leaves_none() -> None:
    prefill = prefill_of_speed(LLAMA_8B, 1e6, at_tokens=1000)
    assert prefill.fixed_seconds == 0 and prefill.seconds(1000, 1000) == pytest.approx(1e-3)


def test_a_number_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="num_hidden_layers"):
        kv_bytes_per_token({"text_config": {}})
