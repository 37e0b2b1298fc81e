"""Learning: costs found from what a proxy sees, however wrong the start."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest

from router.common import Common
from router.learning import FLOOR, MARGIN, MARGIN_S, UNCERTAIN, Filter, Speed, Trust, Usual
from sharedfs_backend.economics import Loading, Prefill

TRUE = Prefill(10e-3, 0.1e-3, 2e-9)
TIER = Loading(10e-3, 5e9, 320 * 1024.0)


def started(factor: float) -> Speed:
    prefill = Prefill(
        TRUE.fixed_seconds * factor, TRUE.token_seconds * factor, TRUE.pair_seconds * factor
    )
    loading = Loading(
        TIER.latency_seconds * factor, TIER.bytes_per_second / factor, TIER.bytes_per_token
    )
    return Speed(prefill, loading)


def prompt(rng: random.Random) -> tuple[float, float]:
    context = min(120_000.0, 200 + rng.lognormvariate(8.5, 1.2))
    return max(1.0, context * rng.random()), context


@pytest.mark.parametrize("factor", [1 / 3, 1.0, 3.0])
def test_prefill_costs_started_three_times_wrong_are_found(factor: float) -> None:
    speed, rng = started(factor), random.Random(1)
    for _ in range(300):
        computed, context = prompt(rng)
        speed.saw_prefill(computed, context, TRUE.seconds(computed, context))
    for computed, context in ((500, 500), (8000, 8000), (2000, 60_000), (60_000, 60_000)):
        assert speed.prefill.seconds(computed, context) == pytest.approx(
            TRUE.seconds(computed, context), rel=0.02
        )


def test_noise_and_stray_samples_do_not_lead_far_astray() -> None:
    speed, rng = started(1.0), random.Random(1)
    for number in range(2000):
        computed, context = prompt(rng)
        seconds = TRUE.seconds(computed, context) * rng.uniform(0.9, 1.1)
        speed.saw_prefill(computed, context, seconds * (20 if number % 50 == 49 else 1))
    assert speed.prefill.seconds(8000, 8000) == pytest.approx(TRUE.seconds(8000, 8000), rel=0.15)


def test_costs_never_become_negative() -> None:
    speed, rng = started(1.0), random.Random(1)
    for _ in range(500):
        speed.saw_prefill(*prompt(rng), 0.0)
    costs = speed.prefill
    assert min(costs.fixed_seconds, costs.token_seconds, costs.pair_seconds) > 0


def test_many_samples_of_one_kind_leave_the_rest_bounded() -> None:
    """Forgetting must not blow up what is never observed: a classic of this filter."""
    speed, rng = started(1.0), random.Random(1)
    for _ in range(30_000):
        speed.saw_prefill(1000, 1000, TRUE.seconds(1000, 1000) * rng.uniform(0.95, 1.05))
    for _ in range(3):
        speed.saw_prefill(60_000, 60_000, TRUE.seconds(60_000, 60_000) * rng.uniform(0.95, 1.05))
    for tokens in (1000, 8000, 60_000):
        assert speed.prefill.seconds(tokens, tokens) == pytest.approx(
            TRUE.seconds(tokens, tokens), rel=0.2
        )


@pytest.mark.parametrize("factor", [1 / 3, 3.0])
def test_a_tier_started_three_times_wrong_is_found(factor: float) -> None:
    speed, rng = started(factor), random.Random(1)
    for _ in range(60):
        tokens = rng.uniform(500, 20_000)
        speed.saw_load(tokens, TIER.seconds(tokens))
    assert speed.loading.seconds(8000) == pytest.approx(TIER.seconds(8000), rel=0.02)


def test_the_bandwidth_follows_contention_within_a_few_dozen_loads() -> None:
    speed, rng = started(1.0), random.Random(1)
    busy = Loading(10e-3, 1e9, TIER.bytes_per_token)
    for tier, count in ((TIER, 200), (busy, 60)):
        for _ in range(count):
            tokens = rng.uniform(500, 20_000)
            speed.saw_load(tokens, tier.seconds(tokens))
    assert speed.loading.seconds(8000) == pytest.approx(busy.seconds(8000), rel=0.05)


def test_trust_is_what_was_reported_of_what_was_predicted() -> None:
    trust = Trust()
    for _ in range(400):
        trust.saw(1000, 600)
    assert trust.value == pytest.approx(0.6, rel=0.01)


def test_one_surprise_does_not_end_trust() -> None:
    trust = Trust()
    trust.saw(10_000, 0)
    assert trust.value > 0.8


def test_more_cached_than_predicted_is_no_reason_for_distrust() -> None:
    trust = Trust()
    trust.saw(1000, 5000)
    assert trust.value == 1.0


def test_a_long_disagreement_raises_an_alarm_and_agreement_ends_it() -> None:
    trust = Trust()
    alarms = []
    for reported, count in ((10_000, 50), (0, 40), (0, 100), (10_000, 300)):
        for _ in range(count):
            trust.saw(10_000, reported)
        alarms.append(trust.has_alarm)
    assert alarms == [False, False, True, False]


def test_the_prefix_most_recent_requests_share_is_found() -> None:
    common = Common()
    for number in range(200):
        common.saw([1, 2, 3, 1000 + number])
    assert common.blocks == 3


def test_a_prefix_of_a_few_requests_is_not_common() -> None:
    common = Common()
    for number in range(200):
        common.saw([1, 2, 3] if number % 10 == 0 else [1, 1000 + number])
    assert common.blocks == 1


def test_the_common_prefix_changes_with_the_requests() -> None:
    common = Common()
    for head in (1, 2):
        for number in range(100):
            common.saw([head] * head + [1000 * head + number])
    assert common.blocks == 2


class PlainFilter:
    """The same least squares with matrices. Small, slow and obvious."""

    def __init__(self, memory: float, clip: float) -> None:
        self.values, self.known = np.ones(3), np.eye(3) / UNCERTAIN
        self.memory, self.clip, self.usual = memory, clip, 10.0

    def learn(self, parts: npt.NDArray[np.float64], seen: float) -> None:
        expected = float(self.values @ parts)
        scale = MARGIN_S + MARGIN * expected
        shape, error = parts / scale, (expected - seen) / scale
        limit = self.clip * max(1.0, self.usual)
        self.usual += 0.1 * (min(abs(error), 2 * limit) - self.usual)
        image = self.known @ shape
        self.known += np.outer(shape, shape)
        self.known -= (1 - self.memory) * np.outer(image, image) / (shape @ image)
        step = np.linalg.solve(self.known, shape) * np.clip(error, -limit, limit)
        self.values = np.maximum(FLOOR, self.values - step)


@pytest.mark.parametrize("seed", range(5))
def test_the_sums_written_out_are_those_of_the_matrices(seed: int) -> None:
    rng = random.Random(seed)
    ours, plain = Filter(0.99, 4.0), PlainFilter(0.99, 4.0)
    for _ in range(300):
        one, two, three = rng.uniform(0.0, 0.1), rng.uniform(0.0, 2.0), rng.choice([0.0, 1.0])
        seen = (one + two + three) * rng.uniform(0.2, 3.0) * rng.choice([1, 1, 1, 30])
        ours.learn(one, two, three, seen)
        plain.learn(np.array([one, two, three]), seen)
        assert [ours.first, ours.second, ours.third] == pytest.approx(plain.values, rel=1e-6)


def test_a_usual_value_is_the_mean_of_a_few_and_follows_what_changed() -> None:
    usual = Usual()
    for sample in (1.0, 3.0, 8.0):
        usual.saw(sample)
    assert usual.value == pytest.approx(4.0, rel=0.02)
    for _ in range(500):
        usual.saw(20.0)
    assert usual.value == pytest.approx(20.0, rel=0.02)
