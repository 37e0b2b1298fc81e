"""What service tests share: replicas of the standard library's HTTP server, a router on a thread.

A `FakeReplica` answers as its `script` says and records what it got. A `Running` router is the real
one, all of it, on a loop of its own; `on_loop` looks into it from the test's thread.

Past 400 lines because replica, client and router are one world that all service tests share.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from router.app import App, Place
from router.relay.resolver import Resolver
from router.settings import Settings

T = TypeVar("T")

WAIT_SECONDS = 20.0
CHUNKS = 4


@dataclass
class Seen:
    """One request a replica got."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Script:
    """How a replica answers. Changed by a test while it runs."""

    status: int = 200
    health: int = 200
    """0: no answer at all, the connection is closed."""
    error_body: bytes = b'{"error": {"message": "no", "code": 400}}'
    hold: threading.Event | None = None
    """The answer's first chunk waits for it; the head does too unless `head_first`."""
    head_first: bool = False
    """As vLLM does: the head of a stream goes out before prefill."""
    hold_after: tuple[int, threading.Event] | None = None
    """After so many chunks wait for the event."""
    cut_after: int | None = None
    """Close the connection after so many chunks."""
    close_at_once: bool = False
    cached_tokens: int | None = 0
    cached_for: Callable[[dict[str, Any]], int | None] | None = None
    """In its place, from a request's fields."""
    models: tuple[str, ...] = ("m",)
    models_hold: threading.Event | None = None
    """The answer of /v1/models waits for it."""
    metrics: str = ""
    tokenize: Callable[[Any], list[int]] | None = None


class FakeReplica(ThreadingHTTPServer):
    """A replica on a free loopback port."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.script = Script()
        self.seen: list[Seen] = []
        self.left: list[str] = []
        """Paths of requests whose client went away while they waited."""
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.id}"

    def prompts(self) -> list[Seen]:
        return [seen for seen in self.seen if "completions" in seen.path]

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join(WAIT_SECONDS)

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections that break are what tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeReplica

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        script = self.server.script
        if self.path.startswith("/health") and not script.health:
            self.close_connection = True
        elif self.path.startswith("/health"):
            self._whole(script.health, b"")
        elif self.path == "/metrics":
            self._whole(200, script.metrics.encode(), "text/plain")
        elif self.path == "/v1/models":
            if not self._waited(script.models_hold):
                return
            models = [{"id": name, "object": "model"} for name in script.models]
            self._whole(200, json.dumps({"object": "list", "data": models}).encode())
        else:
            self.server.seen.append(Seen(self.path, dict(self.headers.items()), b""))
            self._whole(200, json.dumps({"path": self.path, "from": self.server.id}).encode())

    def do_POST(self) -> None:
        script = self.server.script
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append(Seen(self.path, dict(self.headers.items()), body))
        if script.close_at_once:
            self.close_connection = True
            return
        if script.status != 200:
            self._whole(script.status, script.error_body)
            return
        if self.path == "/tokenize" and script.tokenize is not None:
            tokens = script.tokenize(json.loads(body))
            self._whole(200, json.dumps({"tokens": tokens, "count": len(tokens)}).encode())
            return
        if "completions" not in self.path:
            self._whole(200, json.dumps({"path": self.path, "from": self.server.id}).encode())
            return
        fields = json.loads(body)
        if fields.get("stream"):
            self._stream(script, fields)
        elif self._waited(script.hold):
            usage = self._usage(script, fields)
            self._whole(200, json.dumps({"choices": [], "usage": usage}).encode())

    def _stream(self, script: Script, fields: dict[str, Any]) -> None:
        if script.head_first:
            self._stream_head()
        if not self._waited(script.hold):
            return
        if not script.head_first:
            self._stream_head()
        for index in range(CHUNKS):
            if script.cut_after == index:
                self.close_connection = True
                return
            is_held = script.hold_after is not None and script.hold_after[0] == index
            if is_held and not self._waited(script.hold_after[1]):  # type: ignore[index]  # held
                return
            self._chunk(f'data: {{"index": {index}, "usage": null}}\n\n'.encode())
        usage = self._usage(script, fields)
        self._chunk(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _stream_head(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _usage(self, script: Script, fields: dict[str, Any]) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": CHUNKS}
        cached = script.cached_tokens if script.cached_for is None else script.cached_for(fields)
        if cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return usage

    def _waited(self, event: threading.Event | None) -> bool:
        """False: the client left first."""
        deadline = time.monotonic() + WAIT_SECONDS
        while event is not None and not event.wait(0.005):
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                self.server.left.append(self.path)
                self.close_connection = True
                return False
            assert time.monotonic() < deadline, "a test never let this go"
        return True

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _whole(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def replica(self) -> str:
        return self.headers.get("x-sharedfs-replica", "")

    def json(self) -> Any:
        return json.loads(self.body)


class Asking:
    """Whoever has a port can be asked."""

    port: int
    connections: list[http.client.HTTPConnection]

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        self.connections.append(connection)
        return connection

    def stream(self) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A chat whose first line has come."""
        connection = self.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        answer = connection.getresponse()
        answer.readline()
        return connection, answer

    def ask(
        self,
        path: str,
        fields: Any = None,
        *,
        method: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        connection = self.connect()
        body = None if fields is None else json.dumps(fields).encode()
        method = method or ("GET" if body is None else "POST")
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        known = {name.lower(): value for name, value in answer.getheaders()}
        whole = Answer(answer.status, known, answer.read())
        connection.close()
        return whole

    def chat(self, text: str = "hello", *, stream: bool = True, **more: Any) -> Answer:
        return self.ask("/v1/chat/completions", chat(text, stream=stream, **more))


@dataclass
class Running(Asking):
    """A router that serves, on a thread of this process."""

    app: App
    loop: asyncio.AbstractEventLoop
    port: int
    connections: list[http.client.HTTPConnection] = field(default_factory=list)

    def on_loop(self, look: Callable[[], T]) -> T:
        async def run() -> T:
            return look()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WAIT_SECONDS)

    def wait_ready(self, count: int) -> None:
        until(lambda: self.on_loop(lambda: len(self.app.members.ready())) == count)

    def settled(self) -> bool:
        """Nothing is under way."""
        return self.on_loop(lambda: self.app.fleet.reservations) == 0


