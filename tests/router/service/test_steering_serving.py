"""Steering in the running router: who honours the parameters, and which requests carry them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from router import proving
from router.asks import Ask, Usage
from router.exchanges import Decided
from router.fleet import Fleet
from router.members import Members
from router.outcome import Decision, Overload
from router.proving import Prover
from router.relay.exchange import Attempt, Failure
from router.relay.resolver import Resolver
from router.replicas import listed
from router.settings import Settings, SettingsError
from router.steering import DISREGARDED_MAX, Steering, Verdict
from tests.router.service.fakes import FakeReplica, replicas, router
from tests.router.service.test_exchanges import Desk

SKIP = {"lmcache.skip_load": True}
Cached = Callable[[dict[str, Any]], int | None]


def engine(tier: set[tuple[int, ...]], *, honours: bool) -> Cached:
    """Cached tokens of an engine beside a tier, which stores what it computes."""

    def cached(fields: dict[str, Any]) -> int:
        ids = tuple(fields["prompt"])
        is_left_out = honours and fields.get("kv_transfer_params") == SKIP
        found = len(ids) - 1 if ids in tier and not is_left_out else 0
        tier.add(ids)
        return found

    return cached


async def tried(engines: list[FakeReplica], until: Callable[[Steering], bool]) -> Steering:
    """Each replica tried, as the router does it."""
    steering = Steering(SKIP)
    members = Members(Fleet(rng=random.Random(1)))
    members.apply(listed([one.url for one in engines]))
    for one in engines:
        members.probed(one.id, "", 0.0)
        members.serves(one.id, ({"id": "m"}, {"id": "adapter", "parent": "m"}))
    prover = Prover(steering, members, now=lambda: 1.0, resolver=Resolver(), settle_seconds=0.0)
    prover.start()
    async with asyncio.timeout(20):
        while not until(steering):
            await asyncio.sleep(0.01)
    members.apply(listed([engines[0].url]))
    prover.follow()
    assert all(steering.verdict(one.id) is Verdict.UNTRIED for one in engines[1:])  # they left
    await prover.stop()
    return steering


def test_each_replica_is_tried_beside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "LOOK_SECONDS", 0.01)
    tier: set[tuple[int, ...]] = set()
    with replicas(2) as (good, bad):
        good.script.cached_for = engine(tier, honours=True)
        bad.script.cached_for = engine(tier, honours=False)
        wanted = {good.id: Verdict.HONOURED, bad.id: Verdict.IGNORED}
        asyncio.run(
            tried(
                [good, bad],
                lambda steering: all(steering.verdict(n) is v for n, v in wanted.items()),
            )
        )
        fields = [json.loads(seen.body) for seen in good.prompts()]
        assert {one["model"] for one in fields} == {"m"} and len(fields) == 4  # two for each trial


def test_a_replica_alone_is_not_asked_for_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "LOOK_SECONDS", 0.01)
    with replicas(1) as (one,):
        rounds = iter(range(20))
        asyncio.run(tried([one], lambda _: next(rounds, None) is None))
        assert one.prompts() == []


class Spared(Desk):
    """Every choice finds that the tier has tokens which are computed sooner than loaded."""

    def __init__(self, tokens: float, *names: str) -> None:
        super().__init__(*names)
        steering = Steering(SKIP)
        choose = self.service.choose

        def chosen(ask: Ask, now: float, exclude: frozenset[str]) -> Decision | Overload | None:
            decision = choose(ask, now, exclude)
            if isinstance(decision, Decision):
                decision.costs.spared_tokens = tokens
            return decision

        self.service.choose = chosen  # type: ignore[method-assign]
        self.service.steering = steering
        self.steering = steering

    def honours(self, name: str) -> None:
        tier: set[tuple[int, ...]] = set()
        answers = engine(tier, honours=True)

        async def complete(fields: Any) -> Any:
            return Usage(600, answers(dict(fields)), 1)

        async def at_once() -> None:
            pass

        asyncio.run(self.steering.probe(name, complete, complete, 256, random.Random(1), at_once))
        assert self.steering.can(name)


def sent(exchange: Any) -> dict[str, Any] | None:
    body = exchange.attempt.body
    return None if body is None else json.loads(b"".join(body))


def test_what_computes_sooner_is_asked_not_to_load() -> None:
    desk = Spared(512.0, "a:1")
    assert sent(desk.begin()) is None  # not proven
    desk.honours("a:1")
    found = sent(desk.begin())
    assert found is not None and found["kv_transfer_params"] == SKIP and found["prompt"] == "hello"


def test_what_loads_sooner_goes_as_it_came() -> None:
    desk = Spared(0.0, "a:1")
    desk.honours("a:1")
    assert sent(desk.begin()) is None


def test_a_retry_asks_only_a_replica_that_listens() -> None:
    desk = Spared(512.0, "a:1", "b:1")
    desk.honours("a:1")
    exchange = desk.begin()
    assert isinstance(exchange, Decided)
    first = exchange.attempt
    other = exchange.failed(Failure.CLOSED, "it went", 2.0)
    assert isinstance(other, Attempt)
    bodies = {first.host: first.body is not None, other.host: other.body is not None}
    assert bodies == {"a": True, "b": False}


def test_answers_that_load_all_the_same_end_the_asking() -> None:
    desk = Spared(512.0, "a:1")
    desk.honours("a:1")
    usage = b'{"usage":{"prompt_tokens":900,"prompt_tokens_details":{"cached_tokens":800}}}'
    for _ in range(DISREGARDED_MAX):
        exchange = desk.begin(stream=False)
        assert sent(exchange) is not None
        exchange.head(200, (), 2.0)
        exchange.first_byte(2.0)
        exchange.ended(3.0, usage)
    assert sent(desk.begin()) is None


def test_replicas_says_who_can_be_asked() -> None:
    with replicas(1) as (one,):
        with router(one.url) as running:
            (row,) = running.ask("/replicas").json()["replicas"]
            assert row["no_load"] == Verdict.NO_MEANS.value
        with router(one.url, no_load_params=json.dumps(SKIP)) as running:
            (row,) = running.ask("/replicas").json()["replicas"]
            assert row["no_load"] == Verdict.UNTRIED.value


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", "null", "[" * 100_000])
def test_parameters_that_are_no_object_stop_the_start(text: str) -> None:
    with pytest.raises(SettingsError, match="--no-load-params"):
        Settings(replicas=("a:1",), no_load_params=text)
    assert replace(Settings(replicas=("a:1",)), no_load_params='{"a": 1}').no_load() == {"a": 1}
