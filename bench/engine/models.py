"""Models: the table of KV shapes, from each model's published config and the product's formula.

A `Model` is a config, the dtype of its KV and the number of tensor-parallel ranks. Bytes come from
`kv_bytes_per_token` alone. A rank's object for a chunk has the shape (2, layers, tokens, heads *
head_dim), or (1, layers, tokens, latent) for MLA, which LMCache keeps once for all ranks. The
recurrent state of hybrid models, one for a sequence, is left out.

It must not know adapters, files or time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sharedfs_backend.economics import kv_bytes_per_token, kv_bytes_per_token_of_rank
from sharedfs_backend.economics.models import attention

DTYPE_BYTES = {"fp16": 2, "bf16": 2, "fp8": 1}
TORCH_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}

CONFIGS: dict[str, Mapping[str, object]] = {
    "llama-3.1-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "llama-3.1-70b": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "qwen2.5-1.5b": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
    },
    "qwen3.5-35b-a3b": {
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "max_position_embeddings": 262144,
    },
    "deepseek-v3": {
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "max_position_embeddings": 163840,
    },
}
"""The fields the formulas need, as the models' own config.json files have them."""


@dataclass(frozen=True, slots=True)
class Model:
    """One way of running one model."""

    family: str
    dtype: str
    tensor_parallel: int = 1

    @property
    def name(self) -> str:
        ranks = f"-tp{self.tensor_parallel}" if self.tensor_parallel > 1 else ""
        return f"{self.family}-{self.dtype}{ranks}"

    @property
    def config(self) -> Mapping[str, object]:
        return CONFIGS[self.family]

    @property
    def kv_bytes_per_token(self) -> int:
        """All ranks together, each head once."""
        return kv_bytes_per_token(self.config, DTYPE_BYTES[self.dtype])

    @property
    def is_latent(self) -> bool:
        return attention(self.config).latent > 0

    @property
    def ranks(self) -> int:
        """Ranks that store objects of their own."""
        return 1 if self.is_latent else self.tensor_parallel

    @property
    def rank_bytes_per_token(self) -> int:
        dtype_bytes = DTYPE_BYTES[self.dtype]
        return kv_bytes_per_token_of_rank(self.config, self.tensor_parallel, dtype_bytes)

    def chunk_bytes(self, chunk_tokens: int) -> int:
        """Of one rank's object."""
        return self.rank_bytes_per_token * chunk_tokens

    def chunk_shape(self, chunk_tokens: int) -> tuple[int, int, int, int]:
        part = attention(self.config)
        if part.latent:
            return (1, part.layers, chunk_tokens, part.latent)
        heads = -(-part.kv_heads // self.tensor_parallel)
        return (2, part.layers, chunk_tokens, heads * part.head_dim)


def _table() -> dict[str, Model]:
    models = [Model("llama-3.1-8b", dtype) for dtype in ("bf16", "fp8")]
    models += [
        Model("llama-3.1-70b", dtype, ranks) for dtype in ("bf16", "fp8") for ranks in (1, 4, 8)
    ]
    models += [Model("qwen2.5-1.5b", "fp16"), Model("qwen2.5-1.5b", "bf16")]
    models += [Model("qwen3.5-35b-a3b", "bf16"), Model("qwen3.5-35b-a3b", "fp8")]
    models += [Model("deepseek-v3", "bf16", 8), Model("deepseek-v3", "fp8", 8)]
    return {model.name: model for model in models}


MODELS: dict[str, Model] = _table()
