"""Exchanges as transcripts: what each event makes of a request, without a socket."""

from __future__ import annotations

import json
import random

import pytest

from router.breaker import FAILURES_MAX
from router.exchanges import Decided
from router.fleet import Fleet
from router.history import History
from router.members import Members
from router.outcome import ReplicaState
from router.passages import Passage
from router.relay.exchange import Attempt, Exchange, Failure, Reply, Request
from router.replicas import listed
from router.routes import Routes
from router.scores import Scores
from router.service import Rules, Service
from router.tally import Tally

USAGE = b'data: {"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'


class NoPaths:
    def answer(self, path: bytes, request: Request) -> None:
        return None


class Desk:
    """A service over some replicas that are well, taken in turn."""

    def __init__(self, *names: str) -> None:
        self.fleet = Fleet(policy="round-robin", rng=random.Random(1))
        self.members = Members(self.fleet)
        self.members.apply(listed(list(names)))
        for name in names:
            self.members.probed(name, "", 0.0)
        self.tally, self.history = Tally(), History()
        self.scores = Scores(self.fleet, self.tally, self.history, wall=lambda: 1000.0)
        routes = Routes(self.members, replica_key=None, first_byte_seconds_max=None)
        self.service = Service(
            Rules(),
            fleet=self.fleet,
            members=self.members,
            routes=routes,
            scores=self.scores,
            own=NoPaths(),
            now=lambda: 1.0,
        )

    def begin(self, path: str = "/v1/completions", *, stream: bool = True) -> Exchange:
        body = json.dumps({"model": "m", "prompt": "hello", "stream": stream}).encode()
        request = Request(b"POST", path.encode(), (), [body], len(body), 1.0)
        exchange = self.service.begin(request)
        assert isinstance(exchange, Decided | Passage)
        exchange.sent(1.0)
        return exchange

    def state(self, name: str) -> ReplicaState:
        return next(row.state for row in self.fleet.view(0.0).replicas if row.replica == name)

    def count(self, *series: str) -> float:
        return self.tally.counters.get(series, 0.0)


def at(attempt: Attempt | Reply | None) -> str:
    assert isinstance(attempt, Attempt)
    return f"{attempt.host}:{attempt.port}"


def test_an_answered_stream_is_counted_and_frees_its_reservation() -> None:
    desk = Desk("a:1")
    exchange = desk.begin()
    assert desk.fleet.reservations == 1
    assert exchange.head(200, (), 1.1) is None
    exchange.first_byte(1.2)
    exchange.ended(1.3, USAGE)
    assert desk.fleet.reservations == 0
    assert desk.count("requests_total", "completions", "200") == 1
    (row,) = desk.history.dump()["decisions"]
    assert (row["outcome"], row["ttft_ms"], row["reported_tokens"]) == ("answered", 200.0, 4)


def test_the_first_byte_of_a_whole_answer_is_no_first_token() -> None:
    desk = Desk("a:1")
    exchange = desk.begin(stream=False)
    exchange.head(200, (), 5.0)
    exchange.first_byte(5.0)
    assert ("ttft_seconds", "a:1") not in desk.tally.histograms
    exchange.ended(5.0, b'{"usage":{"prompt_tokens":9}}')
    assert desk.fleet.reservations == 0


def test_a_retry_holds_one_reservation_and_says_so() -> None:
    desk = Desk("a:1", "b:2")
    exchange = desk.begin()
    first = at(exchange.attempt)
    second = exchange.failed(Failure.CLOSED, "reset", 1.1)
    assert at(second) != first and desk.fleet.reservations == 1
    assert isinstance(second, Attempt)
    assert b"retries=1" in dict(second.response_headers)[b"x-sharedfs-reason"]
    assert desk.count("retries_total", first, "closed") == 1


def test_a_head_alone_is_no_answer_yet() -> None:
    """The replica died after its head and before a byte of the body: as if it never answered."""
    desk = Desk("a:1", "b:2")
    exchange = desk.begin()
    exchange.head(200, (), 1.1)
    assert isinstance(exchange.failed(Failure.CLOSED, "died", 1.2), Attempt)
    assert desk.count("requests_total", "completions", "200") == 0


