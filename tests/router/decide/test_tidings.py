"""Tidings: two fleets that tell each other decide as one; what one of them loses is let go."""

from __future__ import annotations

import random

import msgspec
import pytest

from router.asks import Ask
from router.constants import Constants
from router.fleet import Decision, Fleet, Observation, ReplicaState
from router.tidings import OVER, PLACED, Heard, Teller

BLOCK = 512.0


class Pair:
    """Two processes' fleets. What happens to `one` is known to `other` once it is `told`."""

    def __init__(self, *, has_shared_tier: bool = True) -> None:
        constants = Constants(has_shared_tier=has_shared_tier)
        self.one = Fleet(constants=constants, rng=random.Random(1))
        self.other = Fleet(constants=constants, rng=random.Random(2))
        for name in ("a", "b", "c"):
            self.one.join(name)
            self.other.join(name)
        self.one.listener = self.teller = Teller()
        self.heard = Heard(self.other)

    def told(self, now: float) -> None:
        self.heard.hear(self.teller.take(), now)


def prompt(first: int, count: int = 20) -> Ask:
    return Ask([*range(first, first + count)], BLOCK, int(count * BLOCK) + 100)


def chosen(fleet: Fleet, ask: Ask, now: float, *but: str) -> Decision:
    decision = fleet.choose(ask, now, exclude=frozenset(but))
    assert isinstance(decision, Decision)
    fleet.sent(decision.ticket, now)
    return decision


def pending_s(fleet: Fleet, replica: str, now: float) -> float:
    return next(each.pending_s for each in fleet.view(now).replicas if each.replica == replica)


def test_what_one_placed_the_other_finds_there_and_waits_for() -> None:
    pair = Pair()
    first = chosen(pair.one, prompt(1), 0.0)
    pair.told(0.0)
    assert pending_s(pair.other, first.replica, 0.0) == first.ticket.compute_s > 0
    assert pair.other.reservations == 0, "it is not this one's to end"
    again = chosen(pair.other, prompt(1, 21), 0.0)
    assert again.replica == first.replica
    assert again.local_tokens == 20 * BLOCK
    assert again.costs.queue_s == first.ticket.compute_s


def test_views_show_ones_own_requests() -> None:
    pair = Pair()
    first = chosen(pair.one, prompt(1), 0.0)
    pair.told(0.0)
    row = {each.replica: each for each in pair.other.view(0.0).replicas}[first.replica]
    assert (row.in_flight, row.pending) == (0, 0)
    assert row.pending_s > 0
    pair.one.first_byte(first.ticket, 1.0)
    pair.told(1.0)
    row = {each.replica: each for each in pair.other.view(1.0).replicas}[first.replica]
    assert (row.in_flight, row.decodes) == (0, 1)


def test_what_a_replica_says_of_its_load_is_not_counted_twice() -> None:
    pair = Pair()
    first = chosen(pair.one, prompt(1), 0.0)
    pair.told(0.0)
    pair.other.observe(first.replica, Observation(waiting=1, running=0), 0.0)
    assert pending_s(pair.other, first.replica, 0.0) == first.ticket.compute_s


def test_what_is_heard_late_counts_from_when_it_was() -> None:
    """Else what one learns of a prefill that began when another's ended would be too short."""
    pair = Pair()
    first = chosen(pair.one, prompt(1), 0.0)
    second = chosen(pair.other, prompt(1, 30), 0.0)
    assert second.replica != first.replica, "it has not heard of the first one yet"
    pair.told(0.5)
    late = chosen(pair.other, prompt(1, 25), 0.5)
    assert late.replica == first.replica
    assert late.costs.queue_s == pytest.approx(max(0.0, first.ticket.compute_s - 0.5))
    pair.one.first_byte(first.ticket, 0.6)
    pair.told(0.9)
    pair.other.first_byte(late.ticket, 1.0)
    assert late.ticket.began_at == 0.6


