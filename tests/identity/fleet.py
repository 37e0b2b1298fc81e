"""Machines that store and reuse prompts through one namespace, in both of LMCache's modes.

An `Engine` says what may tell two engines apart: weights and where they lie, dtype, rank, shard,
adapter, salt. A `Machine` is LMCache with our plugin serving one of them: in multi-process mode its
own storage manager with our L2 adapter, in in-process mode the plugin class with LMCache's CPU
pool. Keys are LMCache's, made from tokens; each machine has a store and a writer id of its own.

What an engine would compute is a random tensor that depends on weights, adapter, rank and tokens,
so that a hit can be told from another engine's KV by its bytes.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from blake3 import blake3
from lmcache.v1.distributed.api import ObjectKey, ipc_key_to_object_keys
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.token_hasher import TokenHasher
from safetensors.torch import save_file

from sharedfs_backend.identity import lora_digest, lora_salt
from sharedfs_backend.inprocess.shared import SharedStores
from sharedfs_backend.store import Store
from tests.inprocess import engine as inprocess
from tests.mp.helpers import SHAPE, WAIT_SECONDS, desc
from tests.mp.test_through_lmcache import Server, plugin

CHUNK_TOKENS = 16
MTIME_NS = 1_600_000_000 * 10**9

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Engine:
    """What may tell two engines apart. `weights` is what lies at `model` while it starts.

    `slice` stands for what no key and no realm knows: which heads this engine holds.
    """

    model: str = "models/m"
    weights: str = "base"
    dtype: str = "float32"
    shard: str = ""
    lora: str = ""
    salt: str = ""
    rank: int = 0
    world: int = 1
    slice: str = ""

    def computes(self, prompt: Sequence[int], shape: Sequence[int], noise: float = 0.0) -> Tensors:
        """The KV of each whole chunk; `noise` is what other hardware does to it."""
        adapter = Path(self.lora).name.split("-")[0]
        name = [self.weights, adapter, self.rank, self.world, self.slice]
        chunks = []
        for end in range(CHUNK_TOKENS, len(prompt) + 1, CHUNK_TOKENS):
            seed = blake3(json.dumps([name, prompt[:end]]).encode()).digest(length=8)
            random = torch.Generator().manual_seed(int.from_bytes(seed, "big") >> 1)
            exact = torch.randn(tuple(shape), generator=random)
            exact += noise * torch.randn(tuple(shape), generator=random)
            chunks.append(exact.to(getattr(torch, self.dtype)))
        return chunks


def prompt(chunks: int, seed: int = 1) -> list[int]:
    """Tokens of so many whole chunks; a longer one of the same seed begins with a shorter one."""
    return [seed * 10_000 + token for token in range(chunks * CHUNK_TOKENS)]


class Machine(Protocol):
    """One engine's side of LMCache, with our plugin."""

    engine: Engine

    def computed(self, tokens: Sequence[int], noise: float = 0.0) -> Tensors: ...

    def store(self, tokens: Sequence[int], noise: float = 0.0) -> Tensors:
        """Store what the engine computes, looking nothing up; returns it once that is over."""

    def reuse(self, tokens: Sequence[int]) -> Tensors:
        """The leading chunks that can be had from the namespace, all published ones read."""

    def stats(self) -> dict[str, float]: ...

    def read_on(self) -> None:
        """Read everything published so far."""

    def close(self) -> None: ...


