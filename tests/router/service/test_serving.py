"""The whole router over real sockets: what a user gets, beside the complaints.

Past 400 lines because what one running router promises its users is one list.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from router import answers
from router.breaker import FAILURES_MAX
from router.members import Member
from router.settings import SettingsError
from tests.router.service.fakes import (
    WAIT_SECONDS,
    FakeReplica,
    Running,
    chat,
    replicas,
    router,
    until,
)


def test_models_of_all_replicas_are_merged() -> None:
    with replicas(2) as (one, two), router(one.url, two.url) as running:
        one.script.models = ("m", "lora")
        running.wait_ready(2)
        models = {
            entry["id"]: entry["replicas"] for entry in running.ask("/v1/models").json()["data"]
        }
        assert set(models) == {"m", "lora"}
        assert set(models["m"]) == {one.id, two.id} and models["lora"] == [one.id]


def _asks_for_so_long(running: Running, seconds: float) -> None:
    """How long one replica's answer about its models may take."""
    watch = running.app.watch
    watch._rhythm = replace(watch._rhythm, health_deadline_seconds=seconds)


def _have_said_models(running: Running) -> bool:
    return all(member.models is not None for member in running.app.members)


def test_a_replica_that_hangs_does_not_hold_up_the_list_of_models() -> None:
    with replicas(2) as (one, two), router(one.url, two.url) as running:
        until(lambda: running.on_loop(lambda: _have_said_models(running)))
        _asks_for_so_long(running, 600.0)  # longer than any test waits
        two.script.models_hold = threading.Event()
        one.script.models, two.script.models = ("m", "lora"), ("m", "late")
        for _ in range(2):
            data = running.ask("/v1/models").json()["data"]
            models = {entry["id"]: set(entry["replicas"]) for entry in data}
            assert models == {"m": {one.id, two.id}, "lora": {one.id}}
        two.script.models_hold.set()  # what it says at last is known from then on
        until(lambda: "late" in running.ask("/v1/models").body.decode())


def test_when_no_replica_says_its_models_the_answer_is_503() -> None:
    with replicas(2) as pair, router(*(each.url for each in pair)) as running:
        until(lambda: running.on_loop(lambda: _have_said_models(running)))
        _asks_for_so_long(running, 0.1)
        hold = threading.Event()
        for each in pair:
            each.script.models_hold = hold
        answer = running.ask("/v1/models")
        assert answer.status == 503 and answer.headers["retry-after"] == "1"
        assert "which models" in answer.json()["error"]["message"]
        hold.set()
        assert running.ask("/v1/models").status == 200


def test_models_of_a_replica_that_drains_are_still_listed() -> None:
    with replicas(1) as (one,), router(one.url) as running:
        until(lambda: running.on_loop(lambda: _have_said_models(running)))
        assert running.on_loop(lambda: running.app.members.drain(one.id, True))
        assert [entry["id"] for entry in running.ask("/v1/models").json()["data"]] == ["m"]


def test_a_request_goes_to_a_replica_that_serves_its_model() -> None:
    with replicas(2) as (one, two), router(one.url, two.url) as running:
        two.script.models = ("other",)
        running.wait_ready(2)
        running.ask("/v1/models")
        assert {running.chat(f"{n}", model="other").replica for n in range(6)} == {two.id}
        assert {running.chat(f"{n}", model="m").replica for n in range(6)} == {one.id}


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/audio/speech", "/version"])
def test_everything_else_is_passed_through(path: str) -> None:
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        fields = None if path == "/version" else {"prompt": "x"}
        answer = running.ask(f"{path}?a=1", fields)
        assert answer.json() == {"path": f"{path}?a=1", "from": one.id}
        assert answer.replica == one.id


def test_a_replicas_path_is_put_before_the_requests() -> None:
    with replicas(1) as (one,), router(f"{one.url}/deep") as running:
        one.script.health = 404  # its fake knows no /deep/health, which is an answer all the same
        running.wait_ready(1)
        assert running.ask("/version").json()["path"] == "/deep/version"


def test_embeddings_and_completions_are_decided_too() -> None:
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        for path, fields in (
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/embeddings", {"input": "x"}),
        ):
            assert "compute=" in running.ask(path, fields).headers["x-sharedfs-reason"]
        assert running.settled()


