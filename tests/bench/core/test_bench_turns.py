"""A tiny run end to end: LMCache's own adapters and ours, in turns, on a plain directory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():  # what LMCache's own imports warn about is not ours to change
    warnings.simplefilter("ignore")
    import lmcache.v1.distributed.storage_manager  # noqa: F401  # warns when imported

from bench.core import mounts
from bench.core.adapters import CONTENDERS, FS_NATIVE, OURS, Arena, Driver, object_keys
from bench.core.case import Context
from bench.core.mounts import Conditions, Plain, mounted, what_serves
from bench.core.progress import Silent
from bench.core.results import Origin
from bench.core.runner import Recording
from bench.core.select import by_round, choices, ratio, unmeasured
from bench.core.turns import Batch, Memory, Turn, TurnFailed, one_turn, rotated, store_lookup_load
from bench.core.vllm_tier import VLLM_TIER
from tests.bench.core.test_bench_results import ORIGIN

BATCH = Batch(4, 64 << 10)


def context(folder: Path, origin: Origin = ORIGIN) -> tuple[Context, Recording]:
    recording = Recording(folder / "toy.parquet", origin)
    made = Context(
        folder=folder,
        profile="quick",
        progress=Silent(),
        record=recording,
        rounds=3,
        seed=1,
        cells=recording,
    )
    return made, recording


@pytest.fixture
def plain(tmp_path: Path) -> Plain:
    return Plain(tmp_path, "nothing throttles it here")


@pytest.fixture(params=CONTENDERS)
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    with Driver(request.param, tmp_path / "root", Arena(BATCH.count, BATCH.size)) as made:
        yield made


def test_a_part_of_a_chunk_in_another_s_place_is_seen() -> None:
    memory = Memory(Batch(2, 4 << 20), 1)
    source, target = memory.source.array(), memory.target.array()
    target[:] = source
    assert memory.wrong_chunks() == 0
    target[1, 1 << 20 : 2 << 20] = source[1, 2 << 20 : 3 << 20]
    assert memory.wrong_chunks() == 1
    target[0, 1 << 20 : 2 << 20] = source[1, 1 << 20 : 2 << 20]
    assert memory.wrong_chunks() == 2


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_pages_of_a_file_system_on_disk_are_let_go_between_store_and_lookup(
    plain: Plain, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    done: list[str] = []
    monkeypatch.setattr(mounts, "file_system", lambda _: kind)
    monkeypatch.setattr(
        "os.posix_fadvise", lambda fd, *_: done.append(os.readlink(f"/proc/self/fd/{fd}"))
    )
    memory = Memory(BATCH, 1)
    turn = Turn(FS_NATIVE, plain, "cell", memory)
    store, lookup = turn.driver.store, turn.driver.lookup

    def noted_store(*given: Any) -> Any:
        stored = store(*given)
        done.append("stored")
        return stored

    def noted_lookup(*given: Any) -> Any:
        done.append("looked up")
        return lookup(*given)

    turn.driver.store, turn.driver.lookup = noted_store, noted_lookup
    try:
        one_turn(turn)
    finally:
        turn.close()
    between = done[done.index("stored") + 1 : done.index("looked up")]
    assert len(between) == (BATCH.count if kind == "ext4" else 0)
    said = "page cache let go" if kind == "ext4" else "in memory"
    assert said in what_serves(plain)


def test_a_batch_comes_back_as_it_was_stored(driver: Driver) -> None:
    source, target = Arena(BATCH.count, BATCH.size), Arena(BATCH.count, BATCH.size)
    source.fill(7)
    keys = object_keys(0, BATCH.count)
    assert driver.lookup(keys).succeeded == 0
    assert driver.store(keys, source.objects).complete
    assert driver.lookup(keys).complete
    assert driver.load(keys, target.objects).complete
    assert (source.array() == target.array()).all()


def test_all_contenders_take_turns_and_every_round_is_a_row(tmp_path: Path, plain: Plain) -> None:
    made, recording = context(tmp_path)
    memory = Memory(BATCH, 1)
    store_lookup_load(
        made, plain, CONTENDERS, memory, Conditions(), cell="tiny", rounds=3, part="batch"
    )
    assert unmeasured(recording.rows) == []
    assert set(choices(recording.rows, "adapter")) == set(CONTENDERS)
    for operation in ("store", "lookup", "load", "lookup_load"):
        for name in CONTENDERS:
            assert sorted(by_round(recording.rows, operation, adapter=name)) == [0, 1, 2]
    found = ratio(recording.rows, "load", "adapter", FS_NATIVE, OURS, part="batch")
    assert found is not None
    assert found.rounds == 3


def test_nothing_stored_is_left_between_turns(tmp_path: Path, plain: Plain) -> None:
    turn = Turn(OURS, plain, "cell", Memory(BATCH, 1))
    try:
        one_turn(turn)
        packs = tmp_path / "cell-ours" / "packs"
        assert any(path.is_file() for path in packs.rglob("*"))
        turn.remove_data()
        assert not any(path.is_file() for path in packs.rglob("*"))
        one_turn(turn)
    finally:
        turn.close()
    assert not (tmp_path / "cell-ours").exists()


def test_other_bytes_than_those_stored_fail_the_turn(plain: Plain) -> None:
    memory = Memory(BATCH, 1)
    turn = Turn(FS_NATIVE, plain, "cell", memory)
    load = turn.driver.load

    def tampering(keys: Any, objects: Any) -> Any:
        timed = load(keys, objects)
        memory.target.array()[2, 100] ^= 1
        return timed

    turn.driver.load = tampering
    try:
        with pytest.raises(TurnFailed, match="1 of 4 chunks hold other bytes"):
            one_turn(turn)
    finally:
        turn.close()


def test_a_failed_turn_is_not_measured_and_costs_no_other(tmp_path: Path, plain: Plain) -> None:
    made, recording = context(tmp_path)
    memory = Memory(BATCH, 1)
    wrong = memory.wrong_chunks
    calls = iter(range(100))
    memory.wrong_chunks = lambda: wrong() + (next(calls) == 1)  # type: ignore[method-assign]
    store_lookup_load(made, plain, (FS_NATIVE,), memory, Conditions(), cell="tiny", rounds=3)
    assert {row.repeat for row in unmeasured(recording.rows)} == {0}
    assert sorted(by_round(recording.rows, "load", adapter=FS_NATIVE)) == [1, 2]


def test_the_order_rotates_so_that_each_comes_first_in_turn() -> None:
    names = ["a", "b", "c"]
    assert [rotated(names, number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert sorted(rotated(names, 5)) == names


def test_chunks_of_an_arena_differ_and_follow_from_the_seed() -> None:
    one, other = Arena(3, 8192), Arena(3, 8192)
    one.fill(1)
    other.fill(1)
    assert (one.array() == other.array()).all()
    assert len({bytes(row) for row in one.array()}) == 3
    other.fill(2)
    assert not (one.array() == other.array()).all()


def test_without_a_throttle_the_case_runs_on_the_directory_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "throttle_problem", lambda: "it is not built: make bench-tools")
    with mounted(tmp_path) as mount:
        assert not mount.throttled
        assert mount.counters() == {}
        mount.apply(Conditions())
        with pytest.raises(ValueError, match="make bench-tools"):
            mount.apply(Conditions(latency_ms=1.0))


@pytest.mark.skipif(bool(mounts.throttle_problem()), reason=mounts.throttle_problem())
def test_a_throttled_mount_counts_what_a_batch_costs(tmp_path: Path) -> None:
    with mounted(tmp_path / "throttled") as mount:
        turn = Turn(FS_NATIVE, mount, "cell", Memory(BATCH, 1))
        try:
            mount.apply(Conditions(latency_ms=0.1, bandwidth_mb_s=1000.0))
            before = mount.counters()
            one_turn(turn)
            after = mount.counters()
        finally:
            turn.close()
        assert after["create"] - before["create"] == BATCH.count
        assert after["open"] - before["open"] == BATCH.count
        assert mount.daemon_pid is not None


def test_objects_may_share_memory_so_that_long_prefixes_fit() -> None:
    arena = Arena(5, 8192, distinct=2)
    arena.fill(1)
    contents = [bytes(one.raw_data.numpy()) for one in arena.objects]
    assert contents[0] == contents[2] == contents[4] != contents[1] == contents[3]
    assert arena.array().shape == (2, 8192)


def test_vllms_own_file_tier_takes_turns_too(tmp_path: Path, plain: Plain) -> None:
    made, recording = context(tmp_path)
    memory = Memory(BATCH, 1)
    names = (VLLM_TIER, OURS)
    store_lookup_load(made, plain, names, memory, Conditions(), cell="tier", rounds=3)
    assert unmeasured(recording.rows) == []
    assert sorted(by_round(recording.rows, "load", adapter=VLLM_TIER)) == [0, 1, 2]


def test_a_turn_that_fails_leaves_nothing_for_the_next_to_stumble_over(
    tmp_path: Path, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []

    def fails(turn: Turn) -> dict[str, Any]:
        left.append(sum(path.is_file() for path in plain.backing.rglob("*")))
        turn.driver.store(turn.next_keys(), turn.memory.source.objects)
        raise TurnFailed("store: 3 of 4 chunks")

    monkeypatch.setattr("bench.core.turns.one_turn", fails)
    made, recording = context(tmp_path)
    memory = Memory(BATCH, 1)
    store_lookup_load(made, plain, (FS_NATIVE,), memory, Conditions(), cell="tiny", rounds=2)
    assert left == [0, 0, 0]
    assert len(unmeasured(recording.rows)) == 8