def test_a_first_token_ends_the_prefill_and_fills_the_shared_tier() -> None:
    pair = Pair()
    first = chosen(pair.one, prompt(1), 0.0)
    pair.one.first_byte(first.ticket, 1.0)
    pair.told(1.0)
    assert pending_s(pair.other, first.replica, 1.0) == 0.0
    elsewhere = chosen(pair.other, prompt(1), 9.0, first.replica)
    assert elsewhere.shared_tokens == 20 * BLOCK


def test_nothing_is_left_of_a_request_that_is_over() -> None:
    pair = Pair()
    first = chosen(pair.one, prompt(1), 0.0)
    pair.one.first_byte(first.ticket, 1.0)
    pair.one.ended(first.ticket, 2.0, None)
    pair.told(2.0)
    assert len(pair.heard) == 0
    assert all(each.decodes == 0 for each in pair.other.view(2.0).replicas)
    again = chosen(pair.other, prompt(1), 2.0)
    assert (again.replica, again.local_tokens) == (first.replica, 20 * BLOCK)


def test_what_failed_before_its_first_token_is_not_thought_to_be_there() -> None:
    pair = Pair()
    first = chosen(pair.one, prompt(1), 0.0)
    pair.told(0.0)
    pair.one.released(first.ticket, 1.0)
    pair.told(1.0)
    assert pending_s(pair.other, first.replica, 1.0) == 0.0
    assert chosen(pair.other, prompt(1), 1.0).local_tokens == 0


def test_what_failed_there_was_held_before_is_still_thought_to_be() -> None:
    """A process started anew does not know what the replica holds, nor does its failure say."""
    pair = Pair()
    held = chosen(pair.other, prompt(1), 0.0)
    pair.other.first_byte(held.ticket, 1.0)
    pair.other.ended(held.ticket, 1.0, None)
    others = frozenset("abc") - {held.replica}
    failed = chosen(pair.one, prompt(1, 30), 2.0, *others)
    pair.told(2.0)
    pair.one.released(failed.ticket, 3.0)
    pair.told(3.0)
    assert chosen(pair.other, prompt(1, 30), 4.0, *others).local_tokens == 20 * BLOCK


def test_what_others_send_to_a_half_open_replica_keeps_nobody_from_its_trial() -> None:
    """Theirs may be closed, and then something of theirs waits there all the time."""
    pair = Pair()
    for state in (ReplicaState.DOWN, ReplicaState.HALF_OPEN):
        pair.other.set_state("a", state)
    chosen(pair.one, prompt(1), 0.0, "b", "c")
    pair.told(0.0)
    trial = chosen(pair.other, prompt(1000), 1.0, "b", "c")
    assert trial.replica == "a"
    assert pair.other.choose(prompt(2000), 1.0, exclude=frozenset("bc")) is None


def test_who_tells_no_more_leaves_nothing_under_way() -> None:
    pair = Pair()
    streaming, waiting = (chosen(pair.one, prompt(first), 0.0) for first in (1, 1000))
    pair.one.first_byte(streaming.ticket, 1.0)
    pair.told(1.0)
    assert len(pair.heard) == 2
    pair.heard.gone(2.0)
    assert len(pair.heard) == 0
    assert all(each.decodes == 0 == each.pending_s for each in pair.other.view(2.0).replicas)
    assert chosen(pair.other, prompt(1), 3.0).local_tokens == 20 * BLOCK
    assert chosen(pair.other, prompt(1000), 3.0).local_tokens == 0
    assert waiting.replica != streaming.replica


def test_a_replica_only_one_of_them_knows_is_the_others_no_business() -> None:
    pair = Pair()
    pair.other.leave("a")
    first = chosen(pair.one, prompt(1), 0.0, "b", "c")
    pair.told(0.0)
    assert first.replica == "a" and len(pair.heard) == 0
    there = chosen(pair.one, prompt(1), 0.0, "a", "c")
    pair.told(0.0)
    pair.other.leave("b")
    pair.one.ended(there.ticket, 1.0, None)
    pair.told(1.0)
    assert len(pair.heard) == 0


