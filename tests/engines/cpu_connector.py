"""Lets vLLM on a CPU use LMCache's in-process mode. For tests only.

LMCache ships no connector for CPU KV caches, so vLLM would recompute everything in silence. This
one copies whole vLLM blocks: on a CPU the order of elements within a block is private to the
attention kernel, so nothing smaller can be moved, and the chunk size must be a multiple of the
block size.
Name it in `kv_transfer_config`: kv_connector "CpuLMCacheConnector", kv_connector_module_path
"tests.engines.cpu_connector".

Must not know: the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lmcache.utils import EngineType
from lmcache.v1 import gpu_connector
from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface
from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1


class CpuConnector(GPUConnectorInterface):  # type: ignore[misc]  # LMCache is untyped
    """Whole blocks between vLLM's CPU KV cache [blocks, heads, block, 2 x head] and chunks."""

    def __init__(self, kv_shape: Sequence[int]) -> None:
        self.layers, self.kv_size, _, heads, head = kv_shape
        self.width = heads * head
        self.kvcaches: list[torch.Tensor] | None = None

    def get_shape(self, num_tokens: int) -> torch.Size:
        return torch.Size([self.kv_size, self.layers, num_tokens, self.width])

    def to_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        for chunk, cache, blocks in self._pairs(memory_obj, start, end, kwargs, loading=True):
            cache[blocks.ids] = chunk[blocks.first :].view(-1, *cache.shape[1:])

    def from_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        for chunk, cache, blocks in self._pairs(memory_obj, start, end, kwargs, loading=False):
            chunk[blocks.first :] = cache[blocks.ids].reshape(-1, chunk.shape[1])

    def batched_to_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
        for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(memory_obj, start, end, **kwargs)

    def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
        for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(memory_obj, start, end, **kwargs)

    def _pairs(
        self, memory_obj: Any, start: int, end: int, kwargs: dict[str, Any], *, loading: bool
    ) -> list[tuple[torch.Tensor, torch.Tensor, Blocks]]:
        """For each layer: its part of the chunk as (blocks, elements), its cache, block ids."""
        if "kvcaches" in kwargs:
            self.kvcaches = list(kwargs["kvcaches"])
        assert self.kvcaches is not None
        block = self.kvcaches[0].shape[2]
        assert (end - start) % block == 0, f"chunks must be whole blocks of {block} tokens"
        cached = kwargs.get("vllm_cached_tokens", 0) if loading else 0
        first = max(0, min(end, cached) - start) // block
        slots = kwargs["slot_mapping"][start:end:block][first:]
        blocks = Blocks(first, slots.div(block, rounding_mode="floor").to(torch.long))
        chunks = memory_obj.tensor.view(self.layers, (end - start) // block, -1)
        return [(chunks[i], cache, blocks) for i, cache in enumerate(self.kvcaches)]


class Blocks:
    """The vLLM blocks of one chunk, from the `first` that vLLM does not hold yet."""

    def __init__(self, first: int, ids: torch.Tensor) -> None:
        self.first = first
        self.ids = ids


_original = gpu_connector.CreateGPUConnector


def _create(config: Any, metadata: Any, engine: Any, layout_hints: Any = None) -> Any:
    if engine == EngineType.VLLM and not torch.cuda.is_available():
        return CpuConnector(metadata.kv_shape)
    return _original(config, metadata, engine, layout_hints)


gpu_connector.CreateGPUConnector = _create


class CpuLMCacheConnector(LMCacheConnectorV1):  # type: ignore[misc]  # vLLM is untyped here
    """vLLM's own LMCache connector, once the CPU connector above is in place."""
