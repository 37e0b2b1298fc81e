"""Replicas behind TLS, and one real server: uvicorn, which is what vLLM runs on."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import router.replicas
from router.fetch import FetchError, fetch
from router.relay.exchange import Attempt
from router.relay.resolver import Resolver
from router.relay.server import serve
from tests.router.relay.harness import (
    CHUNKED,
    HELLO,
    Replica,
    ScriptedDirector,
    answering,
    calling,
    over_sockets,
    post,
    relaying,
    until,
)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate for 127.0.0.1 and replica.test, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "replica")])
    today = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("replica.test")]
            ),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "replica.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.mark.parametrize("is_trusted", [True, False])
@over_sockets
async def test_a_replica_behind_tls_must_be_who_it_says(
    certificate: Path, is_trusted: bool
) -> None:
    stream = CHUNKED + b"3\r\nabc\r\n0\r\n\r\n"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    there = Replica(answering(stream, HELLO))
    server = await asyncio.start_server(there._serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    director = ScriptedDirector(Attempt("127.0.0.1", port, is_tls=True))
    trust = ssl.create_default_context(cafile=str(certificate) if is_trusted else None)
    relay = await serve(director, host="127.0.0.1", port=0, tls=trust)
    async with calling(relay) as caller:
        caller.send(post(b"q" * 100_000))
        head, body = await caller.response()
        if is_trusted:
            assert body == b"3\r\nabc\r\n0\r\n\r\n"
            caller.send(post(b"again"))
            assert (await caller.response())[1] == b"hello"
            assert there.accepted == 1 and there.requests[0][1] == b"q" * 100_000
        else:
            assert head.startswith(b"HTTP/1.1 502 ")
            assert director.transcripts == [["failed connect"]]
    await relay.close()
    server.close()
    await until(lambda: there.open == 0)


@pytest.mark.parametrize("host", ["replica.test", "other.test"])
@over_sockets
async def test_tls_asks_for_a_replicas_name_however_it_was_resolved(
    certificate: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both names lead to one address, which the certificate has too: the name decides."""
    asked_for: list[str] = []
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    context.sni_callback = lambda _line, name, _context: asked_for.append(name)
    there = Replica(answering(HELLO))
    server = await asyncio.start_server(there._serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    trust = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr("router.fetch.tls_context", lambda: trust)
    resolver = Resolver(look_up=lambda name: ["127.0.0.1", "127.0.0.1"])
    director = ScriptedDirector(Attempt(host, port, is_tls=True))
    relay = await serve(director, host="127.0.0.1", port=0, tls=trust, resolver=resolver)
    is_well = host == "replica.test"
    async with calling(relay) as caller:
        caller.send(post(b"q"))
        head, _ = await caller.response()
        assert head.startswith(b"HTTP/1.1 200 " if is_well else b"HTTP/1.1 502 ")
    probed = router.replicas.Replica("a:1", host, port, is_tls=True)
    probing = fetch(probed, "/health", resolver=resolver, deadline_seconds=20.0)
    if is_well:
        assert (await probing).body == b"hello"
    else:
        with pytest.raises(FetchError, match="certificate verify failed"):
            await probing
    assert asked_for == [host, host]  # a second address would have been asked no less
    await relay.close()
    server.close()
    await until(lambda: there.open == 0)


Scope = dict[str, Any]


async def app(
    scope: Scope,
    receive: Callable[[], Awaitable[Scope]],
    send: Callable[[Scope], Awaitable[None]],
) -> None:
    """Streams the request's body back in three events, with pauses between them."""
    assert scope["type"] == "http"
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(3):
        await asyncio.sleep(0.001)
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@over_sockets
async def test_streams_of_a_real_server_pass_and_its_connections_are_kept() -> None:
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    director = ScriptedDirector(Attempt("127.0.0.1", port))
    async with relaying(director) as relay, calling(relay) as caller:
        for size in (1, 1000, 3_000_000):
            caller.send(post(b"x" * size))
            _, body = await caller.response()
            assert body.count(b"x") == 3 * size
        assert relay.upstream_connections == 1
    server.should_exit = True
    await serving
