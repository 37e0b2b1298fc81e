"""What an engine hands a storage plugin, made small: LMCache's own classes, without vLLM.

Configuration, metadata and the CPU pool are LMCache's; the store is in memory unless a test brings
a real one.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

with warnings.catch_warnings():  # what LMCache's own imports warn about is not ours to change
    warnings.simplefilter("ignore")
    import lmcache.v1.token_database
    import torch
    import vllm.v1.core.kv_cache_utils
    from lmcache.utils import CacheEngineKey
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.memory_management import MemoryFormat
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

    from sharedfs_backend.inprocess import SharedFSBackend

from sharedfs_backend.inprocess.opening import Opened, open_backend
from sharedfs_backend.inprocess.shared import SharedStores
from tests.mp.fake_store import FakeRealm, FakeStore

TOKEN_DATABASE = lmcache.v1.token_database
VLLM_HASHES = vllm.v1.core.kv_cache_utils
FLOAT16 = torch.float16
LAYERS, TOKENS, HEADS, HEAD = 4, 16, 2, 8
ROOT = "/nowhere"
SHA = {"pre_caching_hash_algorithm": "sha256_cbor"}


class Store(FakeStore):
    """The store in memory, with what only in-process mode asks for."""

    canaries: list[bytes]

    def realm(self, descriptor: Any, canary: bytes = b"\0\0\0\0") -> FakeRealm:
        self.canaries = [*getattr(self, "canaries", []), canary]
        return super().realm(descriptor, canary)

    def forget(self, keys: Sequence[bytes], *, realm: Any) -> list[int]:  # type: ignore[override]
        # As the real one: the bytes each chunk held.
        sizes = [sum(map(len, self.chunks.get((realm.digest, k), {}).values())) for k in keys]
        super().forget(keys, realm=realm)
        return sizes


def config(extra: dict[str, Any] | None = None, **values: Any) -> Any:
    made = LMCacheEngineConfig.from_defaults()
    extra = {"sharedfs.root": ROOT, "sharedfs.model_identity": "test", **(extra or {})}
    for name, value in {"max_local_cpu_size": 0.01, "extra_config": extra, **SHA, **values}.items():
        setattr(made, name, value)
    return made


def config_from(path: Path) -> Any:
    """What LMCache makes of a configuration file."""
    return LMCacheEngineConfig.from_file(str(path))


def metadata(**values: Any) -> Any:
    return LMCacheMetadata(
        **{
            "model_name": "model",
            "world_size": 1,
            "local_world_size": 1,
            "worker_id": 0,
            "local_worker_id": 0,
            "kv_dtype": torch.bfloat16,
            "kv_shape": (LAYERS, 2, TOKENS, HEADS, HEAD),
            "role": "worker",
            "chunk_size": TOKENS,
            **values,
        }
    )


def key(chunk_hash: int, tags: dict[str, str] | None = None, **values: Any) -> Any:
    configs = {f"lmcache.tag.{name}": value for name, value in (tags or {}).items()}
    return CacheEngineKey(
        **{
            "model_name": "model",
            "world_size": 1,
            "worker_id": 0,
            "chunk_hash": chunk_hash,
            "dtype": torch.bfloat16,
            "request_configs": configs or None,
            **values,
        }
    )


@dataclass
class Engine:
    """One backend with LMCache's CPU pool below it."""

    backend: Any
    pool: Any
    store: Any
    config: Any
    metadata: Any
    allocated: list[Any] = field(default_factory=list)

    def chunk(self, fill: int, tokens: int = TOKENS) -> Any:
        """A memory object as the engine makes it for a store, one reference held."""
        shapes = self.metadata.get_shapes(tokens)
        obj = self.pool.allocate(shapes, self.metadata.get_dtypes(), MemoryFormat.KV_2LTD)
        obj.raw_data[: obj.get_size()].fill_(fill)
        self.allocated.append(obj)
        return obj

    def layers(self, fill: int) -> list[Any]:
        """The layers of one chunk, as `use_layerwise` allocates them."""
        shape = torch.Size([TOKENS, 2, HEADS * HEAD])
        objs: list[Any] = self.pool.batched_allocate(
            shape, self.metadata.kv_dtype, LAYERS, MemoryFormat.KV_T2D
        )
        for number, obj in enumerate(objs):
            obj.raw_data[: obj.get_size()].fill_(fill + number)
        self.allocated += objs
        return objs

    def put(self, keys: Sequence[Any], objs: Sequence[Any], **more: Any) -> None:
        """Store as LMCache's storage manager does, which then drops its own references."""
        futures = self.backend.batched_submit_put_task(keys, list(objs), **more)
        for obj in objs:
            obj.ref_count_down()
        for future in futures or []:
            future.result(10)

    @property
    def objects_in_use(self) -> int:
        """Memory objects that are not back in LMCache's pool."""
        return int(self.pool.memory_allocator.pin_allocator.num_active_allocations)

    def close(self) -> None:
        self.backend.close()
        self.pool.memory_allocator.close()


def start(
    store: Any | None = None,
    stores: SharedStores | None = None,
    made: Any | None = None,
    meta: Any | None = None,
    **values: Any,
) -> Engine:
    """An engine on this store (in memory by default)."""
    made, meta = made or config(**values), meta or metadata()
    store = Store() if store is None else store
    shared = stores or SharedStores(lambda _settings: store)

    def opener(config: Any, metadata: Any) -> Opened:
        return open_backend(config, metadata, shared)

    pool = LocalCPUBackend(made, meta, dst_device="cpu")
    backend = SharedFSBackend(
        config=made, metadata=meta, local_cpu_backend=pool, dst_device="cpu", opener=opener
    )
    return Engine(backend, pool, store, made, meta)


def fill_of(obj: Any) -> int:
    """The one byte value a chunk is filled with; -1 where it is mixed."""
    data = bytes(obj.byte_array)
    return data[0] if data == data[:1] * len(data) else -1
