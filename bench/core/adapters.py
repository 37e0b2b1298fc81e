"""LMCache's L2 adapters on a directory, driven as LMCache's controllers drive them.

`Driver` submits a batch, waits on the adapter's event descriptor, and collects the result; the time
is from the submit to the collected result, as in LMCache's own `bench l2`. All contenders are made
by LMCache's factory from the configuration a user would write. `Arena` stands for LMCache's L1: one
page-aligned block of memory that the adapters are told of, handed out as memory objects.
"""

from __future__ import annotations

import argparse
import json
import select
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

OURS, FS, FS_NATIVE = "ours", "fs", "fs_native"
CONTENDERS = (OURS, FS_NATIVE, FS)
TUNED = "fs_native, 32 workers"
"""What LMCache ships with 4 workers, with as many as a mount with latency can use."""
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {TUNED: (FS_NATIVE, {"num_workers": 32})}
"""Contenders that are an adapter with settings other than its defaults."""
MODEL = "bench-model"
WAIT_SECONDS = 300.0
ALIGN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Timed:
    """One batch: seconds from submit to result, processor seconds of all threads of this process,
    and how many of the keys succeeded."""

    seconds: float
    cpu_seconds: float
    succeeded: int
    asked: int

    @property
    def complete(self) -> bool:
        return self.succeeded == self.asked


def object_keys(
    first: int, count: int, *, model: str = MODEL, rank: int = 0, salt: str = ""
) -> list[Any]:
    """LMCache's keys of consecutive chunks `first`, `first` + 1, ... of one imaginary prefix."""
    from lmcache.v1.distributed.api import ObjectKey

    return [
        ObjectKey(
            chunk_hash=number.to_bytes(32, "big"),
            model_name=model,
            kv_rank=rank,
            object_group_id=0,
            cache_salt=salt,
        )
        for number in range(first, first + count)
    ]


