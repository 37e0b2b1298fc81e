"""Configuration, known keys, dispatcher, layouts, serde tags, metrics: each by itself."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest

from sharedfs_backend.lmcache_common import Memory, layout_of_object, layouts_of_objects
from sharedfs_backend.mp import SharedFSL2Adapter, SharedFSL2AdapterConfig
from sharedfs_backend.mp.dispatcher import Dispatcher, Parked, Work
from sharedfs_backend.mp.known import KnownKeys
from sharedfs_backend.mp.layouts import LayoutBook
from sharedfs_backend.mp.metrics import Metrics
from sharedfs_backend.mp.runner import rank_of
from sharedfs_backend.mp.serde import UNDESCRIBED, describe
from tests.mp.fake_store import FakeStore
from tests.mp.helpers import desc, identify, keys, memory, store

SLOT = ("m", 32)


# -- configuration -------------------------------------------------------------------------------


def test_only_root_is_required() -> None:
    config = SharedFSL2AdapterConfig.from_dict({"root": "/mnt/kv", "type": "plugin"})
    assert config.settings.root == "/mnt/kv"


@pytest.mark.parametrize(
    "params", [{}, {"root": "relative"}, {"root": "/x", "lease_second": 3}, {"root": 5}]
)
def test_a_wrong_setting_is_a_value_error(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"root|lease_seconds"):
        SharedFSL2AdapterConfig.from_dict(params)


def test_the_help_names_every_setting() -> None:
    text = SharedFSL2AdapterConfig.help()
    assert "root (str)" in text
    assert "lease_seconds (default 600.0)" in text


def test_lmcache_builds_the_adapter_from_its_own_json(
    monkeypatch: pytest.MonkeyPatch, fake: FakeStore
) -> None:
    import argparse

    from lmcache.v1.distributed.l2_adapters import create_l2_adapter
    from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config

    monkeypatch.setattr("sharedfs_backend.mp.adapter.Store", lambda *_a, **_k: fake)
    spec = (
        '{"type": "plugin", "module_path": "sharedfs_backend.mp", '
        '"class_name": "SharedFSL2Adapter", "adapter_params": {"root": "/mnt/kv"}}'
    )
    parsed = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[spec]))
    made = create_l2_adapter(parsed.adapters[0])
    assert isinstance(made, SharedFSL2Adapter)
    made.close()


# -- memory objects ------------------------------------------------------------------------------


def test_a_layout_is_dtypes_shapes_and_format() -> None:
    (one,) = memory(1, dtype=torch.bfloat16)
    layout = layout_of_object(one)
    assert layout.dtypes == ("bfloat16",)
    assert (layout.shapes, layout.tensor_format) == (((2, 4, 16, 8),), "UNDEFINED")
    mixed = [*memory(2), *memory(1, dtype=torch.bfloat16), *memory(1)]
    assert layouts_of_objects(mixed) == [layout_of_object(obj) for obj in mixed]


def test_a_view_in_the_arena_and_one_outside_show_the_same_memory() -> None:
    inside, outside = memory(3, fill=1), memory(1, fill=8)
    size = inside[0].get_size()
    arena = Memory(inside[0].data_ptr, 3 * size)
    view = arena.view(inside[2], writable=True)
    assert (view.format, len(view), bytes(view)) == ("B", size, bytes([3]) * size)
    view[:4] = b"\7\7\7\7"
    assert bytes(inside[2].byte_array[:4]) == b"\7\7\7\7"
    assert bytes(arena.view(outside[0], writable=False)) == bytes([8]) * size


def test_a_narrowed_object_shows_its_used_bytes_only() -> None:
    (one,) = memory(1)
    one.set_used_size(100)
    assert len(Memory().view(one, writable=False)) == 100


def test_the_rank_is_world_size_and_global_rank() -> None:
    assert rank_of((4 << 24) | (3 << 16) | (4 << 8) | 3) == 0x0403
    assert rank_of(255) == 0


# -- known keys ----------------------------------------------------------------------------------


def test_known_keys_are_bounded_and_the_oldest_go() -> None:
    known, wanted = KnownKeys(limit=3), keys(5)
    fresh, gone = known.admit(wanted, [10] * 5, stored=True)
    assert (fresh.keys, gone.keys) == (wanted, wanted[:2])
    assert [key for key, _ in known.page(-1, 9, None)[0]] == wanted[2:]


def test_a_loaded_key_is_listed_and_announced_only_when_stored() -> None:
    known, wanted = KnownKeys(), keys(1)
    assert known.admit(wanted, [10], stored=False)[0].keys == []
    assert known.page(-1, 9, None)[0] == [(wanted[0], 10)]
    assert known.remove(wanted).keys == []
    known.admit(wanted, [10], stored=False)
    assert known.admit(wanted, [10], stored=True)[0].keys == wanted


def test_a_page_goes_on_where_it_stopped_whatever_changes_meanwhile() -> None:
    known, wanted = KnownKeys(limit=100), keys(6)
    known.admit(wanted, [1] * 6, stored=True)
    first, cursor = known.page(-1, 3, None)
    assert cursor is not None
    known.remove([wanted[0], wanted[4]])
    known.admit(keys(1, first=50), [1], stored=True)
    second, end = known.page(cursor, 3, None)
    assert [key for key, _ in first] == wanted[:3]
    assert [key for key, _ in second] == [wanted[3], wanted[5], *keys(1, first=50)]
    assert end is None


def test_churn_does_not_grow_the_order() -> None:
    known = KnownKeys(limit=10)
    for n in range(100):
        known.admit(keys(1, first=n), [1], stored=True)
    assert len(known._numbers) <= 21
    assert len(known.page(-1, 99, None)[0]) == 10


def test_a_key_that_went_is_held_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharedfs_backend.mp.known.NUMBERS_MIN", 0)
    known, wanted = KnownKeys(limit=100), keys(150)
    known.admit(wanted, [1] * 150, stored=True)
    assert sum(key is not None for key in known._keys) == len(known) == 100
    known.remove(wanted[60:140])
    assert sum(key is not None for key in known._keys) == len(known) == 20
    assert len(known._numbers) <= 2 * len(known)
    assert [key for key, _ in known.page(-1, 99, None)[0]] == [*wanted[50:60], *wanted[140:]]


# -- the dispatcher --------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def test_urgent_work_goes_first_and_stores_wait() -> None:
    ran: list[str] = []
    go, done = threading.Event(), threading.Event()
    dispatcher = Dispatcher(10.0, lambda: None)
    dispatcher.submit(Work(lambda: go.wait(10) and None, lambda: None, 0.0))
    for name, urgent in [("s1", False), ("l1", True), ("s2", False), ("l2", True)]:
        work = Work(lambda name=name: ran.append(name), lambda: None, 0.0, urgent)  # type: ignore[misc]
        dispatcher.submit(work)
    dispatcher.submit(Work(done.set, lambda: None, 0.0, urgent=False))
    go.set()
    assert done.wait(10)
    dispatcher.close(5)
    assert ran == ["l1", "l2", "s1", "s2"]


def test_parked_work_is_given_up_when_its_patience_ends() -> None:
    clock, given_up = Clock(), threading.Event()

    def never() -> None:
        raise Parked("realm")

    dispatcher = Dispatcher(5.0, lambda: None, idle_seconds=0.001, now=clock)
    dispatcher.submit(Work(never, given_up.set, 0.0))
    clock.time = 6.0
    assert given_up.wait(10)
    dispatcher.close(5)


def test_after_one_wait_in_vain_nothing_waits_for_that_again_until_it_is_there() -> None:
    clock, first, second, ran = Clock(), threading.Event(), threading.Event(), threading.Event()
    there = threading.Event()

    def needs_it() -> None:
        if not there.is_set():
            raise Parked("realm")
        ran.set()

    dispatcher = Dispatcher(5.0, lambda: None, idle_seconds=0.001, now=clock)
    dispatcher.submit(Work(needs_it, first.set, 0.0))
    clock.time = 6.0
    assert first.wait(10)
    dispatcher.submit(Work(needs_it, second.set, 6.0))
    assert second.wait(10)
    there.set()
    dispatcher.signal("realm")
    dispatcher.submit(Work(needs_it, lambda: None, 6.0))
    assert ran.wait(10)
    dispatcher.close(5)


def test_work_that_fails_is_given_up_and_the_thread_lives_on() -> None:
    given_up, after = threading.Event(), threading.Event()
    dispatcher = Dispatcher(5.0, lambda: None)
    dispatcher.submit(Work(lambda: 1 // 0 and None, given_up.set, 0.0))
    dispatcher.submit(Work(after.set, lambda: None, 0.0))
    assert given_up.wait(10)
    assert after.wait(10)
    dispatcher.close(5)
    assert not dispatcher.submit(Work(after.clear, lambda: None, 0.0))


def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharedfs_backend.mp.dispatcher.WAITING_MAX", 2)
    go = threading.Event()
    started = threading.Event()
    dispatcher = Dispatcher(5.0, lambda: None)

    def block() -> None:
        started.set()
        go.wait(10)

    dispatcher.submit(Work(block, lambda: None, 0.0))
    assert started.wait(10)
    accepted = [dispatcher.submit(Work(lambda: None, lambda: None, 0.0)) for _ in range(4)]
    go.set()
    dispatcher.close(5)
    assert accepted == [True, True, False, False]
    assert dispatcher.overflows >= 2


# -- layouts and serde -----------------------------------------------------------------------------


def test_under_a_serializer_the_engines_dtypes_tell_equal_bytes_apart() -> None:
    book = LayoutBook(lambda: True)
    plain = memory(1, shape=(64,), dtype=torch.uint8)
    book.wanted(SLOT, 0, desc(dtype=torch.bfloat16))
    (layout,) = book.of_objects(SLOT, [0], plain)
    assert layout.tensor_format == "serialized:bfloat16"
    assert book.wanted(SLOT, 0, desc(dtype=torch.bfloat16)) == (None, (layout,))
    book.wanted(SLOT, 0, desc(dtype=torch.float32))
    assert book.of_objects(SLOT, [0], plain)[0].tensor_format == "serialized"


def test_mismatches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharedfs_backend.mp.layouts.MISMATCHES_MAX", 2)
    book = LayoutBook(lambda: False)
    ours = layout_of_object(memory(1)[0])
    for n in range(3):
        book.mismatch(b"r", bytes([n]), ours)
    assert book.mismatches == 2
    assert book.demand(b"r", [b"\0", b"\2"], [0, 0], {0: None}) == [None, ours]


def test_serializers_with_other_settings_have_other_tags() -> None:
    from lmcache.v1.distributed.serde import create_serde_processor
    from lmcache.v1.distributed.serde.base import SerdeConfig

    tags = set()
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        processor = create_serde_processor(SerdeConfig("fp8", {"fp8_dtype": dtype}))
        tags.add(describe(processor))
        processor.close()
    assert tags == {
        "Fp8QuantizationSerializer(fp8_dtype=float8_e4m3fn)",
        "Fp8QuantizationSerializer(fp8_dtype=float8_e5m2)",
    }
    assert describe(object()) == UNDESCRIBED


def test_a_secret_never_gets_into_a_tag() -> None:
    class Cipher:
        def __init__(self) -> None:
            self._key, self._passphrase, self._rounds = b"secret", "secret", 12

    class Processor:
        _serializer = Cipher()

    assert describe(Processor()) == "Cipher(rounds=12)"


# -- metrics ---------------------------------------------------------------------------------------


def test_our_numbers_stand_beside_lmcaches_and_leave_with_the_adapter() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    one = metrics.add("/a", lambda: {"load_misses_checksum": 2, "bytes_loaded": 7})
    two = metrics.add("/b", lambda: {"bytes_loaded": 8})
    text = generate_latest(registry).decode()
    assert 'sharedfs_load_misses{adapter="1",namespace="/a",reason="checksum"} 2.0' in text
    assert 'sharedfs_bytes_loaded{adapter="2",namespace="/b"} 8.0' in text
    metrics.remove(one)
    assert "/a" not in generate_latest(registry).decode()
    metrics.remove(two)
    metrics.remove(two)
    assert generate_latest(registry) == b""


def test_a_source_that_fails_is_left_out() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.add("/a", lambda: {"x": 1 // 0})
    metrics.add("/b", lambda: {"x": 1})
    assert b'namespace="/b"' in generate_latest(registry)


def test_two_adapters_in_one_process_share_lmcaches_registry(fake: FakeStore) -> None:
    from prometheus_client import REGISTRY

    first, second = (
        SharedFSL2Adapter({"root": f"/n{n}"}, store=fake, identify=identify) for n in (1, 2)
    )
    store(first, keys(1), memory(1))
    text = generate_latest(REGISTRY).decode()
    assert 'namespace="/n1"' in text
    assert 'namespace="/n2"' in text
    assert "sharedfs_adapter_keys_known{adapter=" in text
    first.close()
    second.close()
    assert b"sharedfs_" not in generate_latest(REGISTRY)