def chat(text: str = "hello", *, stream: bool = True, **more: Any) -> dict[str, Any]:
    fields = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": text}]}
    if stream:
        fields["stream_options"] = {"include_usage": True}
    return {**fields, **more}


def until(holds: Callable[[], bool]) -> None:
    """Waits for what another thread is about to do; fails after `WAIT_SECONDS`."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.005)


@contextmanager
def replicas(count: int) -> Iterator[list[FakeReplica]]:
    made = [FakeReplica() for _ in range(count)]
    try:
        yield made
    finally:
        for replica in made:
            with suppress(OSError):
                replica.stop()


@dataclass
class Launched(Asking):
    """A router as a user starts it."""

    process: subprocess.Popen[str]
    port: int
    said: list[str]
    connections: list[http.client.HTTPConnection] = field(default_factory=list)

    def wait_ready(self, count: int) -> None:
        until(lambda: self.ask("/ready").json()["replicas_ready"] == count)


@contextmanager
def launched(
    *arguments: str,
    environment: dict[str, str] | None = None,
    flags: Sequence[str] = (),
    folder: Path | None = None,
    program: Sequence[str] = ("-m", "router"),
    descriptors: Sequence[int] = (),
) -> Iterator[Launched]:
    """`python -m router` on a free port; killed at the end if the test did not end it. `flags` are
    Python's own; it is started in `folder`, with these `descriptors` open."""
    command = [sys.executable, *flags, *program, "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--health-seconds", "0.1", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        cwd=folder,
        pass_fds=descriptors,
    )
    said: list[str] = []
    port = threading.Event()
    found: list[int] = []

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if match := re.search(r"listening on \S+:(\d+)", line):
                found.append(int(match[1]))
                port.set()
        port.set()  # it ended

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert port.wait(60) and found, "".join(said)
        running = Launched(process, found[0], said)
        yield running
        for connection in running.connections:
            connection.close()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(WAIT_SECONDS)
        assert process.stderr is not None
        process.stderr.close()


@contextmanager
def router(
    *urls: str, place: Place | None = None, resolver: Resolver | None = None, **more: Any
) -> Iterator[Running]:
    """A router over these replicas (or over what `more` says), probing often."""
    values = {"host": "127.0.0.1", "port": 0, "health_seconds": 0.1, "scrape_seconds": 0.1}
    settings = Settings(replicas=tuple(urls), **{**values, "list_seconds": 0.05, **more})
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(WAIT_SECONDS)

    async def made() -> App:
        app = App(settings, place, rng=random.Random(7), resolver=resolver)
        try:
            await app.start()
        except BaseException:
            await app.close()
            raise
        return app

    running = None
    try:
        app = run(made())
        running = Running(app, loop, app.port)
        yield running
    finally:
        if running is not None:
            for connection in running.connections:
                connection.close()
            run(running.app.close())
            left = run(_tasks())
            assert left == [], f"tasks outlived the router: {left}"
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_SECONDS)
        loop.close()


async def _tasks() -> list[str]:
    await asyncio.sleep(0)
    current = asyncio.current_task()
    return [str(task) for task in asyncio.all_tasks() if task is not current]


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def is_replaced(supervisor: int, killed: int) -> bool:
    """Of two processes the one that was killed."""
    running = children(supervisor)
    return len(running) == 2 and killed not in running


def all_ready(sight: dict[str, list[dict[str, str]]]) -> bool:
    return {row["state"] for row in sight["replicas"]} == {"ready"}