class MpMachine:
    """Multi-process mode: LMCache's storage manager, controllers and L1 above our adapter."""

    def __init__(self, root: Path, model: Path, adapter: Path | None, engine: Engine, **more: Any):
        self.engine, self._model, self._adapter = engine, model, adapter
        self._server = Server(plugin(root, shard=engine.shard, **more))
        self._ours = self._server.ours
        self._dtype = getattr(torch, engine.dtype)
        self.hash_algorithm = "blake3"
        self._over = threading.Semaphore(0)
        self._watch_stores()

    def _watch_stores(self) -> None:
        """A permit for each key whose store LMCache was told the end of."""
        submit, pop = self._ours.submit_store_task, self._ours.pop_completed_store_tasks
        keys_of: dict[int, int] = {}

        def submitted(keys: list[Any], objects: list[Any]) -> int:
            task_id: int = submit(keys, objects)
            keys_of[task_id] = len(keys)
            return task_id

        def popped() -> Any:
            done = pop()
            for task_id in done:
                self._over.release(keys_of.pop(task_id))
            return done

        self._ours.submit_store_task = submitted
        self._ours.pop_completed_store_tasks = popped

    def keys(self, tokens: Sequence[int]) -> list[ObjectKey]:
        """As the server makes them from a worker's request."""
        salt = self.engine.salt
        if self._adapter is not None:
            salt = lora_salt(str(self._adapter), salt)
        request = IPCCacheServerKey(
            model_name=str(self._model),
            world_size=self.engine.world,
            worker_id=self.engine.rank,
            token_ids=tuple(tokens),
            start=0,
            end=len(tokens),
            request_id="",
            cache_salt=salt,
        )
        hashes = TokenHasher(CHUNK_TOKENS, self.hash_algorithm).compute_chunk_hashes(list(tokens))
        keys: list[ObjectKey] = ipc_key_to_object_keys(request, hashes, [0])[0]
        return keys

    def computed(self, tokens: Sequence[int], noise: float = 0.0) -> Tensors:
        return self.engine.computes(tokens, SHAPE, noise)

    def store(self, tokens: Sequence[int], noise: float = 0.0) -> Tensors:
        keys, tensors = self.keys(tokens), self.computed(tokens, noise)
        reserved = self._server.manager.reserve_write(keys, desc(dtype=self._dtype))
        for key, tensor in zip(keys, tensors, strict=True):
            reserved[key].tensor.copy_(tensor)
        self._server.manager.finish_write(keys)
        for _ in keys:
            assert self._over.acquire(timeout=WAIT_SECONDS)
        return tensors

    def reuse(self, tokens: Sequence[int]) -> Tensors:
        self._server.manager.clear()  # LMCache's L1, which would answer first
        return self._server.read(self.keys(tokens), self._dtype)

    def stats(self) -> dict[str, float]:
        found: dict[str, float] = self._ours._store.stats()
        return found

    def read_on(self) -> None:
        assert self._ours._store.wait_current()

    def close(self) -> None:
        self._server.manager.close()


class InProcessMachine:
    """In-process mode: the plugin class, the engine's own token database and CPU pool."""

    def __init__(self, root: Path, model: Path, adapter: Path | None, engine: Engine, **more: Any):
        self.engine = engine
        self._tags = {}
        if adapter is not None:
            self._tags["lmcache.tag.lora"] = lora_digest(str(adapter))
        if engine.salt:
            self._tags["lmcache.tag.tenant"] = engine.salt
        values: dict[str, Any] = {"shard": engine.shard, "linger_seconds": 0.0, **more}
        extra = {
            "sharedfs.root": str(root),
            "sharedfs.model_identity": None,
            **{f"sharedfs.{name}": value for name, value in values.items()},
        }
        made = inprocess.config(extra, chunk_size=CHUNK_TOKENS)
        meta = inprocess.metadata(
            model_name=str(model),
            world_size=engine.world,
            worker_id=engine.rank,
            kv_dtype=getattr(torch, engine.dtype),
        )
        self._tokens = inprocess.TOKEN_DATABASE.ChunkedTokenDatabase(made, meta)
        stores = SharedStores(lambda settings: Store(settings=settings))
        self._lmcache = inprocess.start(stores=stores, made=made, meta=meta)
        self._backend = self._lmcache.backend

    def keys(self, tokens: Sequence[int]) -> list[Any]:
        """As the engine makes them for a request with these tags."""
        found = self._tokens.process_tokens(list(tokens), request_configs=self._tags or None)
        return [key for _start, _end, key in found]

    def computed(self, tokens: Sequence[int], noise: float = 0.0) -> Tensors:
        (shape,) = self._lmcache.metadata.get_shapes(CHUNK_TOKENS)
        return self.engine.computes(tokens, shape, noise)

    def store(self, tokens: Sequence[int], noise: float = 0.0) -> Tensors:
        tensors, objects = self.computed(tokens, noise), []
        for tensor in tensors:
            obj = self._lmcache.pool.allocate(tensor.shape, tensor.dtype, MemoryFormat.KV_2LTD)
            obj.tensor.copy_(tensor)
            objects.append(obj)
        self._lmcache.put(self.keys(tokens), objects)
        return tensors

    def reuse(self, tokens: Sequence[int]) -> Tensors:
        self.read_on()
        keys = self.keys(tokens)
        count = self._backend.batched_contains(keys)
        objects = self._backend.batched_get_blocking(keys[:count])
        tensors = [obj.tensor.clone() for obj in objects]
        for obj in objects:
            obj.ref_count_down()
        return tensors

    def stats(self) -> dict[str, float]:
        found: dict[str, float] = self._backend._store.stats()
        return found

    def read_on(self) -> None:
        assert self._backend._store.wait_current()

    def close(self) -> None:
        self._backend.close()
        left = self._lmcache.objects_in_use
        self._lmcache.close()
        assert left == 0, f"{left} memory objects were not given back"


