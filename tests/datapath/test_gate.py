"""The gate: once shut nobody touches the caller's memory; shutting waits for those inside (I7)."""

from __future__ import annotations

import ctypes
import threading

import pytest

from sharedfs_backend.gate import Gate
from tests.datapath.support import compiled


def test_an_open_gate_lets_in() -> None:
    with Gate().enter() as is_open:
        assert is_open


def test_a_shut_gate_lets_nobody_in() -> None:
    gate = Gate()
    assert gate.shut()
    with gate.enter() as is_open:
        assert not is_open
    assert gate.is_shut


def test_compiled_code_sees_that_a_gate_is_shut() -> None:
    for shut in (Gate.shut, Gate.try_shut):
        gate = Gate()
        assert gate.stop_word.tolist() == [0]
        shut(gate)
        assert gate.stop_word.tolist() == [1]


def test_shutting_waits_for_those_inside() -> None:
    gate, shut = Gate(), threading.Event()

    def work() -> None:
        gate.shut()
        shut.set()

    with gate.enter() as is_open:
        assert is_open
        thread = threading.Thread(target=work)
        thread.start()
        assert not shut.wait(0.01)
    assert shut.wait(10)
    thread.join()


def test_shutting_gives_up_in_time_but_stays_shut() -> None:
    gate = Gate()
    with gate.enter():
        assert not gate.shut(timeout_seconds=0.001)
    with gate.enter() as is_open:
        assert not is_open


def test_one_part_is_shut_alone() -> None:
    gate = Gate()
    with gate.enter(1):
        assert gate.shut_part(2)
        assert not gate.shut_part(1, timeout_seconds=0.001)
    with gate.enter(2) as second, gate.enter(3) as third:
        assert (second, third) == (False, True)


def test_the_same_part_is_entered_by_many() -> None:
    gate = Gate()
    with gate.enter(1), gate.enter(1):
        pass
    assert gate.shut(timeout_seconds=0)


def test_a_gate_is_left_when_the_work_inside_fails() -> None:
    gate = Gate()
    try:
        with gate.enter():
            raise KeyError
    except KeyError:
        pass
    assert gate.shut(timeout_seconds=0)


def test_a_gate_that_is_not_enforced_keeps_nobody_out() -> None:
    gate = Gate(enforced=False)
    with gate.enter():
        assert gate.shut(timeout_seconds=0)
    with gate.enter() as is_open:
        assert is_open


@pytest.mark.parametrize("how", ["whole", "part"])
def test_shutting_waits_for_compiled_code_inside(how: str) -> None:
    gate = Gate(doors=compiled().doors(2))
    assert gate.doors is not None
    inside = ctypes.c_int32.from_address(gate.doors.address(1))
    inside.value += 2
    assert gate.shut_part(0, 0.0)

    def shut(timeout_seconds: float | None) -> bool:
        return gate.shut(timeout_seconds) if how == "whole" else gate.shut_part(1, timeout_seconds)

    assert not shut(0.001) and inside.value == 3
    assert how == "part" or not gate.try_shut()
    leaving = threading.Timer(0.05, lambda: setattr(inside, "value", 1))
    leaving.start()
    assert shut(None) and inside.value == 1
    leaving.join()
    assert gate.try_shut()


def test_a_gate_that_is_not_enforced_has_no_doors() -> None:
    assert Gate(enforced=False, doors=compiled().doors(1)).doors is None
