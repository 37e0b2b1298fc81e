"""Exact mode in the running router: the engine's own tokens, and what happens on disagreement."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from router.settings import Settings, SettingsError
from router.tokens import Kind, Tokenizer, ids_of, kind_of, open_tokenizer
from tests.router.identity.byte_tokenizer import write_byte_tokenizer
from tests.router.service.fakes import FakeReplica, Running, replicas, router, until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(made)
    return made


def engine(tokenizer: Tokenizer, extra: int = 0) -> Any:
    """/tokenize of an engine; `extra` ids more than it should."""

    def tokenize(fields: dict[str, Any]) -> list[int]:
        path = b"/v1/chat/completions" if "messages" in fields else b"/v1/completions"
        kind = kind_of(path, fields)
        ids = None if kind is None else ids_of(tokenizer, kind, fields)
        return [*(ids or []), *([5] * extra)]

    return tokenize


def not_exact(running: Running) -> dict[str, str]:
    reasons: dict[str, str] = running.ask("/replicas").json()["not_exact"]
    return reasons


def prompt_tokens(running: Running) -> int:
    return int(running.ask("/router/history").json()["decisions"][0]["prompt_tokens"])


def test_asks_are_made_of_the_engines_own_tokens(folder: Path) -> None:
    with replicas(1) as (one,):
        one.script.tokenize = engine(open_tokenizer(str(folder)))
        with router(one.url, tokenizer=str(folder)) as running:
            running.wait_ready(1)
            until(lambda: "completion" not in not_exact(running))
            text = "naïve " * 50
            assert running.ask("/v1/completions", {"model": "m", "prompt": text}).status == 200
            assert prompt_tokens(running) == 1 + len(text.encode())


def test_on_disagreement_it_falls_back_to_characters_and_says_so(folder: Path) -> None:
    with replicas(1) as (one,):
        one.script.tokenize = engine(open_tokenizer(str(folder)), extra=1)
        with router(one.url, tokenizer=str(folder)) as running:
            running.wait_ready(1)
            until(lambda: "tokenizes a completion differently" in not_exact(running)["completion"])
            text = "naïve " * 50
            assert running.ask("/v1/completions", {"model": "m", "prompt": text}).status == 200
            assert prompt_tokens(running) < len(text)


def test_what_an_engine_that_left_said_of_its_tokens_counts_no_more(
    folder: Path, tmp_path: Path
) -> None:
    """Also when it said so last: its answer was under way."""
    asked, go_on = threading.Event(), threading.Event()
    with replicas(2) as (one, two):
        two.script.tokenize = engine(open_tokenizer(str(folder)))
        differing = engine(open_tokenizer(str(folder)), extra=1)

        def late(fields: dict[str, Any]) -> list[int]:
            asked.set()
            assert go_on.wait(20)
            return list(differing(fields))

        one.script.tokenize = late
        path = tmp_path / "list"
        path.write_text(f"{one.url}\n{two.url}")
        with router(replica_file=str(path), tokenizer=str(folder)) as running:
            assert asked.wait(20)
            path.write_text(two.url)
            until(lambda: running.on_loop(lambda: running.app.members.get(one.id)) is None)
            go_on.set()
            until(lambda: "completion" not in not_exact(running))


def _comparisons(replica: FakeReplica) -> int:
    return sum(seen.path == "/tokenize" for seen in replica.seen)


def test_an_engine_that_left_while_another_was_compared_is_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would count as compared when it comes back."""
    monkeypatch.setattr("router.precision.CHECK_SECONDS", 0.0)
    monkeypatch.setattr("router.precision.LOOK_SECONDS", 0.01)
    asked, go_on = threading.Semaphore(0), threading.Semaphore(0)
    tokenize = engine(open_tokenizer(str(folder)))
    with replicas(2) as (one, two):

        def held(fields: dict[str, Any]) -> list[int]:
            asked.release()
            assert go_on.acquire(timeout=20)
            return list(tokenize(fields))

        one.script.tokenize = two.script.tokenize = tokenize
        path = tmp_path / "list"
        path.write_text(f"{one.url}\n{two.url}")
        with router(replica_file=str(path), tokenizer=str(folder)) as running:
            until(lambda: _comparisons(two) > 2)
            one.script.tokenize = held
            assert asked.acquire(timeout=20)
            count = _comparisons(two)
            path.write_text(one.url)
            until(lambda: running.on_loop(lambda: running.app.members.get(two.id)) is None)
            go_on.release(100)
            for _ in range(20):  # some rounds
                assert asked.acquire(timeout=20)
            assert _comparisons(two) == count


def test_a_mistake_in_comparing_one_engine_leaves_the_others_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Kind] = []

    def mistaken(tokenizer: Tokenizer, kind: Kind, fields: dict[str, Any]) -> list[int] | None:
        asked.append(kind)
        if len(asked) == 1:
            raise AssertionError("a mistake")
        return ids_of(tokenizer, kind, fields)

    monkeypatch.setattr("router.exact.ids_of", mistaken)
    with replicas(2) as pair:
        for each in pair:
            each.script.tokenize = engine(open_tokenizer(str(folder)))
        with router(*(each.url for each in pair), tokenizer=str(folder)) as running:
            until(lambda: "completion" not in not_exact(running))


def test_a_missing_tokenizer_stops_the_start_and_says_so() -> None:
    with pytest.raises(SettingsError, match="--tokenizer"), router("a:1", tokenizer="/nowhere"):
        pass


def test_kv_events_need_a_tokenizer() -> None:
    with pytest.raises(SettingsError, match="--tokenizer"):
        Settings(replicas=("a:1",), kv_events=True)