def test_a_body_that_is_no_request_is_left_for_the_engine_to_refuse() -> None:
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        one.script.status, one.script.error_body = 400, b'{"error": "the engine\'s own words"}'
        answer = running.ask("/v1/chat/completions", ["not", "an", "object"])
        assert answer.status == 400 and answer.body == one.script.error_body


@pytest.mark.parametrize(
    ("status", "retried"), [(500, True), (502, True), (503, True), (429, True), (501, False)]
)
def test_an_answer_another_replica_may_improve_on_is_tried_there(
    status: int, retried: bool
) -> None:
    with replicas(2) as pair, router(*(each.url for each in pair)) as running:
        running.wait_ready(2)
        for each in pair:
            each.script.status = status
        assert running.chat().status == status
        assert sum(len(each.prompts()) for each in pair) == (2 if retried else 1)
        assert running.settled()


def test_a_request_that_fails_everywhere_counts_against_nobody() -> None:
    with replicas(2) as pair, router(*(each.url for each in pair)) as running:
        running.wait_ready(2)
        for each in pair:
            each.script.status = 500
        for _ in range(3 * FAILURES_MAX):
            assert running.chat().status == 500
        assert len(running.on_loop(running.app.members.ready)) == 2


def test_a_replica_that_fails_what_others_answer_is_left_alone_until_it_is_tried_again() -> None:
    with replicas(2) as pair, router(
        *(each.url for each in pair), policy="round-robin"
    ) as running:  # fmt: skip
        running.wait_ready(2)
        bad, good = pair
        bad.script.status = 500
        while len(bad.prompts()) < FAILURES_MAX:
            assert running.chat().replica == good.id
        running.wait_ready(1)
        bad.script.status = 200
        running.wait_ready(2)  # half open: one request will show
        until(lambda: running.chat().replica == bad.id)


def test_a_dead_replica_costs_no_request() -> None:
    with replicas(2) as pair, router(*(each.url for each in pair)) as running:
        running.wait_ready(2)
        pair[0].stop()
        assert {running.chat(f"{n}" * 1000).status for n in range(10)} == {200}
        running.wait_ready(1)
        assert running.settled()


def test_without_any_replica_the_answer_is_503_with_retry_after() -> None:
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        one.stop()
        assert running.chat().status == 502
        running.wait_ready(0)
        answer = running.chat()
        assert answer.status == 503 and answer.headers["retry-after"] == "1"
        assert running.ask("/ready").status == 503 and running.ask("/health").status == 200


def test_a_replica_that_comes_back_is_used_again() -> None:
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        port = one.server_address[1]
        one.stop()
        running.wait_ready(0)
        again = FakeReplica(port)
        try:
            running.wait_ready(1)
            assert running.chat().status == 200
        finally:
            again.stop()


def test_beyond_the_objective_the_answer_is_429_with_retry_after() -> None:
    with replicas(1) as (one,), router(one.url, slo_seconds=1.0) as running:
        running.wait_ready(1)
        assert running.chat("short").status == 200
        answer = running.chat("long " * 400_000)
        assert answer.status == 429 and int(answer.headers["retry-after"]) >= 1
        assert answer.headers["x-sharedfs-reason"].startswith("least=")
        assert len(one.prompts()) == 1 and running.settled()


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer sesame"}, 200),
        ({"authorization": "bearer sesame"}, 200),
        ({"x-api-key": "sesame"}, 200),
        ({"authorization": basic("sesame")}, 200),
        ({"authorization": basic("wrong")}, 401),
        ({"authorization": "Basic !!!"}, 401),
        ({"authorization": "Bearer sesame2"}, 401),
    ],
)
def test_the_api_key_is_asked_for(headers: dict[str, str], status: int) -> None:
    with replicas(1) as (one,), router(one.url, api_key="sesame") as running:
        running.wait_ready(1)
        answer = running.ask("/v1/chat/completions", chat(), headers=headers)
        assert answer.status == status and len(one.prompts()) == (status == 200)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/health", 200), ("/ready", 200), ("/metrics", 200), ("/", 401), ("/replicas", 401),
     ("/router/history", 401), ("/v1/models", 401), ("/version", 401), ("/metrics/../x", 401)],
)  # fmt: skip
def test_only_what_machines_ask_is_open_without_the_key(path: str, status: int) -> None:
    with replicas(1) as (one,), router(one.url, api_key="sesame") as running:
        running.wait_ready(1)
        assert running.ask(path).status == status


