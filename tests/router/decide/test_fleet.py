"""The fleet as transcripts: requests go, first tokens come, and what it then chooses and knows.

Past 400 lines because the fleet is one object, and each event it hears of is told here.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.asks import Ask, Usage
from router.constants import Constants
from router.fleet import Decision, Fleet, Observation, Overload, ReplicaState, ReplicaView, Ticket
from router.policies import POLICIES
from router.replica import GPU_TOKENS_MAX

BLOCK = 512


def fleet(*names: str, policy: str = "ttft", slo: float | None = None, seed: int = 1) -> Fleet:
    made = Fleet(
        constants=Constants(has_shared_tier=False),
        policy=policy,
        slo_seconds=slo,
        rng=random.Random(seed),
    )
    for name in names or ("a", "b"):
        made.join(name)
    return made


def ask(*blocks: int, tail: int = 100, shared: int | None = None) -> Ask:
    return Ask(blocks, float(BLOCK), len(blocks) * BLOCK + tail, shared_tokens=shared)


def long(first: int, count: int = 20) -> Ask:
    return ask(*range(first, first + count))


def sent(made: Fleet, request: Ask, now: float, **options: frozenset[str]) -> Decision:
    decision = made.choose(request, now, **options)
    assert isinstance(decision, Decision)
    made.sent(decision.ticket, now)
    return decision


def served(made: Fleet, request: Ask, now: float, cached: int | None = None) -> Decision:
    """A request whose first token comes when it was predicted."""
    decision = sent(made, request, now)
    first_at = now + decision.costs.total_s
    made.first_byte(decision.ticket, first_at)
    made.ended(decision.ticket, first_at + 0.1, Usage(request.prompt_tokens, cached, 10))
    return decision


def view_of(made: Fleet, name: str, now: float = 0.0) -> ReplicaView:
    return next(each for each in made.view(now).replicas if each.replica == name)


def test_without_replicas_there_is_nothing_to_choose() -> None:
    assert fleet("a").choose(ask(1), 0.0, exclude=frozenset({"a"})) is None


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no policy 'best'"):
        Fleet(policy="best", rng=random.Random(1))


def test_a_prefix_goes_back_to_the_replica_that_has_it() -> None:
    made = fleet("a", "b", "c", "d")
    first = served(made, long(1), 0.0)
    again = sent(made, long(1), 10.0)
    assert again.replica == first.replica
    assert again.local_tokens == 20 * BLOCK


def test_a_prefix_still_being_computed_counts_as_held() -> None:
    made = fleet()
    first = sent(made, long(1), 0.0)
    again = sent(made, long(1), 0.0)
    assert again.replica == first.replica


def test_a_choice_is_a_reservation_so_the_next_goes_elsewhere() -> None:
    made = fleet()
    assert {sent(made, long(1), 0.0).replica, sent(made, long(500), 0.0).replica} == {"a", "b"}


def test_the_reason_adds_up() -> None:
    made = fleet("a")
    sent(made, long(1), 0.0)
    costs = sent(made, long(500), 0.0).costs
    assert costs.total_s == pytest.approx(costs.queue_s + costs.compute_s)
    assert costs.queue_s > 0.9


def test_the_runner_up_is_named_with_what_it_promised() -> None:
    made = fleet()
    sent(made, long(1), 0.0)
    decision = sent(made, long(500), 0.0)
    assert decision.runner_up not in (None, decision.replica)
    assert decision.runner_up_total_s is not None
    assert decision.runner_up_total_s > decision.costs.total_s


def test_the_shared_tier_is_the_catalogs_word_where_it_is_asked() -> None:
    made = Fleet(rng=random.Random(1))
    made.join("a")
    decision = sent(made, Ask(range(20), 512.0, 11_000, shared_tokens=10_000), 0.0)
    assert (decision.shared_tokens, decision.loads_shared) == (10_000, True)


@pytest.mark.parametrize(("now", "tokens"), [(2.0, 0), (4.0, 20 * BLOCK)])
def test_without_a_catalog_what_was_prefilled_is_shared_a_little_later(
    now: float, tokens: int
) -> None:
    made = Fleet(rng=random.Random(1))
    made.join("a")
    served(made, long(1), 0.0)  # its first token comes after 1.2 s
    made.join("b")
    assert sent(made, long(1), now, exclude=frozenset({"a"})).shared_tokens == tokens


def test_every_call_about_a_ticket_may_come_twice() -> None:
    made = fleet("a")
    decision = sent(made, long(1), 0.0)
    for _ in range(2):
        made.sent(decision.ticket, 0.1)
        made.first_byte(decision.ticket, 1.0)
    made.ended(decision.ticket, 2.0, None)
    made.ended(decision.ticket, 2.0, None)
    made.released(decision.ticket, 3.0)
    assert (made.reservations, view_of(made, "a").in_flight) == (0, 0)


def test_a_request_given_up_during_prefill_frees_the_replica() -> None:
    made = fleet("a")
    decision = sent(made, long(1), 0.0)
    made.released(decision.ticket, 0.1)
    seen = view_of(made, "a", 0.1)
    assert (seen.in_flight, seen.pending_s, seen.shadow_blocks) == (0, 0.0, 0)


def test_what_a_given_up_request_did_not_bring_is_not_held() -> None:
    made = fleet("a")
    served(made, long(1, 4), 0.0)
    decision = sent(made, long(1, 20), 2.0)
    made.released(decision.ticket, 2.1)
    assert sent(made, long(1, 20), 3.0).local_tokens == 4 * BLOCK


def test_health_never_touches_load() -> None:
    made = fleet()
    decision = sent(made, long(1), 0.0)
    before = view_of(made, decision.replica)
    for state in (ReplicaState.DOWN, ReplicaState.HALF_OPEN, ReplicaState.READY):
        made.set_state(decision.replica, state)
    assert view_of(made, decision.replica) == before


@pytest.mark.parametrize("state", [ReplicaState.DOWN, ReplicaState.DRAINING])
def test_a_replica_down_or_draining_gets_nothing(state: ReplicaState) -> None:
    made = fleet()
    made.set_state("a", state)
    assert {sent(made, ask(number), 0.0).replica for number in range(9)} == {"b"}


def test_a_half_open_replica_gets_one_request_at_a_time() -> None:
    made = fleet("a")
    made.set_state("a", ReplicaState.HALF_OPEN)
    decision = sent(made, ask(1), 0.0)
    assert made.choose(ask(2), 0.0) is None
    made.ended(decision.ticket, 1.0, None)
    assert sent(made, ask(2), 1.0).replica == "a"


def test_a_request_from_before_it_opened_keeps_no_half_open_replica_from_its_trial() -> None:
    made = fleet("a")
    hung = sent(made, ask(1), 0.0)
    for state in (ReplicaState.DOWN, ReplicaState.HALF_OPEN):
        made.set_state("a", state)
    trial = sent(made, ask(2), 1.0)
    assert made.choose(ask(3), 1.0) is None
    made.released(trial.ticket, 2.0)
    assert sent(made, ask(3), 2.0).replica == "a"
    assert hung.ticket.is_open


def test_a_retry_goes_to_another_replica() -> None:
    made = fleet()
    first = sent(made, long(1), 0.0)
    made.released(first.ticket, 0.1)
    assert sent(made, long(1), 0.1, exclude=frozenset({first.replica})).replica != first.replica


def test_a_replica_that_left_may_still_finish() -> None:
    made = fleet("a")
    decision = sent(made, long(1), 0.0)
    made.leave("a")
    made.first_byte(decision.ticket, 1.0)
    made.ended(decision.ticket, 2.0, None)
    assert (made.reservations, made.view(2.0).replicas) == (0, ())


def test_a_replica_that_left_is_forgotten() -> None:
    made = fleet("a")
    served(made, long(1), 0.0)
    made.leave("a")
    seen = made.view(1.0)
    assert (seen.tree_blocks, dict(seen.decisions)) == (0, {})


def test_a_replica_that_came_back_under_its_name_is_new_to_old_tickets() -> None:
    made = fleet("a")
    old = sent(made, long(1), 0.0)
    made.leave("a")
    made.join("a")
    new = sent(made, long(1), 0.0)
    made.released(old.ticket, 0.5)
    assert view_of(made, "a", 0.5).in_flight == 1
    made.ended(new.ticket, 2.0, None)
    assert made.reservations == 0


def test_nothing_is_learned_from_the_time_an_answer_that_is_not_streamed_took() -> None:
    made = fleet("a")
    for number in range(30):
        request = replace(long(1000 * number), is_streamed=False)
        decision = sent(made, request, 100.0 * number)
        made.ended(decision.ticket, 100.0 * number + 60.0, Usage(10_340, 0, 900))
    assert view_of(made, "a").samples == 0
    assert view_of(made, "a").token_s == Constants().token_seconds


def test_nothing_is_learned_from_a_ticket_of_a_replica_that_left_and_came_back() -> None:
    made = fleet("a")
    old = sent(made, long(1), 0.0)
    made.leave("a")
    made.join("a")
    made.first_byte(old.ticket, 500.0)
    made.ended(old.ticket, 501.0, Usage(10_340, 0, 1))
    assert view_of(made, "a").samples == 0


def test_past_the_objective_a_request_is_turned_away_unreserved() -> None:
    made = fleet("a", slo=1.5)
    sent(made, long(1), 0.0)
    turned_away = made.choose(long(500), 0.0)
    assert isinstance(turned_away, Overload)
    assert turned_away.retry_after_s == pytest.approx(turned_away.least_cost_s - 1.5)
    assert (made.reservations, made.view(0.0).overloads) == (1, 1)


def test_load_others_bring_is_seen_in_the_replicas_metrics() -> None:
    made = fleet()
    for name in ("a", "b"):
        made.join(name)
    served(made, long(1), 0.0)
    made.observe("a", Observation(waiting=50, running=9, kv_usage=0.5), 2.0)
    served(made, long(500), 2.0)
    made.observe("b", Observation(waiting=0, running=0), 4.0)
    made.observe("a", Observation(waiting=50, running=9), 4.0)
    assert sent(made, long(900), 4.0).replica == "b"


def test_the_engines_own_word_on_residency_replaces_the_shadow() -> None:
    made = fleet()
    first = served(made, long(1), 0.0)
    other = "b" if first.replica == "a" else "a"
    made.resident(first.replica, [], [], True)
    made.resident(other, range(1, 21), [], False)
    made.join(first.replica, host_tokens=0)
    again = sent(made, long(1), 10.0)
    assert (again.replica, again.local_tokens) == (other, 20 * BLOCK)


def test_blocks_an_engine_removed_are_not_held() -> None:
    made = fleet("a")
    made.join("a", host_tokens=0)
    made.resident("a", range(1, 21), [], False)
    made.resident("a", [], range(11, 21), False)
    assert sent(made, long(1), 0.0).local_tokens == 10 * BLOCK


def test_reports_below_prediction_shrink_the_shadow_and_the_trust() -> None:
    made = fleet("a")
    served(made, long(1), 0.0)
    held = [served(made, long(1), 10.0 + number, cached=0).local_tokens for number in range(30)]
    assert held[-1] < held[0] // 2
    assert view_of(made, "a").trust < 0.4


def test_prediction_is_what_was_remembered_however_little_it_was_trusted() -> None:
    made = fleet("a")
    for number in range(11):
        served(made, long(1), 2.0 * number, cached=0)
    assert made.view(0.0).predicted_tokens == 10 * 20 * BLOCK


def test_lost_trust_comes_back_with_right_reports() -> None:
    made = fleet("a")
    for number in range(100):
        served(made, long(1), 2.0 * number, cached=0)
    lost = view_of(made, "a").trust
    for number in range(400):
        served(made, long(1), 1e4 + 2.0 * number, cached=20 * BLOCK)
    assert lost < 0.2
    assert view_of(made, "a").trust > 0.9


def test_an_engine_that_forgets_sooner_than_thought_gets_a_smaller_shadow() -> None:
    made = fleet("a")
    for number in range(200):
        served(made, long(100 * number), 2.0 * number)
    before = view_of(made, "a").shadow_blocks
    for number in range(10):  # thought to be held, and reported not to be
        served(made, long(100 * (199 - number)), 1e4 + 2.0 * number, cached=0)
    assert view_of(made, "a").shadow_blocks < before / 2


def test_prediction_and_report_are_counted() -> None:
    made = fleet("a")
    served(made, long(1), 0.0, cached=0)
    served(made, long(1), 10.0, cached=20 * BLOCK)
    seen = made.view(20.0)
    assert (seen.predicted_tokens, seen.reported_tokens) == (20 * BLOCK, 20 * BLOCK)


def test_the_right_choice_is_not_regretted_and_a_wrong_one_is() -> None:
    made = fleet("a", "b", policy="round-robin")
    first = sent(made, long(1), 0.0)
    made.first_byte(first.ticket, 1.0)
    assert made.view(1.0).regret_seconds == pytest.approx(0.0, abs=0.1)
    second = sent(made, long(1), 2.0)  # the other one, which has to compute it all
    made.first_byte(second.ticket, 3.1)
    assert made.view(4.0).regret_seconds == pytest.approx(1.0, abs=0.1)


def learn(made: Fleet, name: str, seconds: float, count: int = 60) -> None:
    """The replica serves prompts of which nothing is cached, each in `seconds`."""
    others = frozenset(each.replica for each in made.view(0.0).replicas) - {name}
    for number in range(count):
        now = 100.0 * number
        decision = sent(made, long(1000 * number), now, exclude=others)
        made.first_byte(decision.ticket, now + seconds)
        made.ended(decision.ticket, now + 50.0, Usage(10_340, 0, 1))


def test_a_replica_slower_than_the_others_is_found_out() -> None:
    made = fleet()
    learn(made, "a", 4.0)
    learn(made, "b", 1.0)
    assert sent(made, long(10**6), 1e4).replica == "b"
    assert view_of(made, "a").token_s > 2 * view_of(made, "b").token_s


def test_a_new_replica_starts_from_what_was_learned_of_the_others() -> None:
    made = fleet("a")
    learn(made, "a", 4.0)
    made.join("b")
    assert view_of(made, "b").token_s == pytest.approx(view_of(made, "a").token_s)


def test_a_tier_thought_too_slow_is_tried_now_and_then() -> None:
    made = Fleet(constants=Constants(shared_bytes_per_second=1e8), rng=random.Random(1))
    made.join("a", gpu_tokens=0, host_tokens=0)
    loads = []
    for number in range(200):
        now = 10.0 * number
        decision = sent(made, ask(1, 2, 3, shared=3 * BLOCK), now)
        loads.append(decision.loads_shared)
        made.first_byte(decision.ticket, now + 6.0)  # as slow as thought
        made.ended(decision.ticket, now + 7.0, Usage(1636, 1536 * decision.loads_shared, 1))
    assert loads[:3] == [True, True, True]
    assert 10 < sum(loads) < 30


@pytest.mark.parametrize("seed", range(5))
def test_a_short_prompt_goes_where_its_answer_slows_less(seed: int) -> None:
    made = fleet("a", "b", seed=seed)
    busier = sent(made, long(100), 0.0)
    made.first_byte(busier.ticket, busier.costs.total_s)
    made.ended(busier.ticket, 20.0, None)
    # Both are idle and hold nothing of it; only what was prefilled lately differs.
    assert sent(made, ask(1), 20.0).replica != busier.replica


def test_a_common_system_prompt_does_not_attract_all_traffic() -> None:
    made = fleet("a", "b", "c", "d")
    system = list(range(40))
    chosen = []
    for number in range(200):
        now = 0.5 * number
        decision = sent(made, ask(*system, 1000 + number), now)
        chosen.append(decision.replica)
        made.first_byte(decision.ticket, now + 0.4)
        made.ended(decision.ticket, now + 1.4, None)
    assert min(chosen.count(name) for name in "abcd") > 20
    assert made.view(100.0).common_tokens == 40 * BLOCK


def test_a_new_replica_without_the_system_prompt_gets_its_share() -> None:
    made = fleet("a")
    system = list(range(40))
    for number in range(100):
        served(made, ask(*system, 1000 + number), 2.0 * number)
    made.join("b")
    chosen = [served(made, ask(*system, 5000 + n), 300 + 2.0 * n).replica for n in range(40)]
    assert chosen.count("b") > 5


def test_state_stays_bounded_under_prefix_churn() -> None:
    made = Fleet(
        constants=Constants(gpu_tokens=100 * BLOCK, host_tokens=200 * BLOCK, shared_blocks=500),
        rng=random.Random(1),
    )
    for name in ("a", "b"):
        made.join(name)
    for number in range(5_000):
        served(made, long(100 * number), 2.0 * number)
    assert made.view(1e4).tree_blocks <= 2 * 300 + 500


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_and_gives_back_what_it_reserved(policy: str) -> None:
    made = fleet("a", "b", "c", policy=policy)
    for number in range(50):
        served(made, long(7 * number), 2.0 * number)
    assert made.reservations == 0
    assert sum(made.view(100.0).decisions.values()) == 50


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(sorted(POLICIES)))
def test_whatever_happens_reservations_return_to_zero(seed: int, policy: str) -> None:
    """Replicas come and go, requests fail, are given up, are answered out of order."""
    rng = random.Random(seed)
    made = fleet("a", "b", policy=policy)
    open_tickets: list[Ticket] = []
    now = 0.0
    for _ in range(120):
        now += rng.random()
        act = rng.choice(("choose", "choose", "first", "end", "release", "join", "leave", "seen"))
        name = rng.choice("abcd")
        ticket = rng.choice(open_tickets) if open_tickets else None
        if act == "choose":
            decision = made.choose(long(rng.randrange(100)), now)
            open_tickets += [decision.ticket] if isinstance(decision, Decision) else []
        elif act == "join":
            made.join(name)
        elif act == "leave":
            made.leave(name)
        elif act == "seen":
            made.observe(name, Observation(rng.randrange(5), rng.randrange(5), 0.5), now)
        elif ticket and act == "first":
            made.first_byte(ticket, now)
        elif ticket and act == "end":
            made.ended(ticket, now, Usage(10_000, rng.randrange(10_000), 5))
        elif ticket:
            made.released(ticket, now)
    for ticket in open_tickets:
        made.released(ticket, now)
    seen = made.view(now)
    assert made.reservations == 0
    assert all((each.in_flight, each.pending_s >= 0) == (0, True) for each in seen.replicas)


def test_what_metrics_say_of_a_gpu_bounds_no_more_memory_than_any_gpu_holds() -> None:
    made = fleet("a")
    made.observe("a", Observation(gpu_blocks=10**12, block_tokens=16), 0.0)
    small = Ask(range(2000), GPU_TOKENS_MAX / 1000, 2_000_000)
    made.ended(sent(made, small, 0.0).ticket, 1.0, None)
    assert made._replicas["a"].gpu.used <= 1000
