"""The router as a Ray Serve application: its ingress as ASGI, by hand; and, where Ray is installed,
all of it."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.relay.processes import free_port
from router.serve import Ingress, Lost, Options, options_of
from router.settings import SettingsError
from tests.router.service.fakes import CHUNKS, FakeReplica, chat, replicas, until

WAIT_SECONDS = 20.0
REPLICA = b"x-sharedfs-replica"
OFTEN = {"health_seconds": "0.1", "scrape_seconds": "0.1", "list_seconds": "0.05"}


class Exchange:
    """A server's side of one ASGI request."""

    def __init__(self, body: bytes | None, pieces: int = 1) -> None:
        self.got: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        size = len(body or b"") // pieces + 1
        for at in range(pieces):
            self._coming.put_nowait(
                {
                    "type": "http.request",
                    "body": (body or b"")[at * size : (at + 1) * size],
                    "more_body": at + 1 < pieces,
                }
            )

    async def receive(self) -> dict[str, Any]:
        return await self._coming.get()

    async def send(self, message: dict[str, Any]) -> None:
        self.got.put_nowait(message)

    def leave(self) -> None:
        self._coming.put_nowait({"type": "http.disconnect"})

    async def next(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.got.get(), WAIT_SECONDS)

    async def head(self) -> tuple[int, dict[bytes, bytes]]:
        message = await self.next()
        assert message["type"] == "http.response.start"
        return message["status"], dict(message["headers"])

    async def body(self) -> bytes:
        """The rest of it."""
        pieces = []
        while (message := await self.next())["more_body"]:
            pieces.append(message["body"])
        return b"".join(pieces)


def scope_of(path: str, body: bytes | None, method: str, **more: Any) -> dict[str, Any]:
    headers = [(b"host", b"router"), (b"connection", b"keep-alive"), (b"expect", b"100-continue")]
    if body is not None:
        headers.append((b"content-length", str(len(body)).encode()))
    path, _, query = path.partition("?")
    known = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
    return {**known, "headers": headers, **more}


class Asked:
    """An ingress that lives."""

    def __init__(self, ingress: Ingress) -> None:
        self._ingress = ingress

    def begin(
        self, path: str, fields: Any = None, *, pieces: int = 1, method: str = "", **more: Any
    ) -> tuple[Exchange, asyncio.Task[None]]:
        body = None if fields is None else json.dumps(fields).encode()
        scope = scope_of(path, body, method or ("GET" if body is None else "POST"), **more)
        exchange = Exchange(body, pieces)
        call = self._ingress(scope, exchange.receive, exchange.send)
        return exchange, asyncio.create_task(call)

    async def ask(self, path: str, fields: Any = None, **more: Any) -> tuple[int, Any, bytes]:
        """Status, headers, body."""
        exchange, task = self.begin(path, fields, **more)
        status, headers = await exchange.head()
        body = await exchange.body()
        await task
        return status, headers, body


@asynccontextmanager
async def living(options: Options) -> AsyncIterator[Asked]:
    """From Serve's start of a replica to its end."""
    ingress = Ingress(options)
    life = Exchange(None)
    task = asyncio.create_task(ingress({"type": "lifespan"}, life.receive, life.send))
    started = await life.next()
    assert started["type"] == "lifespan.startup.complete", started
    yield Asked(ingress)
    life.leave()
    assert (await life.next())["type"] == "lifespan.shutdown.complete"
    await task
    assert len(asyncio.all_tasks()) == 1


Act = Callable[[Asked, list[FakeReplica]], Awaitable[None]]


def serving(act: Act, count: int = 1, **arguments: str) -> None:
    """Runs `act` with an ingress and its replicas."""

    async def run(made: list[FakeReplica]) -> None:
        urls = ",".join(each.url for each in made)
        async with living(options_of({"replicas": urls, **OFTEN, **arguments})) as asked:
            await act(asked, made)

    with replicas(count) as made:
        asyncio.run(run(made))


