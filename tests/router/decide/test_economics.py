"""Economics: the formulas, their break-even points, and fitting them to measurements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharedfs_backend.economics import (
    Loading,
    Prefill,
    break_even_bandwidth,
    fit,
    is_worth_loading,
    kv_bytes_per_token,
    load_or_recompute,
    prefill_of_hardware,
    saved_seconds,
)

PREFILL = Prefill(10e-3, 0.1e-3, 2e-9)
KIB = 1024


def loading(gigabytes_per_second: float) -> Loading:
    return Loading(10e-3, gigabytes_per_second * 1e9, 320 * KIB)


def test_a_whole_prompt_has_half_of_all_pairs() -> None:
    assert PREFILL.seconds(1000, 1000) == pytest.approx(0.01 + 0.1 + 2e-9 * 1000 * 500)


def test_computing_a_prompt_in_two_parts_takes_one_fixed_part_more() -> None:
    parts = PREFILL.seconds(3000, 3000) + PREFILL.seconds(5000, 8000)
    assert parts == pytest.approx(PREFILL.seconds(8000, 8000) + PREFILL.fixed_seconds)


def test_the_kv_of_a_model_with_grouped_heads_is_counted_by_its_kv_heads() -> None:
    config = {
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "hidden_size": 8192,
    }
    assert kv_bytes_per_token(config) == 320 * KIB


def test_the_kv_of_a_latent_attention_model_is_its_latent() -> None:
    config = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert kv_bytes_per_token(config) == 61 * 576 * 2


@pytest.mark.parametrize("value", [None, 0, -1, "8"])
def test_a_config_without_usable_numbers_is_refused_by_name(value: object) -> None:
    config = {"num_hidden_layers": value, "num_attention_heads": 8, "hidden_size": 64}
    with pytest.raises(ValueError, match="num_hidden_layers"):
        kv_bytes_per_token(config)


def test_twice_the_flops_halve_the_time_per_token() -> None:
    slow = prefill_of_hardware(70e9, 80, 64, 128, flops=1e15)
    fast = prefill_of_hardware(70e9, 80, 64, 128, flops=2e15)
    assert slow.token_seconds == pytest.approx(2 * fast.token_seconds)
    assert slow.pair_seconds == pytest.approx(2 * fast.pair_seconds)


def test_below_the_break_even_bandwidth_loading_is_slower() -> None:
    flat = Prefill(0.0, 0.1e-3, 0.0)
    even = break_even_bandwidth(flat, 320 * KIB)
    below, above = (Loading(0.0, even * factor, 320 * KIB) for factor in (0.99, 1.01))
    assert not is_worth_loading(flat, below, 4000, 8000)
    assert is_worth_loading(flat, above, 4000, 8000)


def test_long_prompts_break_even_at_less_bandwidth() -> None:
    short, long = (break_even_bandwidth(PREFILL, 320 * KIB, tokens) for tokens in (0.0, 1e5))
    assert long == pytest.approx(short / 2)


def test_no_tokens_are_not_worth_a_latency() -> None:
    assert not is_worth_loading(PREFILL, loading(100), 0, 1000)


def test_what_is_saved_counts_from_what_is_held() -> None:
    both = saved_seconds(PREFILL, 6000, 9000)
    assert both == pytest.approx(
        saved_seconds(PREFILL, 2000, 9000) + saved_seconds(PREFILL, 4000, 9000, held=2000)
    )


def test_a_tier_too_slow_is_worth_nothing_at_any_length() -> None:
    assert load_or_recompute(PREFILL, loading(0.1), 8000) == -1


@given(st.floats(0.5, 50), st.integers(2, 100_000), st.integers(0, 50_000))
def test_the_least_worthwhile_load_is_exactly_where_it_turns(
    gigabytes: float, context: int, held: int
) -> None:
    least = load_or_recompute(PREFILL, loading(gigabytes), context, held)
    if least > 0:
        assert is_worth_loading(PREFILL, loading(gigabytes), least, context, held)
        assert not is_worth_loading(PREFILL, loading(gigabytes), least - 1, context, held)


@given(
    st.floats(1e-3, 0.1),
    st.floats(1e-5, 1e-3),
    st.one_of(st.just(0.0), st.floats(1e-9, 1e-8)),
)
def test_a_fit_finds_the_costs_that_made_the_samples(c0: float, c1: float, c2: float) -> None:
    true = Prefill(c0, c1, c2)
    shapes = [(100, 100), (2000, 2000), (500, 30_000), (30_000, 30_000), (9000, 60_000)]
    found = fit([(u, length, true.seconds(u, length)) for u, length in shapes])
    for u, length in shapes:
        assert found.seconds(u, length) == pytest.approx(true.seconds(u, length), rel=1e-4)


def test_a_fit_never_finds_a_negative_cost() -> None:
    found = fit([(100, 100, 1.0), (1000, 1000, 0.9), (5000, 5000, 0.8)])
    assert min(found.fixed_seconds, found.token_seconds, found.pair_seconds) >= 0


def test_a_fit_of_too_few_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="three"):
        fit([(100, 100, 1.0), (100, 100, 1.1), (200, 200, 2.0)])
