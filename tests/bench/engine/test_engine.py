"""The synthetic engine calls an adapter as LMCache does: order, batches, locks, buffers, bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.core.adapters import FS, OURS, Arena, Driver
from bench.engine.engine import SyntheticEngine, arena_of
from bench.engine.models import MODELS, Model
from sharedfs_backend.economics import Prefill

PREFILL = Prefill(0.01, 1e-4, 0.0)
CHUNK = 16


class Recorded:
    """An adapter whose submits are written down: (call, keys)."""

    def __init__(self, adapter: Any) -> None:
        self.adapter, self.calls = adapter, list[tuple[str, int]]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.adapter, name)
        if not name.startswith("submit"):
            return found

        def call(keys: list[Any], *more: Any) -> Any:
            self.calls.append((name.removeprefix("submit_").removesuffix("_task"), len(keys)))
            return found(keys, *more)

        return call


class Rig:
    """One engine on a directory."""

    def __init__(self, root: Path, model: Model, chunks: int, name: str = OURS) -> None:
        self.arena: Arena = arena_of(model, CHUNK, chunks)
        options = {"linger_seconds": 0.0} if name == OURS else {}
        self.driver = Driver(name, root, self.arena, options=options)
        self.adapter = Recorded(self.driver.adapter)
        self.engine = SyntheticEngine(
            self.adapter,
            model,
            self.arena,
            chunk_tokens=CHUNK,
            prefill=PREFILL,
            step_tokens=4 * CHUNK,
            is_checked=True,
        )

    def close(self) -> None:
        self.engine.drain()
        self.driver.close()


ONE, TWO = MODELS["qwen2.5-1.5b-fp16"], Model("llama-3.1-8b", "fp8", 4)


@pytest.fixture
def rigs() -> Iterator[list[Rig]]:
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.close()


def start(rigs: list[Rig], root: Path, model: Model, chunks: int = 64, name: str = OURS) -> Rig:
    rigs.append(Rig(root, model, chunks, name))
    return rigs[-1]


def test_a_first_request_looks_up_all_and_stores_step_by_step_and_rank_by_rank(
    tmp_path: Path, rigs: list[Rig]
) -> None:
    rig = start(rigs, tmp_path / "kv", TWO)
    served = rig.engine.serve(range(6), 6 * CHUNK + 5)
    assert rig.adapter.calls == [("lookup_and_lock", 24)] + [("store", 4)] * 4 + [("store", 2)] * 4
    assert (served.l1_chunks, served.l2_chunks, served.stored_chunks) == (0, 0, 6)
    assert served.compute_seconds == PREFILL.seconds(6 * CHUNK + 5, 6 * CHUNK + 5)


def test_what_l1_holds_is_looked_up_and_unlocked_but_not_loaded(
    tmp_path: Path, rigs: list[Rig]
) -> None:
    rig = start(rigs, tmp_path / "kv", ONE)
    rig.engine.serve(range(3), 3 * CHUNK)
    rig.engine.drain()
    rig.adapter.calls.clear()
    served = rig.engine.serve(range(5), 5 * CHUNK)
    assert rig.adapter.calls == [("lookup_and_lock", 5), ("unlock", 3), ("store", 2)]
    assert (served.l1_chunks, served.l2_chunks, served.computed_tokens) == (3, 0, 2 * CHUNK)


def test_what_only_l1_holds_is_part_of_the_prefix(tmp_path: Path, rigs: list[Rig]) -> None:
    rig = start(rigs, tmp_path / "kv", ONE)
    rig.engine.serve(range(3), 3 * CHUNK)
    rig.engine.drain()
    rig.adapter.adapter.delete(rig.engine._rows([1])[0])
    served = rig.engine.serve(range(3), 3 * CHUNK)
    assert (served.l1_chunks, served.l2_chunks, served.computed_tokens) == (3, 0, 1)


@pytest.mark.parametrize("name", [OURS, FS])
def test_another_engine_loads_in_one_call_and_has_the_same_bytes(
    tmp_path: Path, rigs: list[Rig], name: str
) -> None:
    first = start(rigs, tmp_path / "kv", TWO, name=name)
    first.engine.serve(range(6), 6 * CHUNK)
    first.engine.drain()
    other = start(rigs, tmp_path / "kv", TWO, name=name)
    if name == OURS:
        assert other.driver.store_object.wait_current()
    served = other.engine.serve(range(8), 8 * CHUNK)
    assert other.adapter.calls[:3] == [("lookup_and_lock", 32), ("load", 24), ("unlock", 24)]
    assert (served.l2_chunks, served.damaged_chunks, served.stored_chunks) == (6, 0, 2)
    assert served.ttft_seconds > served.compute_seconds == PREFILL.seconds(2 * CHUNK, 8 * CHUNK)


def test_a_prefix_ends_where_one_rank_lacks_a_chunk(tmp_path: Path, rigs: list[Rig]) -> None:
    rig = start(rigs, tmp_path / "kv", TWO)
    rig.engine.serve(range(4), 4 * CHUNK)
    rig.engine.drain()
    other = start(rigs, tmp_path / "kv", TWO)
    assert other.driver.store_object.wait_current()
    missing = other.engine._rows([2])[3]
    other.engine.calls.lookup(missing, {0: other.arena.layout})  # opens the realm
    other.engine.calls.unlock(missing)
    other.adapter.adapter.delete(missing)
    assert other.engine.serve(range(4), 4 * CHUNK).l2_chunks == 2
    assert ("unlock", 16 - 1 - 8) in other.adapter.calls


def test_a_load_is_not_asked_for_where_the_router_said_so(tmp_path: Path, rigs: list[Rig]) -> None:
    rig = start(rigs, tmp_path / "kv", ONE)
    rig.engine.serve(range(4), 4 * CHUNK)
    rig.engine.drain()
    rig.engine.l1.clear()
    rig.adapter.calls.clear()
    served = rig.engine.serve(range(4), 4 * CHUNK, may_load=False)
    assert served.l2_chunks == 0
    assert [call for call, _ in rig.adapter.calls] == ["lookup_and_lock", "unlock", "store"]


def test_an_l1_too_small_for_the_prefix_loads_what_fits(tmp_path: Path, rigs: list[Rig]) -> None:
    rig = start(rigs, tmp_path / "kv", ONE)
    rig.engine.serve(range(6), 6 * CHUNK)
    rig.engine.drain()
    small = start(rigs, tmp_path / "kv", ONE, chunks=4)
    assert small.driver.store_object.wait_current()
    served = small.engine.serve(range(6), 6 * CHUNK)
    assert (served.l2_chunks, served.damaged_chunks) == (4, 0)
    small.engine.drain()
    assert small.engine.l1.locked == 0


def test_all_locks_and_buffers_are_given_back(tmp_path: Path, rigs: list[Rig]) -> None:
    rig = start(rigs, tmp_path / "kv", ONE, chunks=8)
    for start_at in (0, 4, 0, 2):
        rig.engine.serve(range(start_at, start_at + 6), 6 * CHUNK)
    rig.engine.drain()
    assert rig.engine.l1.locked == 0 and rig.engine.failed_stores == 0
    rig.engine.l1.clear()
    assert len(rig.engine.l1.reserve(range(100))) == 8


def test_damage_is_seen(tmp_path: Path, rigs: list[Rig]) -> None:
    first = start(rigs, tmp_path / "kv", ONE, name=FS)
    first.engine.serve(range(3), 3 * CHUNK)
    first.engine.drain()
    path = next(path for path in (tmp_path / "kv").rglob("*") if path.is_file())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)  # `fs` has no checksums: the engine's own check must see it
    other = start(rigs, tmp_path / "kv", ONE, name=FS)
    assert other.engine.serve(range(3), 3 * CHUNK).damaged_chunks == 1