class Arena:
    """Page-aligned memory of `count` objects of `size` bytes each, all pages present.

    `shape` and `dtype` describe one object to LMCache; without them it is plain bytes. `fill`
    writes bytes that differ between chunks, so that a load of the wrong chunk is seen. With
    `distinct` < `count` object i shares its memory, hence its content, with object i - `distinct`:
    long prefixes then fit a small machine.
    """

    def __init__(
        self,
        count: int,
        size: int,
        *,
        shape: Sequence[int] | None = None,
        dtype: torch.dtype = torch.uint8,
        distinct: int | None = None,
    ) -> None:
        from lmcache.v1.distributed.api import MemoryLayoutDesc

        self.size, self.count = size, count
        self.distinct = min(count, distinct or count)
        self.shape = torch.Size(shape if shape is not None else (size // dtype.itemsize,))
        if self.shape.numel() * dtype.itemsize != size:
            raise ValueError(f"objects of {size} bytes do not have the shape {tuple(self.shape)}")
        self.dtype = dtype
        total = self.distinct * size
        backing = torch.zeros(total + ALIGN_BYTES, dtype=torch.uint8)
        start = -backing.data_ptr() % ALIGN_BYTES
        self._memory = backing[start : start + total]
        self.layout = MemoryLayoutDesc([self.shape], [dtype])
        self.objects = [self._object(number) for number in range(count)]

    def _object(self, number: int) -> Any:
        from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

        number %= self.distinct
        raw = self._memory[number * self.size : (number + 1) * self.size]
        metadata = MemoryObjMetadata(
            shape=self.shape,
            dtype=self.dtype,
            address=number * self.size,
            phy_size=self.size,
            ref_count=1,
            fmt=MemoryFormat.KV_2LTD,
            shapes=[self.shape],
            dtypes=[self.dtype],
        )
        return TensorMemoryObj(raw, metadata, None)

    @property
    def description(self) -> Any:
        """What LMCache tells an adapter of its L1."""
        from lmcache.v1.distributed.internal_api import L1MemoryDesc

        return L1MemoryDesc(
            ptr=self._memory.data_ptr(), size=self._memory.numel(), align_bytes=ALIGN_BYTES
        )

    def array(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        """The same memory, (distinct, size) bytes."""
        found: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = self._memory.numpy().reshape(
            self.distinct, self.size
        )
        return found

    def fill(self, seed: int) -> None:
        """Random bytes, repeated, with a stamp of its own in each page (in each chunk, where it
        is not whole pages): cheap, and neither chunks nor parts of them can be taken for others."""
        block = np.frombuffer(np.random.default_rng(seed).bytes(min(self.size, 1 << 20)), np.uint8)
        whole = self.array()
        for at in range(0, self.size, len(block)):
            part = min(len(block), self.size - at)
            whole[:, at : at + part] = block[:part]
        step = ALIGN_BYTES if self.size % ALIGN_BYTES == 0 else self.size
        parts = whole.reshape(-1, step)
        stamp = np.arange(len(parts), dtype="<u4") + np.uint32(seed % 1_000_003)
        parts[:, :4] = stamp.view(np.uint8).reshape(-1, 4)

    def clear(self) -> None:
        self.array()[:] = 0  # one thread: torch would leave others spinning into the next timing


def adapter_spec(name: str, root: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """The contender as its user configures it; `options` are its own settings."""
    name, changed = VARIANTS.get(name, (name, {}))
    options = {**changed, **options}
    if name != OURS:
        return {"type": name, "base_path": str(root), **options}
    params = {"root": str(root), "model_identity": "bench", **options}
    return {
        "type": "plugin",
        "module_path": "sharedfs_backend.mp",
        "class_name": "SharedFSL2Adapter",
        "adapter_params": params,
    }


class Driver:
    """One adapter on one directory. Use as a context manager; not thread-safe."""

    def __init__(
        self,
        name: str,
        root: Path,
        arena: Arena,
        *,
        options: Mapping[str, Any] | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name, self.root, self._layout, self._now = name, root, arena.layout, now
        root.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():  # LMCache warns about its own needs, not ours to change
            warnings.simplefilter("ignore")
            self.adapter: Any = _made(adapter_spec(name, root, options or {}), arena)
        self._fds = (
            self.adapter.get_store_event_fd(),
            self.adapter.get_lookup_and_lock_event_fd(),
            self.adapter.get_load_event_fd(),
        )

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.adapter.close()

    @property
    def store_object(self) -> Any:
        """Our own `Store` behind the adapter; AttributeError for the others."""
        return self.adapter._store

    def close_files(self) -> None:
        """Close packs that are kept open, so that the next load opens them as a first one does.

        The other contenders keep nothing open."""
        if self.name == OURS:
            fds = self.store_object.parts.fds
            for name in list(fds._entries):
                fds.forget(name)

    def counts(self) -> dict[str, float]:
        """Our own counters (opens, reads, depth, ...); nothing for the others."""
        return dict(self.store_object.stats()) if self.name == OURS else {}

    def gauges(self) -> dict[str, float]:
        """What the adapter and the store behind it show of themselves; nothing for the others."""
        return dict(self.adapter.metrics()) if self.name == OURS else {}

    def store(self, keys: Sequence[Any], objects: Sequence[Any]) -> Timed:
        """Until the adapter says the batch is stored (for ours: committed)."""

        def taken(task: int) -> int | None:
            result = self.adapter.pop_completed_store_tasks().get(task)
            if result is None:
                return None
            return len(keys) if result.is_successful() else 0

        return self._timed(
            self._fds[0],
            len(keys),
            lambda: self.adapter.submit_store_task(list(keys), list(objects)),
            taken,
        )

    def lookup(self, keys: Sequence[Any]) -> Timed:
        """Hits are locked, as LMCache has it: `unlock` them."""
        return self._timed(
            self._fds[1],
            len(keys),
            lambda: self.adapter.submit_lookup_and_lock_task(list(keys), {0: self._layout}),
            lambda task: _ones(self.adapter.query_lookup_and_lock_result(task)),
        )

    def load(self, keys: Sequence[Any], objects: Sequence[Any]) -> Timed:
        """Until every byte that will come is in the objects."""
        return self._timed(
            self._fds[2],
            len(keys),
            lambda: self.adapter.submit_load_task(list(keys), list(objects)),
            lambda task: _ones(self.adapter.query_load_result(task)),
        )

    def unlock(self, keys: Sequence[Any]) -> None:
        self.adapter.submit_unlock(list(keys))

    def _timed(
        self, fd: int, asked: int, submit: Callable[[], int], take: Callable[[int], int | None]
    ) -> Timed:
        """A batch that is not done in time raises TimeoutError: the adapter is stuck."""
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        start, processor = self._now(), time.process_time()
        task = submit()
        while (done := take(task)) is None:
            if not poller.poll(WAIT_SECONDS * 1000):
                raise TimeoutError(f"{self.name}: no result within {WAIT_SECONDS:.0f} s")
            _consume(fd)
        return Timed(self._now() - start, time.process_time() - processor, done, asked)


def _made(spec: Mapping[str, Any], arena: Arena) -> Any:
    """The adapter, by LMCache's own factory."""
    import lmcache.v1.distributed.storage_manager  # noqa: F401  # breaks an import circle
    from lmcache.v1.distributed.l2_adapters import create_l2_adapter
    from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config

    given = argparse.Namespace(l2_adapter=[json.dumps(spec)])
    (config,) = parse_args_to_l2_adapters_config(given).adapters
    return create_l2_adapter(config, l1_memory_desc=arena.description)


def _ones(bitmap: Any) -> int | None:
    return None if bitmap is None else int(bitmap.popcount())


def _consume(fd: int) -> None:
    from lmcache.v1.platform import consume_fd

    consume_fd(fd)