def test_the_replicas_key_is_sent_in_place_of_the_clients() -> None:
    with (
        replicas(1) as (one,),
        router(one.url, api_key="sesame", replica_key="inner") as running,
    ):
        running.wait_ready(1)
        running.ask("/v1/chat/completions", chat(), headers={"authorization": "Bearer sesame"})
        running.ask("/v1/messages", chat(), headers={"x-api-key": "sesame"})
        for seen in one.seen:
            sent = {name.lower(): value for name, value in seen.headers.items()}
            assert sent["authorization"] == "Bearer inner" and "sesame" not in str(sent)
        assert len(one.seen) == 2


@pytest.mark.parametrize("headers", [{"origin": "http://evil"}, {"sec-fetch-site": "cross-site"}])
def test_a_page_of_another_site_cannot_drain(headers: dict[str, str]) -> None:
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        path = f"/replicas/{one.id}/drain"
        assert running.ask(path, method="POST", headers=headers).status == 403
        assert running.ask(path, method="POST").json() == {"id": one.id, "draining": True}
        assert running.ask(path, method="DELETE").json() == {"id": one.id, "draining": False}


def test_own_paths_take_their_methods_only() -> None:
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        assert running.ask("/metrics", {}).status == 405
        assert running.ask(f"/replicas/{one.id}/drain").status == 405
        assert running.ask("/replicas/nobody/drain", method="POST").status == 404
        assert running.ask("/", method="HEAD").body == b""


def test_the_replicas_page_says_what_is_known_of_each() -> None:
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        one.script.metrics = "vllm:kv_cache_usage_perc 0.5\n"
        one.script.cached_tokens = 0
        running.chat("x" * 4000)
        until(lambda: running.ask("/replicas").json()["replicas"][0]["kv_usage"] == 0.5)
        (row,) = running.ask("/replicas").json()["replicas"]
        assert row["url"] == one.url and row["state"] == "ready" and row["models"] == ["m"]
        assert row["token_s"] > 0 and row["trouble"] == "" and row["breaker"] == "closed"


def test_reported_cached_tokens_stand_beside_the_predicted() -> None:
    with replicas(1) as (one,), router(one.url) as running:
        running.wait_ready(1)
        one.script.cached_tokens = 64
        running.chat("x" * 4000)
        running.chat("x" * 4000)
        until(running.settled)
        known = running.ask("/metrics").body.decode()
        assert "sharedfs_router_reported_tokens_total 128.0" in known
        predicted = known.partition("\nsharedfs_router_predicted_tokens_total ")[2].split()[0]
        assert float(predicted) > 0


def test_a_replica_that_is_silent_too_long_has_failed() -> None:
    with replicas(2) as pair, router(
        *(each.url for each in pair), first_byte_seconds_max=1.0
    ) as running:  # fmt: skip
        running.wait_ready(2)
        hold = threading.Event()
        pair[0].script.hold = hold
        pair[0].script.head_first = True
        answers = [running.chat(f"{n}" * 2000) for n in range(3)]
        hold.set()
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert {answer.replica for answer in answers} == {pair[1].id}


