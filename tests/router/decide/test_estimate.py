"""The estimate: each term of the formula, one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.constants import Constants
from router.estimate import Estimate, Held, Pressure, estimate
from sharedfs_backend.economics import Loading, Prefill

PREFILL = Prefill(10e-3, 0.1e-3, 2e-9)
FAST = Loading(10e-3, 20e9, 320 * 1024.0)
SLOW = Loading(10e-3, 1e9, 320 * 1024.0)
CONSTANTS = Constants()
IDLE = Pressure(0.0, 0, 0.0, 0, 0.0)


def of(
    held: Held,
    pressure: Pressure = IDLE,
    loading: Loading = FAST,
    constants: Constants = CONSTANTS,
) -> Estimate:
    return estimate(held, pressure, PREFILL, loading, constants)


def test_an_idle_replica_without_the_prefix_takes_its_prefill() -> None:
    assert of(Held(8000, 0, 0, 0)).total_s == pytest.approx(PREFILL.seconds(8000, 8000))


def test_what_the_gpu_holds_is_not_computed() -> None:
    assert of(Held(8000, 6000, 0, 0)).total_s == pytest.approx(PREFILL.seconds(2000, 8000))


def test_what_host_memory_holds_is_copied() -> None:
    found = of(Held(8000, 1000, 5000, 0))
    copied = 5000 * 320 * 1024 / CONSTANTS.host_bytes_per_second
    assert found.local_s == pytest.approx(copied)
    assert found.total_s == pytest.approx(copied + PREFILL.seconds(2000, 8000))


def test_the_shared_tier_serves_what_lies_beyond_the_local_prefix() -> None:
    found = of(Held(8000, 1000, 2000, 7000))
    assert found.shared_tokens == 4000
    assert found.shared_s == pytest.approx(FAST.seconds(4000))
    assert found.computed_tokens == 1000


def test_a_load_waits_for_the_loads_before_it() -> None:
    found = of(Held(8000, 0, 0, 7000), Pressure(0.0, 0, 0.7, 0, 0.0))
    assert found.shared_s == pytest.approx(0.7 + FAST.seconds(7000))


def test_a_request_that_loads_nothing_does_not_wait_for_loads() -> None:
    assert of(Held(8000, 0, 0, 0), Pressure(0.0, 0, 0.7, 0, 0.0)).shared_s == 0.0


def test_loading_overlaps_with_queueing() -> None:
    queued = Pressure(3.0, 2, 0.0, 0, 0.0)
    assert of(Held(8000, 0, 0, 7000), queued).total_s == pytest.approx(
        3.0 + PREFILL.seconds(1000, 8000)
    )


def test_each_running_decode_slows_the_prefill() -> None:
    found = of(Held(8000, 0, 0, 0), Pressure(0.0, 0, 0.0, 20, 0.0))
    assert found.compute_s == pytest.approx(1.2 * PREFILL.seconds(8000, 8000))


def test_below_the_break_even_bandwidth_the_prefix_is_computed() -> None:
    found = of(Held(8000, 0, 0, 7000), loading=SLOW)
    assert (found.shared_tokens, found.spared_tokens) == (0, 7000)
    assert found.total_s == pytest.approx(PREFILL.seconds(8000, 8000))


def test_without_the_gate_even_a_slow_tier_is_loaded_from() -> None:
    constants = replace(CONSTANTS, is_load_gated=False)
    assert of(Held(8000, 0, 0, 7000), loading=SLOW, constants=constants).shared_tokens == 7000


@pytest.mark.parametrize("held", [Held(512, 512, 0, 512), Held(512, 0, 512, 0), Held(1, 9, 9, 9)])
def test_the_last_token_is_always_computed(held: Held) -> None:
    assert of(held).computed_tokens == 1


def test_waiting_requests_make_gpu_time_dearer() -> None:
    def charge(pending: int) -> float:
        found = of(Held(8000, 0, 0, 0), Pressure(2.0, pending, 0.0, 0, 0.0))
        return found.cost_s - found.total_s

    assert charge(3) == pytest.approx(4 * charge(0))


def test_with_no_weight_on_throughput_the_cost_is_the_ttft() -> None:
    found = of(Held(8000, 0, 0, 0), constants=replace(CONSTANTS, throughput_weight=0.0))
    assert found.cost_s == found.total_s


def test_an_answer_costs_what_it_slows_the_prefills_beside_it() -> None:
    def found(busy: float) -> Estimate:
        pressure = Pressure(0.0, 0, 0.0, 0, 0.0, busy)
        return estimate(Held(800, 0, 0, 0), pressure, PREFILL, FAST, CONSTANTS, answer_s=8.0)

    slowed_s = CONSTANTS.answer_weight * CONSTANTS.decode_slowdown * 8.0 * 0.6
    assert found(0.6).cost_s == pytest.approx(found(0.0).cost_s + slowed_s)
    assert found(0.6).total_s == found(0.0).total_s


def test_a_full_kv_cache_costs_and_an_emptier_one_does_not() -> None:
    costs = [
        of(Held(8000, 0, 0, 0), Pressure(0.0, 0, 0.0, 0, usage)).cost_s for usage in (0.1, 0.9, 1.0)
    ]
    assert costs[0] == costs[1]
    assert costs[2] == pytest.approx(costs[0] + 0.1 * CONSTANTS.pressure_seconds)


def test_a_prefix_everybody_has_is_not_charged_to_the_one_that_brings_it() -> None:
    constants = replace(CONSTANTS, retain_weight=0.0)
    lacking = of(Held(8000, 0, 0, 0, common=4000), constants=constants)
    holding = of(Held(8000, 4000, 0, 0, common=4000), constants=constants)
    assert lacking.total_s > holding.total_s
    assert lacking.cost_s == pytest.approx(holding.cost_s)


def test_what_only_this_replica_holds_is_worth_retaining() -> None:
    constants = replace(CONSTANTS, retain_weight=1.0)
    alone = of(Held(8000, 6000, 0, 0), constants=constants)
    shared = of(Held(8000, 6000, 0, 6000), constants=constants)
    assert alone.total_s == shared.total_s
    assert alone.cost_s < shared.cost_s
