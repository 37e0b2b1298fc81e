"""Serve: the router as a Ray Serve application, each Serve replica of it one ingress.

    serve run router.serve:build namespace=/mnt/shared/kv ingresses=4

An ingress is the whole router of one process (`app`), listening on its node's loopback; Serve's
requests are passed to that port and the answers back, piece by piece, so that limits, decisions,
retries and cancelling are the relay's own, once. Ingresses know nothing of each other: each counts
its own requests and reads the others' from the replicas' metrics.

It must not know how a replica is chosen. Ray is imported only when an application is built.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from httptools import HttpResponseParser

from router.app import App
from router.cli import API_KEY_VARIABLE, REPLICA_KEY_VARIABLE, key_from
from router.relay.heads import HOP_BY_HOP, REQUEST_DROPPED
from router.settings import Settings, SettingsError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

LOOPBACK = "127.0.0.1"
READ_BYTES = 256 << 10
ONGOING_MAX = 10_000
"""Requests of one ingress at a time. Serve's usual 5 would queue them before the router sees any;
when one gets 429 is the router's to say (`slo_seconds`)."""
FIRST_REPLICA_SECONDS = 2.0
LOOK_SECONDS = 0.01
STOP_EXTRA_SECONDS = 5.0

OF_SERVE = frozenset(("host", "port", "workers", "api_key", "replica_key"))
"""Settings that are not arguments: Serve listens, and a key has no place among them."""
RESPONSE_DROPPED = HOP_BY_HOP | {b"transfer-encoding", b"date", b"server"}
"""Serve's own HTTP server writes these."""


class Lost(Exception):
    """The answer broke off; raised to Serve, which cuts the client's connection."""


@dataclass(frozen=True, slots=True)
class Options:
    """What an application is built of. Pickled, so keys are only named."""

    settings: Settings
    ingresses: int = 1
    api_key_file: str | None = None
    replica_key_file: str | None = None


def options_of(arguments: Mapping[str, str]) -> Options:
    """From `key=value` arguments: the settings by their names, `replicas` with commas, and the
    other fields of `Options`. Raises SettingsError."""
    given: dict[str, Any] = dict(arguments)
    mine = {field.name for field in fields(Options)} - {"settings"}
    known = {field.name for field in fields(Settings)} - OF_SERVE
    if unknown := sorted(given.keys() - mine - known):
        raise SettingsError(f"{unknown[0]}: not an argument; known are {sorted(mine | known)}")
    if "replicas" in given:
        given["replicas"] = [url for url in str(given["replicas"]).split(",") if url.strip()]
    try:
        chosen = {name: given[name] for name in given.keys() & known}
        settings = msgspec.convert({"host": LOOPBACK, "port": 0} | chosen, Settings, strict=False)
        options = msgspec.convert(
            {"settings": settings} | {name: given[name] for name in given.keys() & mine},
            Options,
            strict=False,
        )
    except msgspec.ValidationError as error:
        raise SettingsError(str(error)) from error
    if options.ingresses < 1:
        raise SettingsError(f"ingresses={options.ingresses}: at least 1")
    return options


def build(arguments: dict[str, str]) -> Any:
    """The Serve application."""
    from ray import serve

    options = options_of(arguments)
    here = Path(__file__).resolve().parents[1]
    deployment = serve.deployment(
        serve.ingress(Ingress(options))(),
        name="router",
        num_replicas=options.ingresses,
        max_ongoing_requests=ONGOING_MAX,
        graceful_shutdown_timeout_s=options.settings.drain_seconds + STOP_EXTRA_SECONDS,
        # Ray's workers look for modules where Ray was started; it fills in what its node has.
        ray_actor_options={"runtime_env": {"env_vars": {"PYTHONPATH": f"{here}:${{PYTHONPATH}}"}}},
    )
    return deployment.bind()


