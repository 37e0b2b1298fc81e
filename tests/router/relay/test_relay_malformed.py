"""Malformed requests and smuggling: refused, and nothing of them reaches a replica.

Then a fuzzer: mutated requests in random pieces. Whatever reaches the replica is read by h11, an
HTTP implementation that shares no line with ours, and must be whole requests the director saw.
"""

from __future__ import annotations

import asyncio
import random

import h11
import pytest

from tests.router.relay.harness import (
    GET,
    HELLO,
    POST,
    ScriptedDirector,
    ask,
    calling,
    over_sockets,
    post,
    relaying,
    replica,
)

HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKS = b"0\r\n\r\n" + HIDDEN

SMUGGLED = {
    "length and chunks": POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS,
    "chunks and length": POST + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n" + CHUNKS,
    "two lengths": POST + b"content-length: 0\r\ncontent-length: 33\r\n\r\n" + HIDDEN,
    "the same length twice": POST + b"content-length: 4\r\ncontent-length: 4\r\n\r\nbody",
    "a list of lengths": POST + b"content-length: 4, 4\r\n\r\nbody",
    "a signed length": POST + b"content-length: +4\r\n\r\nbody",
    "a negative length": POST + b"content-length: -4\r\n\r\nbody",
    "a hexadecimal length": POST + b"content-length: 0x4\r\n\r\nbody",
    "a length with a space in it": POST + b"content-length: 1 2\r\n\r\nbody",
    "an empty length": POST + b"content-length:\r\n\r\nbody",
    "an overflowing length": POST + b"content-length: 18446744073709551620\r\n\r\nbody",
    "an unknown coding": POST + b"transfer-encoding: xchunked\r\n\r\n" + CHUNKS,
    "identity": POST + b"transfer-encoding: identity\r\n\r\n" + CHUNKS,
    "two codings": POST + b"transfer-encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "chunked twice": POST + b"transfer-encoding: chunked, chunked\r\n\r\n" + CHUNKS,
    "chunked in two fields": POST + b"transfer-encoding: chunked\r\n" * 2 + b"\r\n" + CHUNKS,
    "chunked, not last": POST + b"transfer-encoding: chunked, gzip\r\n\r\n" + CHUNKS,
    "a quoted coding": POST + b'transfer-encoding: "chunked"\r\n\r\n' + CHUNKS,
    "a vertical tab": POST + b"transfer-encoding:\x0bchunked\r\n\r\n" + CHUNKS,
    "space before the colon": POST + b"transfer-encoding : chunked\r\n\r\n" + CHUNKS,
    "a field that starts with space": POST + b" transfer-encoding: chunked\r\n\r\n" + CHUNKS,
    "a folded field": POST + b"x: y\r\n transfer-encoding: chunked\r\n\r\n" + CHUNKS,
    "a folded coding": POST + b"transfer-encoding:\r\n chunked\r\n\r\n" + CHUNKS,
    "bare LF after a field": POST + b"x: y\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS,
    "bare LF everywhere": b"POST / HTTP/1.1\nhost: x\ncontent-length: 4\n\nbody",
    "bare CR in a field": POST + b"x: y\rtransfer-encoding: chunked\r\n\r\n" + CHUNKS,
    "NUL in a field": POST + b"x: y\0\r\n\r\n",
    "NUL in a name": POST + b"x\0: y\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS,
    "bare LF after a chunk's size": POST
    + b"transfer-encoding: chunked\r\n\r\n4\nbody\r\n"
    + CHUNKS,
    "bare LF after a chunk": POST + b"transfer-encoding: chunked\r\n\r\n4\r\nbody\n" + CHUNKS,
    "a chunk longer than it says": POST
    + b"transfer-encoding: chunked\r\n\r\n3\r\nbody\r\n"
    + CHUNKS,
    "0x before a chunk's size": POST
    + b"transfer-encoding: chunked\r\n\r\n0x4\r\nbody\r\n"
    + CHUNKS,
    "a signed chunk size": POST + b"transfer-encoding: chunked\r\n\r\n+4\r\nbody\r\n" + CHUNKS,
    "an overflowing chunk size": POST
    + b"transfer-encoding: chunked\r\n\r\n10000000000000004\r\nbody\r\n"
    + CHUNKS,
    "space after a chunk's size": POST
    + b"transfer-encoding: chunked\r\n\r\n4 \r\nbody\r\n"
    + CHUNKS,
    "no chunk's size": POST + b"transfer-encoding: chunked\r\n\r\n\r\nbody\r\n" + CHUNKS,
    "two hosts": b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
}
MALFORMED = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nhost: x\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nhost: x\r\n\r\n",
    "no protocol": b"GET / \r\nhost: x\r\n\r\n",
    "a method nobody knows": b"EXPLODE / HTTP/1.1\r\nhost: x\r\n\r\n",
    "a lower-case method": b"get / HTTP/1.1\r\nhost: x\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "a tunnel": b"CONNECT elsewhere:443 HTTP/1.1\r\nhost: elsewhere:443\r\n\r\nhello",
    "an unknown expectation": POST + b"expect: 200-ok\r\ncontent-length: 0\r\n\r\n",
    "a target that is no path": b"GET elsewhere HTTP/1.1\r\nhost: x\r\n\r\n",
    "a foreign scheme": b"GET gopher://x/ HTTP/1.1\r\nhost: x\r\n\r\n",
    "NUL in the target": b"GET /\0 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a tab in the target": b"GET /\ta HTTP/1.1\r\nhost: x\r\n\r\n",
    "an empty name": b"GET / HTTP/1.1\r\nhost: x\r\n: y\r\n\r\n",
    "a name with a space": b"GET / HTTP/1.1\r\nhost: x\r\na b: y\r\n\r\n",
    "a name beyond ASCII": b"GET / HTTP/1.1\r\nhost: x\r\n\xe9: y\r\n\r\n",
    "a line without a colon": b"GET / HTTP/1.1\r\nhost: x\r\nnonsense\r\n\r\n",
    "an escape in a field": b"GET / HTTP/1.1\r\nhost: x\r\nx: \x1b[2J\r\n\r\n",
    "a long target": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "many fields": b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 300 + b"\r\n",
    "long fields": b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: %b\r\n" % (b"y" * 1000) * 80 + b"\r\n",
}


