"""The policies, and the choice among their scores."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from router.choice import least
from router.constants import Constants
from router.estimate import Estimate, Held, Pressure, estimate
from router.policies import POLICIES, Standing
from sharedfs_backend.economics import Loading, Prefill

PREFILL = Prefill(10e-3, 0.1e-3, 2e-9)
LOADING = Loading(10e-3, 5e9, 320 * 1024.0)


def est(gpu: float = 0.0, queue_s: float = 0.0, prompt: int = 10_000) -> Estimate:
    pressure = Pressure(queue_s, 0, 0.0, 0, 0.0)
    return estimate(Held(prompt, gpu, 0, 0), pressure, PREFILL, LOADING, Constants())


def standing(
    number: int,
    in_flight: int = 0,
    waiting: int = 0,
    kv_usage: float = 0.0,
    matched: float = 0.0,
    remembered: int = 0,
) -> Standing:
    place = number * 0x1234_5678_9ABC_DEF1
    return Standing(f"r{number}", place, in_flight, waiting, kv_usage, matched, remembered)


def best(
    policy: str, estimates: Sequence[Estimate], standings: Sequence[Standing], turn: int = 0
) -> int:
    return least(POLICIES[policy](estimates, standings, 7, turn), random.Random(1))[0]


def test_the_least_score_wins_and_the_next_is_the_runner_up() -> None:
    assert least([3.0, 1.0, 2.0], random.Random(1)) == (1, 2)


def test_a_single_replica_has_no_runner_up() -> None:
    assert least([3.0], random.Random(1)) == (0, None)


def test_ties_are_chosen_alike() -> None:
    rng = random.Random(1)
    counts = Counter(least([1.0, 1.0, 2.0, 1.0], rng)[0] for _ in range(3000))
    assert set(counts) == {0, 1, 3}
    assert min(counts.values()) > 900


def test_a_score_that_is_no_number_is_not_chosen() -> None:
    assert least([float("nan"), 5.0, float("inf")], random.Random(1))[0] == 1


def test_round_robin_goes_round() -> None:
    three = [standing(number) for number in range(3)]
    assert [best("round-robin", [est()] * 3, three, turn) for turn in range(4)] == [0, 1, 2, 0]


def test_least_requests_counts_what_is_in_flight() -> None:
    assert best("least-requests", [est()] * 2, [standing(0, 4), standing(1, 3)]) == 1


def test_least_pending_seconds_weighs_requests_by_their_prefill() -> None:
    estimates = [est(queue_s=9.0), est(queue_s=2.0)]
    assert best("least-pending-seconds", estimates, [standing(0, 1), standing(1, 5)]) == 1


def test_consistent_hash_sends_equal_prefixes_to_one_replica() -> None:
    four = [standing(number) for number in range(4)]
    assert len({best("consistent-hash", [est()] * 4, four, turn) for turn in range(9)}) == 1


def test_consistent_hash_passes_a_replica_with_too_much_on() -> None:
    four = [standing(number) for number in range(4)]
    first = best("consistent-hash", [est()] * 4, four)
    loaded = [each._replace(in_flight=9 * (each.replica == f"r{first}")) for each in four]
    assert best("consistent-hash", [est()] * 4, loaded) != first


def test_consistent_hash_moves_only_the_keys_of_the_replica_that_left() -> None:
    five = [standing(number) for number in range(5)]
    score = POLICIES["consistent-hash"]
    moved = 0
    for key in range(200):
        before = least(score([est()] * 5, five, key, 0), random.Random(1))[0]
        after = least(score([est()] * 4, five[:4], key, 0), random.Random(1))[0]
        moved += before not in (after, 4)
    assert moved == 0


@pytest.mark.parametrize("policy", ["radix", "radix-smallest"])
def test_radix_follows_the_longest_match_whatever_the_load(policy: str) -> None:
    standings = [standing(0, 60, matched=9000), standing(1, 0, matched=5000)]
    assert best(policy, [est(), est()], standings) == 0


@pytest.mark.parametrize("policy", ["radix", "radix-smallest"])
def test_radix_forgets_the_match_once_the_fleet_is_out_of_balance(policy: str) -> None:
    standings = [standing(0, 65, matched=9000), standing(1, 0)]
    assert best(policy, [est(), est()], standings) == 1


def test_radix_without_a_match_takes_the_fewest_in_flight() -> None:
    assert best("radix", [est(), est()], [standing(0, 3), standing(1, 2, remembered=9)]) == 1


def test_radix_smallest_without_a_match_takes_the_smallest_tree() -> None:
    standings = [standing(0, 3), standing(1, 2, remembered=9)]
    assert best("radix-smallest", [est(), est()], standings) == 0


def test_weighted_2_1_gives_up_a_short_match_for_a_free_replica() -> None:
    standings = [standing(0, 9), standing(1, 0)]
    assert best("weighted-2-1", [est(gpu=4000), est()], standings) == 1
    assert best("weighted-2-1", [est(gpu=6000), est()], standings) == 0


def test_weighted_3_2_2_counts_free_kv() -> None:
    standings = [standing(0, kv_usage=0.9), standing(1, kv_usage=0.1)]
    assert best("weighted-3-2-2", [est(gpu=5000), est()], standings) == 1
    assert best("weighted-3-2-2", [est(gpu=6000), est()], standings) == 0


def test_ttft_takes_the_match_only_while_it_is_worth_the_queue() -> None:
    two = [standing(0), standing(1)]
    assert best("ttft", [est(gpu=8000, queue_s=0.5), est()], two) == 0
    assert best("ttft", [est(gpu=8000, queue_s=5.0), est()], two) == 1