class Ingress:
    """An ASGI application: one router process."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._router: App | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            assert self._router is not None, "not started"
            await passed(self._router.port, scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _live(self, receive: Receive, send: Send) -> None:
        """From the start, done when somebody takes requests or a while has passed, to the end."""
        await receive()
        options = self._options
        try:
            settings = replace(
                options.settings,
                api_key=key_from(_path(options.api_key_file), API_KEY_VARIABLE),
                replica_key=key_from(_path(options.replica_key_file), REPLICA_KEY_VARIABLE),
            )
            self._router = App(settings)
            await self._router.start()
        except SettingsError as error:
            if self._router is not None:
                await self._router.close()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_REPLICA_SECONDS):
                while not self._router.members.ready():
                    await asyncio.sleep(LOOK_SECONDS)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._router.drain(settings.drain_seconds)
        await self._router.close()
        await send({"type": "lifespan.shutdown.complete"})


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


async def passed(port: int, scope: Scope, receive: Receive, send: Send) -> None:
    """One request, by a connection of its own: closing it is how the relay hears that the client
    left, and so whoever cancels this cancels the replica's work too."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    sending = asyncio.create_task(_sent(scope, receive, writer))
    answer = Answer(is_headless=scope["method"] == "HEAD")
    try:
        while not answer.is_complete:
            data = await reader.read(READ_BYTES)
            if not data:
                break
            for message in answer.messages(data):
                await send(message)
        if answer.ends_with_connection:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif not answer.is_complete and not sending.done():
            raise Lost("the answer broke off")
    finally:
        sending.cancel()
        writer.transport.abort()
        await asyncio.gather(sending, return_exceptions=True)


async def _sent(scope: Scope, receive: Receive, writer: asyncio.StreamWriter) -> None:
    """Writes the request; ends, and cuts the connection, when the client has left."""
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    path = path.removeprefix(quote(scope.get("root_path", "")).rstrip("/").encode()) or b"/"
    query = scope.get("query_string", b"")
    lines = [b"%b %b%b HTTP/1.1" % (scope["method"].encode(), path, b"?" + query if query else b"")]
    given = dict(scope["headers"])
    is_chunked = b"transfer-encoding" in given
    lines += [b"host: " + given.get(b"host", b"router"), b"connection: close"]
    if is_chunked:
        lines.append(b"transfer-encoding: chunked")
    elif b"content-length" in given:
        lines.append(b"content-length: " + given[b"content-length"])
    lines += [b"%b: %b" % each for each in scope["headers"] if each[0] not in REQUEST_DROPPED]
    writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
    try:
        while (message := await receive())["type"] == "http.request":
            body = message.get("body", b"")
            if body:
                writer.write(b"%x\r\n%b\r\n" % (len(body), body) if is_chunked else body)
            if is_chunked and not message.get("more_body", False):
                writer.write(b"0\r\n\r\n")
                is_chunked = False
            await writer.drain()
    except ConnectionError:
        return  # refused; the answer says why
    except BaseException:  # Serve's way of saying that the client left
        writer.transport.abort()
        raise
    writer.transport.abort()


class Answer:
    """An answer's bytes as ASGI's messages; httptools' callbacks fill it."""

    def __init__(self, *, is_headless: bool) -> None:
        self.is_complete = False
        self._is_headless = is_headless
        self._is_framed = False
        self._is_begun = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._messages: list[dict[str, Any]] = []
        self._parser = HttpResponseParser(self)

    @property
    def ends_with_connection(self) -> bool:
        """Its end is told by nothing else, and has not been."""
        return self._is_begun and not self._is_framed and not self.is_complete

    def messages(self, data: bytes) -> list[dict[str, Any]]:
        """What these bytes complete."""
        self._messages = []
        self._parser.feed_data(data)
        return self._messages

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, []
        if status < 200:
            return
        self._is_begun = True
        names = {name for name, _ in headers}
        self._is_framed = bool(names & {b"content-length", b"transfer-encoding"})
        kept = [each for each in headers if each[0] not in RESPONSE_DROPPED]
        self._messages.append({"type": "http.response.start", "status": status, "headers": kept})
        if self._is_headless:
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._messages.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        if self._is_begun and not self.is_complete:
            self.is_complete = True
            self._messages.append({"type": "http.response.body", "body": b"", "more_body": False})
