"""Members: who may be chosen, told to the fleet as states and nothing else."""

from __future__ import annotations

import random

import pytest

from router.asks import Ask
from router.breaker import FAILURES_MAX, PAUSE_SECONDS
from router.fleet import Fleet
from router.members import Members
from router.outcome import Decision, ReplicaState
from router.replicas import listed

ASK = Ask([1, 2, 3], 128.0, 400, model="m")


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(rng=random.Random(1))


@pytest.fixture
def members(fleet: Fleet) -> Members:
    members = Members(fleet)
    members.apply(listed(["a:1", "b:2"]))
    return members


def well(members: Members, *names: str) -> None:
    for name in names:
        members.probed(name, "", 0.0)


def states(fleet: Fleet) -> dict[str, ReplicaState]:
    return {row.replica: row.state for row in fleet.view(0.0).replicas}


def test_nobody_is_chosen_before_the_first_good_probe(fleet: Fleet, members: Members) -> None:
    assert fleet.choose(ASK, 0.0) is None and members.next_ready() is None
    well(members, "b:2")
    decision = fleet.choose(ASK, 0.0)
    assert isinstance(decision, Decision) and decision.replica == "b:2"


def test_a_replica_that_stays_on_the_list_keeps_its_load_and_state(
    fleet: Fleet, members: Members
) -> None:
    well(members, "a:1")
    assert isinstance(fleet.choose(ASK, 0.0), Decision)
    assert members.apply(listed(["a:1", "c:3"])) == (["c:3"], ["b:2"])
    (row,) = [row for row in fleet.view(0.0).replicas if row.replica == "a:1"]
    assert row.in_flight == 1 and row.state is ReplicaState.READY


def test_health_going_up_and_down_never_touches_load(fleet: Fleet, members: Members) -> None:
    well(members, "a:1")
    assert isinstance(fleet.choose(ASK, 0.0), Decision)
    for now in range(1, 50):
        members.probed("a:1", "down" if now % 10 < 5 else "", float(10 * now))
        (row,) = [row for row in fleet.view(0.0).replicas if row.replica == "a:1"]
        assert row.in_flight == 1


def test_a_draining_replica_gets_nothing_until_told_otherwise(
    fleet: Fleet, members: Members
) -> None:
    well(members, "a:1")
    assert members.drain("a:1", True)
    assert states(fleet)["a:1"] is ReplicaState.DRAINING
    assert fleet.choose(ASK, 0.0) is None and members.next_ready() is None
    members.drain("a:1", False)
    assert isinstance(fleet.choose(ASK, 0.0), Decision)


def test_draining_a_stranger_is_refused(members: Members) -> None:
    assert not members.drain("z:9", True)


def test_a_half_open_replica_gets_one_request_at_a_time(fleet: Fleet, members: Members) -> None:
    well(members, "a:1")
    for _ in range(FAILURES_MAX):
        members.failed("a:1", "no", 0.0)
    assert fleet.choose(ASK, 0.0) is None
    members.probed("a:1", "", PAUSE_SECONDS)
    assert states(fleet)["a:1"] is ReplicaState.HALF_OPEN
    assert isinstance(fleet.choose(ASK, 2.0), Decision)
    assert fleet.choose(ASK, 2.0) is None
    members.answered("a:1")
    assert states(fleet)["a:1"] is ReplicaState.READY


def test_streams_from_before_do_not_keep_a_half_open_replica_from_its_trial(
    fleet: Fleet, members: Members
) -> None:
    well(members, "a:1")
    before = fleet.choose(ASK, 0.0)
    assert isinstance(before, Decision)
    fleet.first_byte(before.ticket, 0.1)
    for _ in range(FAILURES_MAX):
        members.failed("a:1", "no", 0.2)
    members.probed("a:1", "", 0.2 + PAUSE_SECONDS)
    assert isinstance(fleet.choose(ASK, 2.0), Decision)
    assert fleet.choose(ASK, 2.0) is None


def test_only_replicas_that_serve_the_model_are_left(members: Members) -> None:
    members.serves("a:1", ({"id": "m"}, {"id": "lora"}))
    members.serves("b:2", ({"id": "m"},))
    assert members.without("m") == frozenset()
    assert members.without("lora") == {"b:2"}


def test_a_model_nobody_lists_is_asked_of_anybody(members: Members) -> None:
    members.serves("a:1", ({"id": "m"},))
    members.serves("b:2", ({"id": "m"},))
    assert members.without("other") == frozenset()


def test_a_replica_that_never_said_may_serve_anything(members: Members) -> None:
    members.serves("a:1", ({"id": "m"},))
    assert members.without("n") == {"a:1"}


def test_names_clients_make_up_fill_no_memory(members: Members) -> None:
    for number in range(2000):
        members.without(f"model-{number}")
    assert len(members._lacking) <= 256


def test_a_name_of_any_length_fills_no_memory(members: Members) -> None:
    assert members.without("m" * 1_000_000) == frozenset()
    assert sum(len(name) for name in members._lacking) < 1000


def test_models_are_merged_without_replicas_that_are_down(members: Members) -> None:
    well(members, "a:1")
    members.serves("a:1", ({"id": "m", "object": "model"},))
    members.serves("b:2", ({"id": "m"}, {"id": "n"}))
    assert members.merged_models() == [{"id": "m", "object": "model", "replicas": ["a:1"]}]


def test_what_is_not_prefilled_goes_to_each_in_turn(members: Members) -> None:
    well(members, "a:1", "b:2")
    found = [members.next_ready() for _ in range(4)]
    names = [member.replica.id for member in found if member]
    assert sorted(names[:2]) == ["a:1", "b:2"] and names[:2] == names[2:]
