"""What the adapter's tests share: LMCache keys, memory objects, and waiting on an event fd."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd

SHAPE = (2, 4, 16, 8)
WAIT_SECONDS = 20.0  # a limit for a broken run; nothing waits this long in a good one


@dataclass(frozen=True)
class FakeIdentity:
    text: str
    verified: bool = True
    note: str = ""


def identify(name: str) -> FakeIdentity:
    return FakeIdentity(f"weights-of-{name}")


def keys(
    count: int, *, model: str = "m", rank: int = 0, group: int = 0, salt: str = "", first: int = 0
) -> list[ObjectKey]:
    return [
        ObjectKey(
            chunk_hash=(first + n).to_bytes(32, "big"),
            model_name=model,
            kv_rank=rank,
            object_group_id=group,
            cache_salt=salt,
        )
        for n in range(count)
    ]


def memory(
    count: int,
    fill: int | None = 0,
    shape: Sequence[int] = SHAPE,
    dtype: torch.dtype = torch.float32,
) -> list[TensorMemoryObj]:
    """Objects of which object i holds the byte fill + i throughout."""
    size = torch.Size(shape).numel() * dtype.itemsize
    arena = torch.zeros(count * size, dtype=torch.uint8)
    objects = []
    for n in range(count):
        raw = arena[n * size : (n + 1) * size]
        if fill is not None:
            raw.fill_((fill + n) & 0xFF)
        meta = MemoryObjMetadata(
            shape=torch.Size(shape),
            dtype=dtype,
            address=n * size,
            phy_size=size,
            ref_count=1,
            fmt=MemoryFormat.UNDEFINED,
            shapes=[torch.Size(shape)],
            dtypes=[dtype],
        )
        objects.append(TensorMemoryObj(raw, meta, None))
    return objects


def desc(shape: Sequence[int] = SHAPE, dtype: torch.dtype = torch.float32) -> MemoryLayoutDesc:
    return MemoryLayoutDesc([torch.Size(shape)], [dtype])


def contents(objects: Sequence[Any]) -> list[bytes]:
    return [bytes(obj.raw_data.numpy()) for obj in objects]


def wait_fd(fd: int) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    assert poller.poll(WAIT_SECONDS * 1000), "nothing was signalled"
    consume_fd(fd)


def _until(fd: int, take: Callable[[], Any]) -> Any:
    while True:
        result = take()
        if result is not None:
            return result
        wait_fd(fd)


def lookup(adapter: Any, wanted: Sequence[ObjectKey], hint: Any = None) -> list[int]:
    """Places that hit."""
    descs = hint if hint is not None else {0: desc()}
    task = adapter.submit_lookup_and_lock_task(wanted, descs)
    bitmap = _until(
        adapter.get_lookup_and_lock_event_fd(),
        lambda: adapter.query_lookup_and_lock_result(task),
    )
    return list(bitmap.get_indices_list())


def finished_load(adapter: Any, task: int) -> list[int]:
    bitmap = _until(adapter.get_load_event_fd(), lambda: adapter.query_load_result(task))
    return list(bitmap.get_indices_list())


def load(adapter: Any, wanted: Sequence[ObjectKey], objects: Sequence[Any]) -> list[int]:
    return finished_load(adapter, adapter.submit_load_task(wanted, objects))


def finished_stores(adapter: Any, *tasks: int) -> dict[int, Any]:
    done: dict[int, Any] = {}
    while set(tasks) - set(done):
        done |= adapter.pop_completed_store_tasks()
        if set(tasks) - set(done):
            wait_fd(adapter.get_store_event_fd())
    return done


def store(adapter: Any, wanted: Sequence[ObjectKey], objects: Sequence[Any]) -> Any:
    task = adapter.submit_store_task(wanted, objects)
    return finished_stores(adapter, task)[task]


@dataclass
class Heard:
    """An L2 listener that writes down what it is told."""

    stored: list[tuple[ObjectKey, int]] = field(default_factory=list)
    accessed: list[ObjectKey] = field(default_factory=list)
    deleted: list[ObjectKey] = field(default_factory=list)

    def on_l2_keys_stored(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        self.stored += zip(keys, sizes, strict=True)

    def on_l2_keys_accessed(self, keys: list[ObjectKey]) -> None:
        self.accessed += keys

    def on_l2_keys_deleted(self, keys: list[ObjectKey]) -> None:
        self.deleted += keys
