"""Whether a tier pays: from which length, which of latency and bandwidth is to blame, and packs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharedfs_backend.economics import prefill_of_speed
from sharedfs_backend.economics.judging import MIB, Answer, Tier, in_words, judge, pack_size
from tests.economics.test_models import LLAMA_8B

CONFIG = LLAMA_8B | {"max_position_embeddings": 32768}
PREFILL = prefill_of_speed(CONFIG, 8000.0)
GOOD = Tier(
    stat_seconds=0.3e-3,
    open_seconds=0.5e-3,
    read_seconds=0.5e-3,
    create_seconds=1e-3,
    overlap=16.0,
    workers=32,
    read_bytes_per_second=5e9,
    single_bytes_per_second=1e9,
    write_bytes_per_second=2e9,
)


def test_a_quick_tier_pays() -> None:
    verdict = judge(GOOD, CONFIG, PREFILL)
    assert verdict.answer is Answer.YES and verdict.break_even_tokens == 256
    assert in_words(GOOD, verdict)[0].startswith("Yes")


def test_latency_makes_only_long_prefixes_pay() -> None:
    slow = replace(GOOD, open_seconds=0.4, read_seconds=0.2)
    verdict = judge(slow, CONFIG, PREFILL)
    assert verdict.answer is Answer.LONG_ONLY and 4096 < verdict.break_even_tokens < 8192
    assert verdict.operation_seconds_max < slow.operation_seconds
    assert any("too slow" in line and "latency" in line for line in in_words(slow, verdict))


def test_bytes_that_take_longer_than_computing_never_pay_whatever_the_latency() -> None:
    thin = replace(GOOD, read_bytes_per_second=100e6)
    verdict = judge(thin, CONFIG, PREFILL)
    assert verdict.answer is Answer.NO and verdict.break_even_tokens == -1
    assert verdict.operation_seconds_max < 0 < verdict.bytes_per_second_min
    assert verdict.break_even_hit_rate == 1.0


def test_a_gain_of_less_than_half_is_barely_one() -> None:
    verdict = judge(replace(GOOD, read_bytes_per_second=1.3e9), CONFIG, PREFILL)
    assert verdict.answer is Answer.BARELY


def test_the_bandwidth_it_asks_for_is_just_enough() -> None:
    least = judge(GOOD, CONFIG, PREFILL).bytes_per_second_min
    just = judge(replace(GOOD, read_bytes_per_second=least), CONFIG, PREFILL)
    assert just.reload_seconds == pytest.approx(just.compute_seconds / 2)


def test_the_latency_it_allows_is_just_low_enough() -> None:
    most = judge(GOOD, CONFIG, PREFILL).operation_seconds_max
    just = judge(replace(GOOD, open_seconds=most, read_seconds=most), CONFIG, PREFILL)
    assert just.reload_seconds == pytest.approx(just.compute_seconds / 2)


def test_where_latency_limits_the_bandwidth_it_is_blamed_for_it() -> None:
    thin = replace(GOOD, read_bytes_per_second=600e6, is_latency_bound=True)
    verdict = judge(thin, CONFIG, PREFILL)
    share = verdict.compute_seconds / 2 / verdict.reload_seconds
    assert verdict.operation_seconds_max == pytest.approx(thin.operation_seconds * share)
    said = in_words(thin, verdict)
    assert any(line.startswith("Operation latency") and "too slow" in line for line in said)
    assert any("latency is what limits it" in line for line in said)


def test_a_mount_that_does_not_overlap_operations_wants_large_packs() -> None:
    assert pack_size(GOOD, 4e9) == 64 * MIB
    alone = replace(GOOD, overlap=1.0, open_seconds=10e-3)
    assert pack_size(alone, 4e9) == 256 * MIB


def test_opens_that_do_not_overlap_are_paid_one_by_one() -> None:
    alone = replace(GOOD, overlap=1.0, open_seconds=10e-3)
    took = alone.reload_seconds(640 * MIB, 64 * MIB)
    assert took == pytest.approx(10 * 10e-3 + 0.5e-3 + 640 * MIB / 5e9)


def test_what_was_answered_from_memory_is_said() -> None:
    cached = replace(GOOD, is_cached=True)
    assert any("caches" in line for line in in_words(cached, judge(cached, CONFIG, PREFILL)))
    assert not any("caches" in line for line in in_words(GOOD, judge(GOOD, CONFIG, PREFILL)))