async def came(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not holds():
            await asyncio.sleep(0.005)


def test_a_stream_is_passed_on_as_it_comes_and_says_who_answers() -> None:
    async def act(asked: Asked, made: list[FakeReplica]) -> None:
        rest = threading.Event()
        made[0].script.hold_after = (1, rest)
        exchange, task = asked.begin("/v1/chat/completions", chat())
        status, headers = await exchange.head()
        assert (status, headers[REPLICA]) == (200, made[0].id.encode())
        assert b"compute=" in headers[b"x-sharedfs-reason"]
        assert not headers.keys() & {b"connection", b"transfer-encoding", b"date", b"server"}
        assert b'"index": 0' in (await exchange.next())["body"]
        assert exchange.got.empty()
        rest.set()
        body = await exchange.body()
        assert body.endswith(b"data: [DONE]\n\n") and body.count(b'"index"') == CHUNKS - 1
        await task

    serving(act)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_client_that_leaves_during_prefill_cancels_the_replicas_work(is_told: bool) -> None:
    async def act(asked: Asked, made: list[FakeReplica]) -> None:
        made[0].script.hold = never = threading.Event()
        exchange, task = asked.begin("/v1/chat/completions", chat())
        await came(lambda: bool(made[0].prompts()))
        if is_told:
            exchange.leave()
            await task
        else:  # as Serve does it
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
        await came(lambda: made[0].left == ["/v1/chat/completions"])
        assert exchange.got.empty()
        never.set()

    serving(act)


def test_a_stream_that_breaks_off_is_not_ended_as_if_it_were_whole() -> None:
    async def act(asked: Asked, made: list[FakeReplica]) -> None:
        made[0].script.cut_after = 2
        exchange, task = asked.begin("/v1/chat/completions", chat())
        with pytest.raises(Lost):
            await task
        await exchange.head()
        left = [exchange.got.get_nowait() for _ in range(exchange.got.qsize())]
        assert left and all(message["more_body"] for message in left)

    serving(act)


def test_another_replica_is_tried_before_the_first_byte() -> None:
    async def act(asked: Asked, made: list[FakeReplica]) -> None:
        for each in made:
            each.script.status = 500
        made[1].script.status = 200
        for number in range(4):
            status, headers, _ = await asked.ask("/v1/chat/completions", chat(f"{number}"))
            assert (status, headers[REPLICA]) == (200, made[1].id.encode())

    serving(act, 2)


def test_bodies_come_whole_whether_their_length_is_told_or_not() -> None:
    async def act(asked: Asked, made: list[FakeReplica]) -> None:
        fields = chat("x" * 100_000)
        assert (await asked.ask("/v1/chat/completions", fields, pieces=5))[0] == 200
        exchange, task = asked.begin(
            "/v1/chat/completions",
            fields,
            pieces=5,
            headers=[(b"host", b"router"), (b"transfer-encoding", b"chunked")],
        )
        assert (await exchange.head())[0] == 200
        await exchange.body()
        await task
        assert [json.loads(seen.body) for seen in made[0].prompts()] == [fields, fields]

    serving(act)


def test_the_routers_own_limits_and_keys_hold(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")

    async def act(asked: Asked, made: list[FakeReplica]) -> None:
        assert (await asked.ask("/v1/chat/completions", chat()))[0] == 401
        host = (b"host", b"router")
        headers = [host, (b"authorization", b"Bearer secret"), (b"content-length", b"99999")]
        status, _, _ = await asked.ask("/v1/chat/completions", "x" * 99997, headers=headers)
        assert status == 413
        assert made[0].prompts() == []

    serving(act, api_key_file=str(key), body_bytes_max="2048")


def test_targets_keep_their_query_and_lose_the_applications_prefix() -> None:
    async def act(asked: Asked, made: list[FakeReplica]) -> None:
        _, _, body = await asked.ask("/version?a=1")
        assert json.loads(body)["path"] == "/version?a=1"
        _, _, body = await asked.ask("/llm/a%20b", raw_path=b"/llm/a%20b", root_path="/llm")
        assert json.loads(body)["path"] == "/a%20b"
        status, headers, body = await asked.ask("/health", method="HEAD")
        assert (status, body) == (200, b"") and int(headers[b"content-length"]) > 0

    serving(act)


def test_what_other_ingresses_sent_is_seen_in_the_replicas_metrics() -> None:
    async def act(asked: Asked, made: list[FakeReplica]) -> None:
        async def pending(replica: FakeReplica) -> float:
            rows = json.loads((await asked.ask("/replicas"))[2])["replicas"]
            return float(next(row["pending_s"] for row in rows if row["id"] == replica.id))

        _, headers, _ = await asked.ask("/v1/chat/completions", chat("x" * 20_000))
        busy, idle = sorted(made, key=lambda each: each.id.encode() != headers[REPLICA])
        busy.script.metrics = "vllm:num_requests_running 3\nvllm:num_requests_waiting 40\n"
        async with asyncio.timeout(WAIT_SECONDS):
            while await pending(busy) <= await pending(idle):
                await asyncio.sleep(0.01)
        for number in range(3):
            _, headers, _ = await asked.ask("/v1/chat/completions", chat(f"{number}" * 3000))
            assert headers[REPLICA] == idle.id.encode()

    serving(act, 2)


def test_arguments_become_settings_of_the_right_kind() -> None:
    given = {"namespace": "/n", "slo_seconds": "2.5", "kv_events": "true", "tokenizer": "/t"}
    options = options_of({**given, "ingresses": "4", "retries_max": "1"})
    settings = options.settings
    assert (options.ingresses, settings.retries_max, settings.kv_events) == (4, 1, True)
    assert (settings.slo_seconds, settings.host, settings.port) == (2.5, "127.0.0.1", 0)
    assert options_of({"replicas": "http://a:1, http://b:2"}).settings.replicas[0] == "http://a:1"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "exactly one of"),
        ({"namespace": "/n", "port": "1"}, "port: not an argument"),
        ({"namespace": "/n", "api_key": "k"}, "api_key: not an argument"),
        ({"namespace": "/n", "slo_seconds": "soon"}, "slo_seconds"),
        ({"namespace": "/n", "ingresses": "0"}, "at least 1"),
    ],
)
def test_wrong_arguments_are_told(arguments: dict[str, str], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        options_of(arguments)


def test_an_ingress_that_cannot_start_says_why(tmp_path: Path) -> None:
    async def run() -> dict[str, Any]:
        life = Exchange(None)
        ingress = Ingress(options_of({"replica_file": str(tmp_path / "none")}))
        await ingress({"type": "lifespan"}, life.receive, life.send)
        return await life.next()

    message = asyncio.run(run())
    assert message["type"] == "lifespan.startup.failed" and "list of replicas" in message["message"]


ON_SERVE = """
import sys
import ray
from ray import serve
from router.serve import build
ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
serve.run(build(dict(word.split("=", 1) for word in sys.argv[2:])))
print("up", flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
"""


def asked(port: int, text: str) -> http.client.HTTPResponse:
    """The head of an answer whose connection ends with it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
    fields = json.dumps(chat(text))
    connection.request("POST", "/v1/chat/completions", fields, {"connection": "close"})
    return connection.getresponse()


@pytest.mark.nightly
@pytest.mark.alone
def test_two_ingresses_on_a_real_serve(tmp_path: Path) -> None:
    """As a user starts it. Streams come as they are made, and leaving cancels."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'ray[serve]==2.60.0'")
    port = free_port()
    with replicas(2) as made:
        urls = ",".join(each.url for each in made)
        command = [sys.executable, "-c", ON_SERVE, str(port), f"replicas={urls}", "ingresses=2"]
        environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": "/tmp"}
        with (tmp_path / "serve.log").open("wb") as log:
            serving = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
            )
        try:
            assert serving.stdout is not None
            assert b"up\n" in iter(serving.stdout.readline, b""), (
                tmp_path / "serve.log"
            ).read_text()
            rest, never = threading.Event(), threading.Event()
            for each in made:
                each.script.hold_after = (1, rest)
            answer = asked(port, "hello")
            assert answer.getheader("x-sharedfs-replica") in {each.id for each in made}
            assert b'"index": 0' in answer.readline()
            rest.set()
            assert answer.read().endswith(b"data: [DONE]\n\n")
            for each in made:
                each.script.hold_after = (1, never)
            answer = asked(port, "bye")
            assert b'"index": 0' in answer.readline()
            answer.close()  # and with it the connection
            until(lambda: any(each.left for each in made))
            never.set()
        finally:
            assert serving.stdin is not None
            serving.stdin.close()
            assert serving.wait(120) == 0
            if serving.stdout is not None:
                serving.stdout.close()
