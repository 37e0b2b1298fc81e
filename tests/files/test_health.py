"""The breaker's transitions, with time as an argument."""

from __future__ import annotations

import pytest

from sharedfs_backend.files import FailureKind, Health, HealthPolicy, State

POLICY = HealthPolicy(
    failures_to_open=3,
    hang_seconds=10.0,
    probe_seconds=1.0,
    probe_seconds_max=4.0,
    steady_seconds=60.0,
    lost_probes_max=2,
)
IO = FailureKind.IO


def sick(now: float = 0.0) -> Health:
    """A health that has just become sick at `now`."""
    health = Health(POLICY)
    for path in ("a", "b", "c"):
        health.observe(IO, now, path=path)
    assert health.state is State.SICK
    return health


def test_failures_in_a_row_over_several_files_make_it_sick() -> None:
    health = Health(POLICY)
    health.observe(IO, 0.0, path="a")
    health.observe(FailureKind.TIMEOUT, 0.0, path="b")
    assert health.allows(0.0)
    health.observe(IO, 0.0, path="a")
    assert not health.allows(0.0)
    assert health.times_sick == 1


def test_one_unreadable_file_does_not_sicken_the_rest() -> None:
    health = Health(POLICY)
    for _ in range(100):
        health.observe(IO, 0.0, path="a")
    assert health.allows(0.0)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        FailureKind.MISSING,
        FailureKind.EXISTS,
        FailureKind.NO_SPACE,
        FailureKind.DENIED,
        FailureKind.UNSUPPORTED,
    ],
)
def test_any_answer_between_failures_keeps_it_well(answer: FailureKind | None) -> None:
    health = Health(POLICY)
    for number in range(100):
        health.observe(IO if number % 3 else answer, 0.0, path=str(number))
    assert health.allows(0.0)


def test_a_hanging_call_makes_it_sick_at_once() -> None:
    health = Health(POLICY)
    health.observe_hang(10.0, path="a")
    assert (health.state, health.reason) == (State.SICK, "a call on a does not return")


def test_one_probe_at_a_time_is_let_through_when_due() -> None:
    health = sick()
    assert not health.begin_probe(0.9)
    assert health.begin_probe(1.0)
    assert not health.begin_probe(5.0)
    assert not health.allows(5.0)


def test_an_answered_probe_makes_it_well() -> None:
    health = sick()
    health.begin_probe(1.0)
    health.observe(FailureKind.MISSING, 1.1, probe=True)
    assert health.allows(1.1)


def test_probes_back_off_to_a_maximum() -> None:
    health, now, waits = sick(), 0.0, []
    for _ in range(5):
        start = now
        while not health.begin_probe(now):
            now += 0.5
        waits.append(now - start)
        health.observe(IO, now, probe=True)
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_a_relapse_goes_on_backing_off_and_a_steady_time_forgets() -> None:
    health = sick()
    health.begin_probe(1.0)
    health.observe(None, 1.0, probe=True)
    health.observe_hang(2.0)
    assert not health.probe_due(3.9)
    assert health.begin_probe(4.0)
    health.observe(None, 4.0, probe=True)
    health.observe_hang(64.0)
    assert health.probe_due(65.0)


def test_a_straggler_neither_heals_nor_sickens_but_hurries_the_probe() -> None:
    health = sick()
    health.observe(IO, 0.1, path="d")
    assert not health.probe_due(0.2)
    health.observe(None, 0.3)
    assert (health.state, health.probe_due(0.3)) == (State.SICK, True)


def test_probes_that_never_return_are_bounded() -> None:
    health, now, probes = sick(), 0.0, 0
    while now < 1000.0:
        now += 1.0
        if health.begin_probe(now):
            probes += 1
            health.observe_hang(now + 10.0, probe=True)
    assert probes == 2
    health.observe_return(probe=True)
    assert health.begin_probe(now)


def test_a_lost_probe_that_returns_with_an_answer_heals() -> None:
    health = sick()
    health.begin_probe(1.0)
    health.observe_hang(11.0, probe=True)
    health.observe_return(probe=True)
    health.observe(None, 500.0, probe=True)
    assert (health.state, health.lost_probes) == (State.WELL, 0)
