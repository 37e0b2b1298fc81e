"""The demo's router and conversations, on stub engines: sent where told, judged by what came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.demo import processes
from bench.demo.client import RequestFailed
from bench.demo.conversations import Conversations, Decided, Talk, judge, readable, retries_in
from bench.demo.fleet import FleetError
from bench.demo.front import Front, id_of
from bench.demo.replica_spec import ReplicaSpec
from tests.demo_stub_driver import stub_fleet

GOOD = Decided("conversation 1, turn 2", 2616, "B", "total 9.5", 1, 0.5, True, ())


@pytest.fixture
def front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    monkeypatch.setattr(processes, "ORPHAN_SECONDS", 0.2)
    with stub_fleet(tmp_path / "logs") as fleet:
        pair = fleet.start(ReplicaSpec("A", Path("m")), ReplicaSpec("B", Path("m")))
        router = Front(fleet, pair)
        router.start()
        yield router


def test_a_prompt_goes_through_the_router_to_the_replica_it_is_meant_for(front: Front) -> None:
    for replica in (*front.replicas, *front.replicas):
        done = front.complete_on(replica, [7, 8], tokens_max=2)
        assert (done.tokens, done.replica) == ((7, 8), id_of(replica))
        assert "total=" in done.reason


def test_all_conversations_are_answered_though_a_replica_dies(front: Front) -> None:
    talk = Conversations(front, Talk(2, (20, 30, 10)), "test", print)
    rows = talk.run()
    assert talk.killed is not None
    assert [row.label for row in rows][:3] == [
        "conversation 1, turn 1",
        "conversation 2, turn 1",
        "conversation 1, turn 2",
    ]
    assert [row.tokens_equal for row in rows] == [True] * 6
    survivor = next(r.name for r in front.replicas if r is not talk.killed)
    assert {row.replica for row in rows[4:]} == {survivor}


def test_a_request_that_fails_is_lost_and_said_to_be(front: Front) -> None:
    for replica in front.replicas:
        replica.stop(parts=("engine",), kill=True)
    with pytest.raises(RequestFailed) as caught:
        front.complete([1], tokens_max=1)
    assert not caught.value.had_begun
    with pytest.raises(FleetError):
        front.complete_on(front.replicas[0], [1], tokens_max=1)


def test_a_lost_request_a_wrong_token_and_a_kill_without_effect_are_failures() -> None:
    assert judge([GOOD], None) == ["no replica was killed"]
    lost = replace(GOOD, replica="-", tokens_equal=None, failures=("lost: refused",))
    victim = type("Victim", (), {"name": "B"})()
    assert judge([GOOD, lost], victim) == ["conversation 1, turn 2: lost: refused"]
    assert judge([replace(GOOD, retries=0)], victim) == [
        "B was killed, and no request had to be moved on"
    ]


def test_reasons_are_read_as_the_router_writes_them() -> None:
    text = (
        "queue=12.0;local=0.0;shared=3.1;compute=80.2;total=95.3;runner-up=b:8000,101.2;retries=2"
    )
    assert retries_in(text) == 2
    assert retries_in("") == 0
    names = {"b:8000": "B"}
    assert readable(text, lambda name: names.get(name, name)) == (
        "queue 12.0, shared 3.1, compute 80.2, total 95.3, runner-up B 101.2"
    )
