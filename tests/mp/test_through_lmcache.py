"""Through LMCache's own storage manager and the real store: controllers, serde, fault injection.

Two managers on one root stand for two servers; each has a store, a writer id and an L1 of its own.
"""

from __future__ import annotations

import argparse
import json
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, ObjectKey, PrefetchTaskSpec
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.distributed.serde import register_serde_factory
from lmcache.v1.distributed.serde.async_processor import AsyncSerdeProcessor
from lmcache.v1.distributed.serde.base import Deserializer, Serializer
from lmcache.v1.distributed.storage_manager import StorageManager

from tests.mp.helpers import SHAPE, WAIT_SECONDS, Heard, desc, keys

MIB = 1 << 20


def plugin(root: Path, **params: Any) -> dict[str, Any]:
    return {
        "type": "plugin",
        "module_path": "sharedfs_backend.mp",
        "class_name": "SharedFSL2Adapter",
        "adapter_params": {"root": str(root), "linger_seconds": 0.0, **params},
    }


class Stored(Heard):
    """Counts what the adapter announces, and lets a test wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def on_l2_keys_stored(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        with self._changed:
            super().on_l2_keys_stored(keys, sizes)
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.stored) >= count, WAIT_SECONDS)


class Server:
    """A storage manager with one adapter, as `lmcache server` makes it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        parsed = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(spec)]))
        memory = L1MemoryManagerConfig(size_in_bytes=32 * MIB, use_lazy=False, shm_name="")
        config = StorageManagerConfig(L1ManagerConfig(memory), EvictionConfig("noop"), parsed)
        self.manager = StorageManager(config)
        self.heard = Stored()
        self.manager.register_l2_listener(self.heard)
        ((_desc, self.adapter),) = self.manager.l2_adapters()

    @property
    def ours(self) -> Any:
        inner = self.adapter
        while not hasattr(inner, "_store"):
            inner = inner._inner
        return inner

    def write(
        self, wanted: Sequence[ObjectKey], dtype: torch.dtype = torch.float32
    ) -> list[torch.Tensor]:
        """Put random tensors into L1 and wait until they are in the store."""
        reserved = self.manager.reserve_write(list(wanted), desc(dtype=dtype))
        before, tensors = len(self.heard.stored), []
        for key in wanted:
            tensor = torch.randn(SHAPE).to(dtype)
            reserved[key].tensor.copy_(tensor)
            tensors.append(tensor)
        self.manager.finish_write(list(wanted))
        self.heard.wait_for(before + len(wanted))
        return tensors

    def read(
        self, wanted: Sequence[ObjectKey], dtype: torch.dtype = torch.float32
    ) -> list[torch.Tensor]:
        """The longest prefix that can be had, loaded through L1."""
        assert self.ours._store.wait_current()
        row = GroupedObjectKeys(list(wanted), 0, desc(dtype=dtype))
        handle = self.manager.submit_prefetch_task(PrefetchTaskSpec([row]))
        assert self.manager.wait_prefetch_status(handle, WAIT_SECONDS)
        result = self.manager.query_prefetch_status(handle)
        assert result is not None
        hits = list(result.hit_cells[0].gather(list(wanted)))
        if not hits:
            return []
        with self.manager.read_prefetched_results(hits, result.l1_owners) as objects:
            assert objects is not None
            tensors = [obj.tensor.clone() for obj in objects]
        self.manager.finish_read_prefetched(hits)
        return tensors


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, Any]], Server]]:
    servers: list[Server] = []

    def make(spec: dict[str, Any]) -> Server:
        servers.append(Server(spec))
        return servers[-1]

    yield make
    for server in servers:
        if not server.ours._closed:
            server.manager.close()


def same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    pairs = zip(left, right, strict=True)
    return len(left) == len(right) and all(torch.equal(one, two) for one, two in pairs)


def test_one_server_stores_and_another_loads_the_same_bytes(tmp_path: Path, serve: Any) -> None:
    first, second = serve(plugin(tmp_path / "ns")), serve(plugin(tmp_path / "ns"))
    written = first.write(keys(6))
    assert same(second.read(keys(8)), written)
    assert second.ours.metrics()["adapter_locks"] == 0


def test_dtypes_do_not_cross_hit_through_the_store(tmp_path: Path, serve: Any) -> None:
    first, second = serve(plugin(tmp_path / "ns")), serve(plugin(tmp_path / "ns"))
    first.write(keys(3), torch.float32)
    assert second.read(keys(3), torch.bfloat16) == []
    assert second.ours.metrics()["load_misses_layout"] == 3
    assert second.read(keys(3), torch.bfloat16) == []
    assert second.ours.metrics()["load_misses_layout"] == 3
    written = second.write(keys(3, salt="x"), torch.bfloat16)
    assert same(first.read(keys(3, salt="x"), torch.bfloat16), written)


def test_shards_salts_and_models_do_not_cross_hit(tmp_path: Path, serve: Any) -> None:
    first, second = serve(plugin(tmp_path / "ns")), serve(plugin(tmp_path / "ns", shard="1"))
    first.write(keys(2))
    assert second.read(keys(2)) == []
    assert first.read(keys(2, salt="other")) == []
    assert first.read(keys(2, model="other")) == []