def test_what_waits_for_a_replica_that_hung_and_left_the_list_moves(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    with replicas(2) as (hung, other), ThreadPoolExecutor() as pool:
        listed.write_text(hung.url)
        with router(replica_file=str(listed)) as running:
            running.wait_ready(1)
            hung.script.hold = threading.Event()
            asked = pool.submit(running.chat)
            until(lambda: len(hung.prompts()) == 1)
            listed.write_text(f"{hung.url}\n{other.url}")
            running.wait_ready(2)
            hung.script.health = 0
            listed.write_text(other.url)
            until(lambda: _ids(running) == [other.id])
            answer = asked.result(WAIT_SECONDS)
            assert (answer.status, answer.replica) == (200, other.id)
            until(lambda: not running.on_loop(lambda: dict(running.app.watch._leaving)))
            hung.script.hold.set()


def test_one_that_left_and_is_well_finishes_what_it_has(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    with replicas(2) as (leaving, other), ThreadPoolExecutor() as pool:
        listed.write_text(leaving.url)
        with router(replica_file=str(listed)) as running:
            running.wait_ready(1)
            leaving.script.hold = threading.Event()
            asked = pool.submit(running.chat)
            until(lambda: len(leaving.prompts()) == 1)
            listed.write_text(other.url)
            running.wait_ready(1)
            until(lambda: _ids(running) == [other.id])
            leaving.script.hold.set()
            answer = asked.result(WAIT_SECONDS)
            assert (answer.status, answer.replica) == (200, leaving.id)


def test_a_host_that_cannot_be_a_name_stops_the_start_and_says_so() -> None:
    with (
        replicas(1) as (one,),
        pytest.raises(SettingsError, match="cannot listen"),
        router(one.url, host="a..b"),
    ):
        pass


def test_requests_without_a_prompt_go_where_their_model_is() -> None:
    """And those that name none are no reason to prefer whoever did not tell its models."""
    with (
        replicas(3) as (one, two, silent),
        router(one.url, two.url, silent.url, policy="round-robin") as running,
    ):
        two.script.models = ("other",)
        silent.script.models_hold = threading.Event()
        running.wait_ready(3)
        until(lambda: running.ask("/v1/models").body.count(b'"id"') == 2)
        running.on_loop(lambda: running.app.members.drain(silent.id, True))
        asked = [
            running.ask(path, body)
            for path, body in (
                ("/tokenize", {"model": "other", "prompt": "a"}),
                ("/v1/rerank", {"model": "other", "query": "a"}),
                ("/v1/models/other", None),
            )
            for _ in range(4)
        ]
        assert {(answer.status, answer.replica) for answer in asked} == {(200, two.id)}
        running.on_loop(lambda: running.app.members.drain(silent.id, False))
        without = {running.chat(f"{number}" * 900, model="").replica for number in range(9)}
        assert without == {one.id, two.id, silent.id}
        silent.script.models_hold.set()


def test_a_missing_list_stops_the_start_and_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match="list of replicas"),
        router(replica_file=str(tmp_path / "none")),
    ):
        pass


def test_a_taken_port_stops_the_start_and_says_so() -> None:
    with (
        replicas(1) as (one,),
        pytest.raises(SettingsError, match="cannot listen"),
        router(one.url, port=one.server_address[1]),
    ):
        pass


def _is_ready(running: Running, names: set[str]) -> bool:
    ready = running.on_loop(running.app.members.ready)
    return {member.replica.id for member in ready} == names


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_a_list_in_whose_place_there_is_no_file_stays_as_it_was(tmp_path: Path, kind: str) -> None:
    """Opening a pipe would wait for its writer, for ever."""
    path, other = tmp_path / "list", tmp_path / "other"
    with replicas(2) as (one, two):
        path.write_text(f"{one.url}\n")
        with router(replica_file=str(path)) as running:
            running.wait_ready(1)
            if kind == "pipe":
                os.mkfifo(other)
                other.replace(path)
            else:
                path.unlink()
                path.mkdir()
            until(lambda: "\nsharedfs_router_list_errors_total 1" in _page(running))
            assert running.chat().replica == one.id
            if kind == "directory":
                path.rmdir()
            other.write_text(f"{two.url}\n")
            other.replace(path)
            until(lambda: list(_ids(running)) == [two.id])


def _page(running: Running) -> str:
    return running.ask("/metrics").body.decode()


