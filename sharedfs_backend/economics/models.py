"""Models: what a `config.json` says about KV and computing. Pure, from a mapping.

Keys are those of Hugging Face configs; a multimodal model's text part stands under `text_config`.
Layers without KV (linear attention) are told by `layer_types`, or by `full_attention_interval`;
their fixed-size state, one for a sequence and not one for a token, is not counted. A layer with a
sliding window counts in full, since its KV is stored for every token.

It must not know files, hardware or prices. Every missing number is a ValueError that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sharedfs_backend.economics.costs import Prefill

Config = Mapping[str, object]

SPEED_TOKENS = 4096
"""Prompt length at which a prefill speed is taken to be measured, unless said otherwise."""
FIXED_SECONDS = 0.01
"""A prefill's cost beside its tokens: scheduling and kernel launches. `costs.fit` measures it."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The layers that keep KV, all ranks together."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    latent: int = 0
    """Width of the one latent that MLA keeps instead of keys and values; 0: it has heads."""


def attention(config: Config) -> Attention:
    """The part of a model that keeps KV."""
    text = _text(config)
    layers = _kv_layers(text)
    if "kv_lora_rank" in text:
        heads = _number(text, "num_attention_heads", 1)  # the latent's size needs none
        rank, rotary = _number(text, "kv_lora_rank"), _number(text, "qk_rope_head_dim")
        head_dim = _number(text, "qk_nope_head_dim", rank) + rotary
        return Attention(layers, heads, heads, head_dim, rank + rotary)
    heads = _number(text, "num_attention_heads")
    kv_heads = _number(text, "num_key_value_heads", heads)
    head_dim = _number(text, "head_dim", _number(text, "hidden_size") // heads)
    return Attention(layers, heads, kv_heads, head_dim)


def kv_bytes_per_token(config: Config, dtype_bytes: int = 2) -> int:
    """Bytes of KV one token takes, all ranks together, from a model's `config.json`.

    Keys and values of every KV head in every layer that keeps them; for multi-head latent attention
    (a `kv_lora_rank` in the config, DeepSeek-V2 section 2.1) one latent and one rotary key per
    layer.
    """
    return kv_bytes_per_token_of_rank(config, 1, dtype_bytes)


def kv_bytes_per_token_of_rank(config: Config, tensor_parallel: int, dtype_bytes: int = 2) -> int:
    """The same for one of `tensor_parallel` ranks: its share of the KV heads, at least one.

    With fewer KV heads than ranks, heads are there several times; the latent of MLA is there whole
    in each rank.
    """
    part = attention(config)
    if part.latent:
        return part.layers * part.latent * dtype_bytes
    heads = -(-part.kv_heads // tensor_parallel)
    return 2 * part.layers * heads * part.head_dim * dtype_bytes


def parameters_passed(config: Config) -> int:
    """Weights that one prompt token is multiplied with: attention and MLP of all layers.

    Of a mixture of experts those chosen and those shared. Without embeddings (looked up) and the
    output head (computed for the last token only).
    """
    text = _text(config)
    hidden, part = _number(text, "hidden_size"), attention(text)
    layers = _number(text, "num_hidden_layers")
    total = part.layers * _attention_weights(text, part, hidden)
    total += (layers - part.layers) * _linear_attention_weights(text, hidden)
    dense, chosen = _mlp_widths(text)
    dense_layers = layers if chosen == 0 else _number(text, "first_k_dense_replace", 0)
    total += dense_layers * 3 * hidden * dense
    return total + (layers - dense_layers) * 3 * hidden * chosen


def prefill_of_speed(
    config: Config,
    tokens_per_second: float,
    at_tokens: int = SPEED_TOKENS,
    fixed_seconds: float = FIXED_SECONDS,
) -> Prefill:
    """What computing costs on hardware that prefills prompts of `at_tokens` so quickly.

    The split between the part linear in tokens and attention follows from the FLOP of each (as in
    `prefill_of_hardware`), at one rate for both.
    """
    part = attention(config)
    token_flop = 2.0 * parameters_passed(config)
    pair_flop = 4.0 * part.layers * part.heads * part.head_dim
    flop = at_tokens * token_flop + pair_flop * at_tokens**2 / 2
    seconds = at_tokens / tokens_per_second - fixed_seconds
    if seconds <= 0:
        fixed_seconds, seconds = 0.0, at_tokens / tokens_per_second
    rate = flop / seconds
    return Prefill(fixed_seconds, token_flop / rate, pair_flop / rate)


def tokens_max(config: Config, default: int = 131_072) -> int:
    """The longest context the model takes."""
    return _number(_text(config), "max_position_embeddings", default)


def _text(config: Config) -> Config:
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _kv_layers(text: Config) -> int:
    layers = _number(text, "num_hidden_layers")
    kinds = text.get("layer_types")
    if isinstance(kinds, list | tuple) and len(kinds) == layers:
        return sum("linear" not in str(kind) and "mamba" not in str(kind) for kind in kinds)
    if "full_attention_interval" in text:
        return layers // _number(text, "full_attention_interval")
    return layers


def _attention_weights(text: Config, part: Attention, hidden: int) -> int:
    if not part.latent:
        return hidden * part.head_dim * 2 * (part.heads + part.kv_heads)
    rank, rotary = _number(text, "kv_lora_rank"), _number(text, "qk_rope_head_dim")
    value = _number(text, "v_head_dim", rank)
    query = part.heads * part.head_dim
    queries = hidden * query
    if text.get("q_lora_rank"):
        queries = (hidden + query) * _number(text, "q_lora_rank")
    keys = hidden * (rank + rotary) + rank * part.heads * (part.head_dim - rotary + value)
    return queries + keys + part.heads * value * hidden


def _linear_attention_weights(text: Config, hidden: int) -> int:
    """Queries and keys; values, gate and output."""
    if "linear_num_key_heads" not in text:
        return 0
    keys = _number(text, "linear_num_key_heads") * _number(text, "linear_key_head_dim")
    values = _number(text, "linear_num_value_heads") * _number(text, "linear_value_head_dim")
    return hidden * (2 * keys + 3 * values)


def _mlp_widths(text: Config) -> tuple[int, int]:
    """Width of a dense MLP, and of the experts a token meets (0: no mixture)."""
    dense = _number(text, "intermediate_size", 0)
    chosen = _number(text, "num_experts_per_tok", 0)
    if chosen == 0:
        return dense, 0
    expert = _number(text, "moe_intermediate_size", dense)
    shared = _number(text, "n_shared_experts", 0) * expert
    shared = _number(text, "shared_expert_intermediate_size", shared)
    return dense, chosen * expert + shared


def _number(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if (value is None or value == 0) and default is not None:
        return default
    raise ValueError(f"the model's config names no usable {key}: {value!r}")