def test_what_was_placed_before_anybody_listened_is_not_told_of() -> None:
    pair = Pair()
    pair.one.listener = None
    first = chosen(pair.one, prompt(1), 0.0)
    pair.one.listener = pair.teller
    pair.one.first_byte(first.ticket, 1.0)
    pair.one.ended(first.ticket, 1.0, None)
    assert len(pair.teller) == 0


def test_a_teller_wakes_once_for_what_it_then_tells_together() -> None:
    woken: list[None] = []
    fleet = Fleet(rng=random.Random(1))
    fleet.join("a")
    fleet.listener = teller = Teller(lambda: woken.append(None))
    for first in (1, 1000):
        chosen(fleet, prompt(first), 0.0)
    assert (len(woken), len(teller)) == (1, 2)
    teller.take()
    chosen(fleet, prompt(2000), 0.0)
    assert (len(woken), len(teller)) == (2, 1)


STRANGE: tuple[object, ...] = (
    [[9, 1, 0.0]],
    [[9, 1]],
    [[]],
    [None],
    {"a": 1},
    [[PLACED, 1, "a"]],
    [[PLACED, 1, *"a23456789abcd", b"1"]],
)


@pytest.mark.parametrize(
    "message", [b"\xc1", b"", b"\x05", *(msgspec.msgpack.encode(each) for each in STRANGE)]
)
def test_what_cannot_be_read_is_a_value_error(message: bytes) -> None:
    pair = Pair()
    with pytest.raises(ValueError):
        pair.heard.hear(message, 0.0)


def test_an_end_nobody_heard_the_beginning_of_is_nothing() -> None:
    pair = Pair()
    pair.heard.hear(msgspec.msgpack.encode([[OVER, 77, 0.0]]), 0.0)
    assert len(pair.heard) == 0


@pytest.mark.parametrize("seed", range(20))
def test_both_know_the_same_whatever_happens(seed: int) -> None:
    """Both tell; requests come, answer, fail and go in any order; in the end both hold the same."""
    rng = random.Random(seed)
    pair = Pair(has_shared_tier=seed % 2 == 0)
    pair.other.listener = answering = Teller()
    back = Heard(pair.one)
    under_way: list[tuple[Fleet, Decision]] = []
    now = 0.0
    for _ in range(300):
        now += rng.random() * 0.2
        if rng.random() < 0.5:
            fleet = rng.choice((pair.one, pair.other))
            ask = prompt(1000 * rng.randrange(6), rng.randrange(1, 40))
            under_way.append((fleet, chosen(fleet, ask, now)))
        elif under_way:
            fleet, decision = rng.choice(under_way)
            what = rng.randrange(3)
            if what == 0:
                fleet.first_byte(decision.ticket, now)
            else:
                under_way.remove((fleet, decision))
                if what == 1:
                    fleet.ended(decision.ticket, now, None)
                else:
                    fleet.released(decision.ticket, now)
        pair.told(now)
        back.hear(answering.take(), now)
        for ours, theirs in zip(
            pair.one.view(now).replicas, pair.other.view(now).replicas, strict=True
        ):
            assert ours.decodes == theirs.decodes
    for fleet, decision in under_way:
        fleet.ended(decision.ticket, now, None)
    pair.told(now)
    back.hear(answering.take(), now)
    assert len(pair.heard) == len(back) == 0
    for fleet in (pair.one, pair.other):
        assert fleet.reservations == 0
        assert all(each.decodes == 0 == each.pending_s for each in fleet.view(now).replicas)
    shadows = [
        {each.replica: each.shadow_blocks for each in fleet.view(now).replicas}
        for fleet in (pair.one, pair.other)
    ]
    assert shadows[0] == shadows[1]