def test_when_nobody_is_left_the_answer_is_502_and_nothing_is_reserved() -> None:
    desk = Desk("a:1")
    reply = desk.begin().failed(Failure.CONNECT, "refused", 1.1)
    assert isinstance(reply, Reply) and reply.status == 502
    assert desk.fleet.reservations == 0


def test_silence_is_504() -> None:
    reply = Desk("a:1").begin().failed(Failure.TIMEOUT, "no answer in time", 1.1)
    assert isinstance(reply, Reply) and reply.status == 504


@pytest.mark.parametrize(
    ("first", "second", "blamed"),
    [(500, 200, True), (503, 404, True), (500, 500, False), (429, 200, False), (429, 500, False)],
)
def test_a_5xx_counts_only_if_another_then_answered(first: int, second: int, blamed: bool) -> None:
    desk = Desk("a:1", "b:2")
    for _ in range(FAILURES_MAX):
        exchange = desk.begin()
        while at(exchange.attempt) != "a:1":  # begin with this one every time
            exchange.abandoned(1.0)
            exchange = desk.begin()
        assert at(exchange.head(first, (), 1.1)) == "b:2"
        assert exchange.head(second, (), 1.2) is None
        exchange.first_byte(1.2)
        exchange.ended(1.3, b"")
    assert (desk.state("a:1") is ReplicaState.DOWN) is blamed
    assert desk.state("b:2") is ReplicaState.READY and desk.fleet.reservations == 0


def test_retries_have_a_limit() -> None:
    desk = Desk("a:1", "b:2", "c:3", "d:4", "e:5")
    exchange = desk.begin()
    followed = [exchange.failed(Failure.CONNECT, "refused", 1.0) for _ in range(3)]
    assert [type(one) for one in followed] == [Attempt, Attempt, Reply]


@pytest.mark.parametrize("ending", ["broken", "abandoned"])
def test_a_stream_that_ends_early_frees_its_reservation(ending: str) -> None:
    desk = Desk("a:1")
    exchange = desk.begin()
    exchange.head(200, (), 1.1)
    exchange.first_byte(1.1)
    getattr(exchange, ending)(1.2)
    assert desk.fleet.reservations == 0 and desk.count("cut_total", "a:1", ending) == 1


def test_what_may_change_something_is_sent_twice_only_if_it_never_arrived() -> None:
    desk = Desk("a:1", "b:2")
    assert isinstance(desk.begin("/sleep").failed(Failure.CLOSED, "reset", 1.0), Reply)
    assert isinstance(desk.begin("/sleep").failed(Failure.CONNECT, "refused", 1.0), Attempt)
    assert desk.begin("/sleep").head(503, (), 1.0) is None


def test_what_changes_nothing_is_sent_twice() -> None:
    desk = Desk("a:1", "b:2")
    assert isinstance(desk.begin("/tokenize").failed(Failure.CLOSED, "reset", 1.0), Attempt)
    assert isinstance(desk.begin("/tokenize").head(503, (), 1.0), Attempt)


@pytest.mark.parametrize(
    ("path", "is_repeatable"),
    [("/v1/load_lora_adapter", False), ("/tokenize", True), ("/v1/completions", True)],
)
def test_the_relay_is_told_what_must_not_be_repeated(path: str, is_repeatable: bool) -> None:
    desk = Desk("a:1", "b:2")
    exchange = desk.begin(path)
    following = exchange.failed(Failure.CONNECT, "refused", 1.0)
    assert isinstance(following, Attempt)
    assert exchange.attempt.is_repeatable is following.is_repeatable is is_repeatable


def test_a_replica_that_left_may_still_finish() -> None:
    desk = Desk("a:1", "b:2")
    exchange = desk.begin()
    left = at(exchange.attempt)
    desk.members.apply(listed([name for name in ("a:1", "b:2") if name != left]))
    exchange.head(200, (), 1.1)
    exchange.first_byte(1.2)
    exchange.ended(1.3, USAGE)
    assert desk.fleet.reservations == 0