MODES: dict[str, type[MpMachine] | type[InProcessMachine]] = {
    "mp": MpMachine,
    "inprocess": InProcessMachine,
}


class Fleet:
    """A namespace, models and adapters below one folder, and the machines started on them."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.folder, self.mode = folder, mode
        self.machines: list[Machine] = []
        self._names = itertools.count()

    @property
    def root(self) -> Path:
        return self.folder / "kv"

    def start(self, engine: Engine, **settings: Any) -> Machine:
        """A machine with `engine.weights` at `engine.model`, whatever lay there before."""
        model = self.folder / engine.model
        self._install(engine.weights, model)
        adapter = self.folder / engine.lora if engine.lora else None
        if adapter is not None and not adapter.exists():
            write_adapter(adapter, adapter.name.split("-")[0])
        machine = MODES[self.mode](self.root, model, adapter, engine, **settings)
        self.machines.append(machine)
        return machine

    def packs(self) -> int:
        """Files below packs/, whoever wrote them."""
        return sum(path.is_file() for path in (self.root / "packs").rglob("*"))

    def wait_until(self, true: Callable[[], bool]) -> None:
        """For what other threads do; fails after a limit."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not true():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def close(self) -> None:
        for machine in self.machines:
            machine.close()

    def _install(self, weights: str, model: Path) -> None:
        """By renaming, as copying tools do: same sizes and times, other inodes."""
        if model.is_symlink():
            return
        fresh = self.folder / f"model-{next(self._names)}"
        write_model(fresh, weights)
        if model.exists():
            shutil.rmtree(model)
        model.parent.mkdir(parents=True, exist_ok=True)
        fresh.rename(model)


def write_model(directory: Path, weights: str) -> None:
    """A model of 200 KB. Equal config, equal headers, whatever the weights."""
    shapes = {"embed": (64, 256), "layers.0.q_proj": (256, 128), "norm": (256,)}
    config = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 1}
    _write(directory, weights, shapes, "model.safetensors", ("config.json", config))


def write_adapter(directory: Path, weights: str) -> None:
    """A LoRA adapter. Equal config, equal headers, whatever the weights."""
    shapes = {"q_proj.lora_A": (8, 256), "q_proj.lora_B": (128, 8)}
    config = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": str(directory)}
    _write(directory, weights, shapes, "adapter_model.safetensors", ("adapter_config.json", config))


def _write(
    directory: Path,
    weights: str,
    shapes: Mapping[str, tuple[int, ...]],
    file: str,
    config: tuple[str, dict[str, Any]],
) -> None:
    directory.mkdir(parents=True)
    seed = blake3(weights.encode()).digest(length=6)
    random = torch.Generator().manual_seed(int.from_bytes(seed, "big"))
    tensors = {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}
    save_file(tensors, str(directory / file))
    (directory / config[0]).write_text(json.dumps(config[1]))
    for path in directory.iterdir():
        os.utime(path, ns=(MTIME_NS, MTIME_NS))
