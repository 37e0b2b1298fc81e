"""Load: one replica's queue in seconds, from reservations, first tokens and scrapes."""

from __future__ import annotations

import math

import pytest

from router.load import BUSY_SECONDS, Load
from router.outcome import Observation
from router.tickets import Ticket


def ticket(compute_s: float, io_s: float = 0.0, at: float = 0.0) -> Ticket:
    shared = 1000.0 if io_s else 0.0
    return Ticket("a", [], 512.0, 1000, 0.0, 0.0, shared, compute_s, io_s, io_s, 0.0, at, 0)


def test_an_idle_replica_has_nothing_pending() -> None:
    assert Load().queue_s(5.0) == 0.0


def test_reserved_prefills_add_up() -> None:
    load = Load()
    load.add(ticket(2.0), 0.0)
    load.add(ticket(3.0), 0.0)
    assert load.queue_s(0.0) == pytest.approx(5.0)


def test_the_head_counts_less_what_it_has_had() -> None:
    load = Load()
    load.add(ticket(2.0), 0.0)
    load.add(ticket(3.0), 0.0)
    assert load.queue_s(1.5) == pytest.approx(3.5)


def test_a_late_head_counts_as_due_and_those_behind_it_in_full() -> None:
    load = Load()
    load.add(ticket(2.0), 0.0)
    load.add(ticket(3.0), 0.0)
    assert load.queue_s(60.0) == pytest.approx(3.0)


def test_a_first_token_corrects_the_queue() -> None:
    load, first = Load(), ticket(2.0)
    load.add(first, 0.0)
    load.add(ticket(3.0), 0.0)
    load.first(first, 10.0)
    assert load.queue_s(10.0) == pytest.approx(3.0)
    assert (load.decodes(10.0), load.in_flight) == (1, 2)


def test_a_dropped_request_frees_its_place() -> None:
    load, first, second = Load(), ticket(2.0), ticket(3.0)
    load.add(first, 0.0)
    load.add(second, 0.0)
    load.drop(second, 1.0)
    assert load.queue_s(1.0) == pytest.approx(1.0)
    load.drop(first, 1.0)
    assert (load.queue_s(1.0), load.in_flight) == (0.0, 0)


def test_when_the_head_is_given_up_the_next_begins_there_and_then() -> None:
    load, first = Load(), ticket(2.0)
    load.add(first, 0.0)
    load.add(ticket(3.0), 0.0)
    load.drop(first, 1.0)
    assert load.queue_s(1.0) == pytest.approx(3.0)


def test_dropping_twice_changes_nothing() -> None:
    load, first = Load(), ticket(2.0)
    load.add(first, 0.0)
    load.add(ticket(3.0), 0.0)
    load.drop(first, 1.0)
    load.drop(first, 2.0)
    assert load.in_flight == 1


def test_loads_wait_for_one_another() -> None:
    load = Load()
    load.add(ticket(1.0, io_s=0.5), 0.0)
    load.add(ticket(1.0, io_s=0.5), 0.0)
    assert load.io_wait_s(0.25) == pytest.approx(0.75)


def test_a_prefill_begins_when_its_loads_are_there() -> None:
    load = Load()
    load.add(ticket(1.0, io_s=4.0), 0.0)
    assert load.queue_s(0.0) == pytest.approx(5.0)


def test_what_the_replica_says_is_waiting_beyond_ours_counts() -> None:
    load = Load()
    load.add(ticket(2.0), 0.0)
    load.observe(Observation(waiting=4, running=1), 0.0)
    assert load.waiting(0.0) == 4
    assert load.queue_s(0.0) == pytest.approx(2.0 + 3 * 2.0)


def test_others_running_requests_count_as_decodes() -> None:
    load = Load()
    load.observe(Observation(waiting=0, running=7), 0.0)
    assert load.decodes(0.0) == 7


def test_our_own_requests_are_not_counted_twice() -> None:
    load, first = Load(), ticket(2.0)
    load.add(first, 0.0)
    load.first(first, 1.0)
    load.observe(Observation(waiting=0, running=1), 1.0)
    assert load.decodes(1.0) == 1


def test_an_old_scrape_is_forgotten() -> None:
    load = Load()
    load.observe(Observation(waiting=4, running=7), 0.0)
    assert (load.waiting(31.0), load.decodes(31.0)) == (0, 0)


def test_an_answer_that_is_not_streamed_is_past_its_prefill_when_that_is_due() -> None:
    load, whole = Load(), ticket(2.0)
    whole.is_streamed = False
    load.add(whole, 0.0)
    load.add(ticket(3.0), 0.0)
    seen = [load.pressure(at) for at in (1.0, 2.5)]
    assert [(each.pending, each.decodes) for each in seen] == [(2, 0), (1, 1)]
    assert [each.queue_s for each in seen] == [pytest.approx(4.0), pytest.approx(2.5)]


def test_how_busy_it_was_lately_fades_and_is_a_share() -> None:
    load = Load()
    load.add(ticket(3.0), 0.0)
    assert load.busy(0.0) == pytest.approx(3.0 / BUSY_SECONDS)
    assert load.busy(BUSY_SECONDS) == pytest.approx(load.busy(0.0) / math.e)
    load.add(ticket(1000.0), 1.0)
    assert load.busy(1.0) == 1.0