@pytest.mark.parametrize("name", [*SMUGGLED, *MALFORMED])
@over_sockets
async def test_it_is_refused_and_reaches_nobody(name: str) -> None:
    data = (SMUGGLED | MALFORMED)[name]
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay:
            answer = await ask(relay, data)
            async with calling(relay) as caller:
                caller.send(GET)
                assert (await caller.response())[1] == b"hello", "others are served"
    status = int(answer.split(b" ", 2)[1])
    assert status in (400, 405, 417, 431, 505), answer
    assert b"connection: close" in answer and answer.count(b"HTTP/1.1") == 1
    assert len(there.requests) == 1 and there.requests[0][0].startswith(b"GET /v1/models ")


@pytest.mark.parametrize("name", ["two lengths", "a chunk longer than it says", "TLS"])
@over_sockets
async def test_what_came_before_it_is_answered_first(name: str) -> None:
    data = (SMUGGLED | MALFORMED)[name]
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay:
            answer = await ask(relay, post(b"good") + data)
    assert answer.startswith(HELLO + b"HTTP/1.1 400 Bad Request\r\n")
    assert [body for _, body in there.requests] == [b"good"]


@over_sockets
async def test_what_a_connection_field_names_cannot_change_the_framing() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"body", b"Connection: content-length, host, x-a", b"x-a: 1"))
            await caller.response()
    head, body = there.requests[0]
    assert b"content-length: 4\r\n" in head and b"host: " in head and body == b"body"
    assert b"x-a" not in head


@over_sockets
async def test_a_body_that_looks_like_a_request_stays_a_body() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(HIDDEN))
            await caller.response()
            caller.send(GET)
            await caller.response()
    assert [body for _, body in there.requests] == [HIDDEN, b""]


# -- the fuzzer ---------------------------------------------------------------------------------

GOOD = [
    GET,
    post(b'{"model":"m"}', b"content-type: application/json"),
    POST + b"transfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\ntrailer: x\r\n\r\n",
    post(b"x", b"connection: upgrade, te", b"upgrade: h2c", b"te: trailers"),
    b"GET http://h/p?q HTTP/1.0\r\nhost: h\r\nconnection: keep-alive\r\n\r\n",
]
SEEDS = [*GOOD * 20, *SMUGGLED.values()]
INSERTS = [b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b":", b"0", b"\xff", b"chunked", b",", b";"]


def mutated(rng: random.Random) -> bytes:
    """One to three requests, each with up to three changes."""
    data = bytearray(b"".join(rng.choice(SEEDS) for _ in range(rng.randint(1, 3))))
    for _ in range(rng.randint(0, 3)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at:at] = rng.choice(INSERTS)
            case 1:
                del data[at : at + rng.randint(1, 4)]
            case 2:
                data[at] = rng.randrange(256)
            case _:
                end = at + rng.randint(1, 40)
                data[at:at] = data[at:end]
    return bytes(data)


def read_by_h11(stream: bytes) -> list[tuple[bytes, bytes]]:
    """The requests in a stream of bytes: targets and bodies. Anything left over is an error."""
    found = []
    while stream:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        connection.receive_data(stream)
        request = connection.next_event()
        assert isinstance(request, h11.Request), request
        body = b""
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            assert isinstance(event, h11.Data), event
            body += event.data
        found.append((bytes(request.target), body))
        stream = connection.trailing_data[0]
    return found


@pytest.mark.parametrize("seed", range(8))
@over_sockets
async def test_whatever_comes_only_whole_requests_reach_a_replica(seed: int) -> None:
    rng = random.Random(seed)
    print("seed", seed)
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay:
            for _ in range(150):
                data = mutated(rng)
                async with calling(relay) as caller:
                    cut = rng.randrange(len(data) + 1)
                    caller.send(data[:cut])
                    await asyncio.sleep(0)
                    caller.send(data[cut:] + post(b"end", b"connection: close"))
                    try:
                        # A body may have swallowed the last request: then nobody closes.
                        answer = await asyncio.wait_for(caller.rest(), 0.1)
                    except (ConnectionResetError, TimeoutError):
                        answer = b""
                    assert not answer or answer.startswith(b"HTTP/1.1 "), data
    seen = sorted(
        (request.target, body)
        for request, body in zip(director.requests, director.bodies, strict=True)
    )
    arrived = sorted(found for line in there.lines for found in read_by_h11(bytes(line.seen)))
    assert len(arrived) > 30
    for found in arrived:
        assert found in seen