def test_what_ends_after_its_replica_left_leaves_no_series(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    with replicas(2) as (one, two):
        listed.write_text(f"{one.url}\n")
        one.script.hold = threading.Event()
        with router(replica_file=str(listed)) as running:
            running.wait_ready(1)
            late = threading.Thread(target=running.chat)
            late.start()
            until(lambda: not running.settled())
            listed.write_text(f"{two.url}\n")
            until(lambda: list(_ids(running)) == [two.id])
            one.script.hold.set()
            late.join()
            assert one.id in running.ask("/metrics").body.decode()
            listed.write_text(f"{two.url}\nhttp://127.0.0.1:9\n")  # any change
            until(lambda: len(_ids(running)) == 2)
            assert one.id not in running.ask("/metrics").body.decode()


def _ids(running: Running) -> list[str]:
    return running.on_loop(lambda: [member.replica.id for member in running.app.members])


@pytest.mark.parametrize(
    ("path", "below"),
    [("/health", ""), ("/ready", ""), ("/", ""), ("/v1/models", ""), ("/health", "/below")],
)
def test_a_router_in_its_own_list_sends_itself_nothing(
    path: str, below: str, tmp_path: Path
) -> None:
    """One request would come back again and again, until there are no connections left."""
    listed = tmp_path / "list"
    with replicas(1) as (one,):
        listed.write_text(one.url)
        with router(replica_file=str(listed), health_path=path) as running:
            running.wait_ready(1)
            own = f"127.0.0.1:{running.port}{below}"
            listed.write_text(f"{one.url}\n{own}")
            until(lambda: "this router itself" in _trouble(running, own))
            assert {running.chat(f"{number}").replica for number in range(8)} == {one.id}


def test_a_router_with_a_key_knows_itself_too(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    with replicas(1) as (one,):
        listed.write_text(one.url)
        more: dict[str, Any] = {
            "health_path": "/v1/models",
            "api_key": "sesame",
            "replica_key": "inner",
        }
        with router(replica_file=str(listed), **more) as running:
            running.wait_ready(1)
            own = f"127.0.0.1:{running.port}"
            listed.write_text(f"{one.url}\n{own}")
            members = running.app.members
            until(lambda: running.on_loop(lambda: _is_itself(members.get(own))))


def _is_itself(member: Member | None) -> bool:
    return member is not None and "router itself" in member.trouble


def test_a_router_behind_a_router_is_not_the_same() -> None:
    with (
        replicas(1) as (one,),
        router(one.url) as other,
        router(f"127.0.0.1:{other.port}", health_path="/v1/models") as running,
    ):
        running.wait_ready(1)
        assert running.chat().status == 200


def test_routers_that_list_each_other_answer_each_request_once(tmp_path: Path) -> None:
    """What one has passed on comes back from the other: it says so, and another replica gets it."""
    listed = tmp_path / "list"
    with replicas(1) as (one,):
        listed.write_text(one.url)
        with (
            router(replica_file=str(listed), policy="round-robin") as running,
            router(f"127.0.0.1:{running.port}") as other,
        ):
            running.wait_ready(1)
            other.wait_ready(1)
            listed.write_text(f"{one.url}\n127.0.0.1:{other.port}")
            running.wait_ready(2)
            found = [running.chat(f"prompt {number}") for number in range(4)]
            assert {(answer.status, answer.replica) for answer in found} == {(200, one.id)}
            assert len(one.prompts()) == 4
            page = running.ask("/metrics").body.decode()
            assert 'refused_total{cause="loop"}' in page


def test_a_replica_that_repeats_a_probe_is_not_taken_for_the_router() -> None:
    assert answers.prober("a1b2").encode() not in answers.itself("a1b2").body
    assert "a1b2" not in answers.prober("a1b2")


def _trouble(running: Running, name: str) -> str:
    rows = running.ask("/replicas").json()["replicas"]
    return next((row["trouble"] for row in rows if row["id"] == name), "")


def test_the_list_changes_under_load_and_no_request_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "list"
    with replicas(3) as three:
        path.write_text("\n".join(each.url for each in three))
        with router(replica_file=str(path)) as running:
            running.wait_ready(3)
            stop = threading.Event()
            statuses: list[int] = []

            def load() -> None:
                while not stop.is_set():
                    statuses.append(running.chat(json.dumps(len(statuses)) * 300).status)

            threads = [threading.Thread(target=load, daemon=True) for _ in range(4)]
            for thread in threads:
                thread.start()
            for names in ([0, 1], [1, 2], [2], [0, 1, 2]):
                path.write_text("\n".join(three[number].url for number in names))
                wanted = {three[number].id for number in names}
                until(partial(_is_ready, running, wanted))
            stop.set()
            for thread in threads:
                thread.join()
            assert set(statuses) == {200} and running.settled()