def test_fp8_serde_is_shared_by_equal_servers_only(tmp_path: Path, serve: Any) -> None:
    def spec(dtype: str) -> dict[str, Any]:
        return {**plugin(tmp_path / "ns"), "serde": {"type": "fp8", "fp8_dtype": dtype}}

    first, equal = serve(spec("float8_e4m3fn")), serve(spec("float8_e4m3fn"))
    other, plain = serve(spec("float8_e5m2")), serve(plugin(tmp_path / "ns"))
    first.read(keys(4))  # engines look up before they store
    written = first.write(keys(4))
    rounded = [tensor.to(torch.float8_e4m3fn).to(torch.float32) for tensor in written]
    assert same(equal.read(keys(4)), rounded)
    assert other.read(keys(4)) == []
    assert plain.read(keys(4)) == []
    assert first.adapter.get_usage().total_bytes_used == sum(t.numel() for t in written)


def test_serialized_chunks_stored_before_any_lookup_are_loaded_too(
    tmp_path: Path, serve: Any
) -> None:
    spec = {**plugin(tmp_path / "ns"), "serde": {"type": "fp8"}}
    first, second = serve(spec), serve(spec)
    first.write(keys(3))
    assert len(second.read(keys(3))) == 3


class Packer(Serializer, Deserializer):  # type: ignore[misc]
    """A serializer whose output is smaller than the buffer it asked for."""

    def serialize(self, src: Any, dst: Any, key: Any) -> int:
        data = zlib.compress(bytes(src.byte_array))
        out = memoryview(dst.byte_array).cast("B")
        out[:4] = len(data).to_bytes(4, "little")
        out[4 : 4 + len(data)] = data
        return 4 + len(data)

    def deserialize(self, src: Any, dst: Any, key: Any) -> None:
        data = memoryview(src.byte_array).cast("B")
        length = int.from_bytes(data[:4], "little")
        memoryview(dst.byte_array).cast("B")[:] = zlib.decompress(data[4 : 4 + length])

    def estimate_serialized_size(self, layout_desc: Any) -> int:
        sizes = zip(layout_desc.shapes, layout_desc.dtypes, strict=True)
        return 2 * sum(int(shape.numel()) * int(dtype.itemsize) for shape, dtype in sizes)


def test_serialized_sizes_differ_from_the_layout(tmp_path: Path, serve: Any) -> None:
    register_serde_factory("packer", lambda _kw: AsyncSerdeProcessor(Packer(), Packer()))
    spec = {**plugin(tmp_path / "ns"), "serde": {"type": "packer"}}
    first, second = serve(spec), serve(spec)
    written = first.write(keys(3))
    assert same(second.read(keys(3)), written)
    full = sum(tensor.numel() * tensor.itemsize for tensor in written)
    assert 0 < first.adapter.get_usage().total_bytes_used < full + 3 * 64


def test_engines_of_other_dtypes_do_not_cross_hit_through_a_serializer(
    tmp_path: Path, serve: Any
) -> None:
    spec = {**plugin(tmp_path / "ns"), "serde": {"type": "fp8"}}
    wide, narrow, again = serve(spec), serve(spec), serve(spec)
    for server, dtype in ((wide, torch.float32), (narrow, torch.bfloat16)):
        assert server.read(keys(3), dtype) == []
        server.write(keys(3), dtype)
    assert again.read(keys(3), torch.bfloat16) == []  # two kinds there, its own not yet known
    written = again.write(keys(1, first=9), torch.bfloat16)
    assert len(again.read(keys(3), torch.bfloat16)) == 3
    assert len(narrow.read(keys(1, first=9), torch.bfloat16)) == len(written)
    assert wide.read(keys(1, first=9), torch.float32) == []


def test_under_fault_injection_what_is_loaded_is_right(tmp_path: Path, serve: Any) -> None:
    first = serve(plugin(tmp_path / "ns"))
    faulty = serve(
        {"type": "fault_inject", "inner": plugin(tmp_path / "ns"), "gap_tail_ratios": [0.0]}
    )
    written = first.write(keys(5))
    assert same(faulty.read(keys(5)), written[:4])
    assert faulty.ours.metrics()["adapter_locks"] == 0
    assert faulty.adapter.report_status()["type"] == "sharedfs"


def test_a_server_is_closed_with_work_in_flight(tmp_path: Path, serve: Any) -> None:
    server = serve(plugin(tmp_path / "ns"))
    wanted = keys(64)
    reserved = server.manager.reserve_write(wanted, desc())
    server.manager.finish_write(list(reserved))
    row = GroupedObjectKeys(wanted, 0, desc())
    server.manager.submit_prefetch_task(PrefetchTaskSpec([row]))
    adapter = server.ours
    server.manager.close()
    assert adapter._closed
    assert not adapter._dispatcher.alive


def test_an_adapter_is_added_and_removed_at_run_time(tmp_path: Path, serve: Any) -> None:
    server = serve(plugin(tmp_path / "one"))
    spec = json.dumps(plugin(tmp_path / "two"))
    parsed = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[spec]))
    added = server.manager.add_l2_adapter(parsed.adapters[0])
    server.write(keys(2))
    server.manager.delete_l2_adapter(added)
    assert len(server.manager.l2_adapters()) == 1
