"""Limits: everything that could grow has a bound, and reaching it is answered."""

from __future__ import annotations

import asyncio
import sys

import pytest

from router.relay.exchange import Reply
from router.relay.limits import Limits, connections_within
from tests.router.relay.harness import (
    CHUNKED,
    GET,
    HELLO,
    POST,
    Line,
    ScriptedDirector,
    ask,
    calling,
    over_sockets,
    post,
    relaying,
    replica,
    until,
)

OK = Reply(200, b"ok")


@over_sockets
async def test_a_body_too_large_is_refused_before_it_is_read() -> None:
    director = ScriptedDirector(OK)
    async with relaying(director, Limits(body_bytes_max=1000)) as relay:
        answer = await ask(relay, post(bytes(1001))[:-1001])
        assert answer.startswith(b"HTTP/1.1 413 ") and b"connection: close" in answer
    assert director.requests == []


@over_sockets
async def test_a_client_that_sends_on_gets_to_read_the_refusal() -> None:
    async with relaying(ScriptedDirector(OK), Limits(body_bytes_max=1000)) as relay:
        assert (await ask(relay, post(bytes(1 << 20)))).startswith(b"HTTP/1.1 413 ")


@over_sockets
async def test_a_refused_client_that_never_stops_sending_is_cut_off() -> None:
    async with (
        relaying(ScriptedDirector(OK), Limits(body_bytes_max=10)) as relay,
        calling(relay) as caller,
    ):
        caller.send(post(bytes(100)))
        await caller.head()
        relay.sweep(relay._common.now() + Limits().linger_seconds + 1)
        await until(lambda: relay.connections == 0)


@pytest.mark.parametrize("size", [1000, 1001])
@over_sockets
async def test_a_chunked_body_is_counted_as_it_comes(size: int) -> None:
    director = ScriptedDirector(OK)
    async with relaying(director, Limits(body_bytes_max=1000)) as relay:
        head = POST + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        answer = await ask(relay, head + b"%x\r\n%b\r\n0\r\n\r\n" % (size, bytes(size)))
        assert answer.startswith(b"HTTP/1.1 200 " if size == 1000 else b"HTTP/1.1 413 ")


@over_sockets
async def test_chunk_extensions_count_too() -> None:
    async with (
        relaying(ScriptedDirector(OK), Limits(body_bytes_max=1000)) as relay,
        calling(relay) as caller,
    ):
        caller.send(POST + b"transfer-encoding: chunked\r\n\r\n1;")
        for _ in range(10):
            caller.send(b"x" * 1000)
            await asyncio.sleep(0.001)
        assert (await caller.rest()).startswith(b"HTTP/1.1 413 ")


@over_sockets
async def test_all_bodies_together_have_a_limit() -> None:
    director = ScriptedDirector(OK)
    async with relaying(director, Limits(bodies_bytes_max=1500)) as relay, calling(relay) as one:
        one.send(post(bytes(1000))[:-1])
        await until(lambda: relay.bodies_bytes == 999)
        assert (await ask(relay, post(bytes(1000)))).startswith(b"HTTP/1.1 503 ")
        one.send(b"x")
        assert (await one.response())[1] == b"ok"


@over_sockets
async def test_a_head_that_grows_and_grows_is_refused() -> None:
    async with relaying(ScriptedDirector(OK)) as relay, calling(relay) as caller:
        caller.send(b"GET / HTTP/1.1\r\nhost: x\r\nx: ")
        for _ in range(40):
            caller.send(b"y" * 4096)
            await asyncio.sleep(0.001)
        assert (await caller.rest()).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("torn_at", [0, 10])
@over_sockets
async def test_a_pipelined_head_behind_a_large_body_is_not_too_large(torn_at: int) -> None:
    director = ScriptedDirector(OK)
    async with relaying(director) as relay, calling(relay) as caller:
        sent = post(bytes(100_000)) + GET[:20]
        caller.send(sent[:torn_at])
        await until(
            lambda: any(client._phase == (1 if torn_at else 0) for client in relay._common.clients)
        )
        caller.send(sent[torn_at:])
        assert (await caller.response())[1] == b"ok"
        caller.send(GET[20:])
        assert (await caller.response())[1] == b"ok"


@over_sockets
async def test_a_head_that_drips_is_ended() -> None:
    async with relaying(ScriptedDirector(OK)) as relay, calling(relay) as caller:
        caller.send(b"GET / HTTP/1.1\r\n")
        await until(lambda: any(client._phase == 1 for client in relay._common.clients))
        relay.sweep(relay._common.now() + Limits().head_seconds - 1)
        assert relay.connections == 1
        relay.sweep(relay._common.now() + Limits().head_seconds + 1)
        assert (await caller.rest()).startswith(b"HTTP/1.1 408 ")


@over_sockets
async def test_a_body_that_drips_is_ended() -> None:
    async with relaying(ScriptedDirector(OK)) as relay, calling(relay) as caller:
        caller.send(post(bytes(1 << 20))[: -(1 << 19)])
        await until(lambda: relay.bodies_bytes == 1 << 19)
        relay.sweep(relay._common.now() + Limits().body_seconds + 1)
        assert relay.bodies_bytes > 0, "half a mebibyte has earned it more time"
        relay.sweep(relay._common.now() + Limits().body_seconds + 33)
        assert (await caller.rest()).startswith(b"HTTP/1.1 408 ")


@over_sockets
async def test_an_idle_client_is_closed_in_the_end() -> None:
    async with relaying(ScriptedDirector(OK)) as relay, calling(relay) as caller:
        caller.send(GET)
        await caller.response()
        relay.sweep(relay._common.now() + Limits().idle_seconds - 1)
        assert relay.connections == 1
        relay.sweep(relay._common.now() + Limits().idle_seconds + 1)
        assert await caller.rest() == b""


@over_sockets
async def test_a_request_under_way_has_no_idle_limit() -> None:
    release = asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        await release.wait()
        line.send(CHUNKED + b"2\r\nok\r\n0\r\n\r\n")
        await line.gone()

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"q"))
            await until(lambda: bool(director.exchanges))
            relay.sweep(relay._common.now() + 100_000)
            release.set()
            assert (await caller.response())[1] == b"2\r\nok\r\n0\r\n\r\n"


@over_sockets
async def test_a_resting_replica_connection_is_closed_in_the_end() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(GET)
            await caller.response()
            relay.sweep(relay._common.now() + Limits().upstream_idle_seconds - 1)
            assert relay.upstream_connections == 1
            relay.sweep(relay._common.now() + Limits().upstream_idle_seconds + 1)
            await until(lambda: relay.upstream_connections == 0)
            caller.send(GET)
            assert (await caller.response())[1] == b"hello"


@over_sockets
async def test_one_client_too_many_is_told_so() -> None:
    async with (
        relaying(ScriptedDirector(OK), Limits(connections_max=2)) as relay,
        calling(relay) as one,
        calling(relay) as two,
    ):
        for caller in (one, two):
            caller.send(GET)
            await caller.response()
        assert (await ask(relay, b"")).startswith(b"HTTP/1.1 503 ")
        one.send(GET)
        assert (await one.response())[1] == b"ok"


@over_sockets
async def test_a_flood_of_clients_is_cut_and_takes_no_descriptors() -> None:
    limits = Limits(connections_max=1, refused_max=2)
    async with relaying(ScriptedDirector(OK), limits) as relay, calling(relay) as first:
        first.send(GET)
        await first.response()
        async with calling(relay) as second, calling(relay) as third:
            for refused in (second, third):
                assert (await refused.head()).startswith(b"HTTP/1.1 503 ")
            for _ in range(20):
                with pytest.raises(ConnectionResetError):
                    await ask(relay, b"")
            assert relay.connections <= 3
        first.send(GET)
        assert (await first.response())[1] == b"ok"


@over_sockets
async def test_a_client_with_too_much_waiting_is_not_read_on() -> None:
    director = ScriptedDirector(OK)
    director.gate = asyncio.Event()
    async with relaying(director, Limits(pipelined_max=4)) as relay, calling(relay) as caller:
        for _ in range(20):
            caller.send(GET)
            await asyncio.sleep(0.001)
        (client,) = relay._common.clients
        assert not client._is_reading and len(client._ready) < 15
        director.gate.set()
        for _ in range(20):
            assert (await caller.response())[1] == b"ok"


@over_sockets
async def test_2000_idle_connections_do_not_keep_others_from_being_served() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay:
            idle = []
            for _ in range(20):
                opened = [asyncio.open_connection("127.0.0.1", relay.port) for _ in range(100)]
                idle += await asyncio.gather(*opened)
            await until(lambda: relay.connections == 2000)
            async with calling(relay) as caller:
                for _ in range(50):
                    caller.send(post(b"q"))
                    assert (await caller.response())[1] == b"hello"
            relay.sweep(relay._common.now())
            for _, writer in idle:
                writer.close()


@over_sockets
async def test_draining_finishes_streams_and_takes_no_one_new() -> None:
    release = asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        line.send(CHUNKED + b"3\r\none\r\n")
        await release.wait()
        line.send(b"3\r\ntwo\r\n0\r\n\r\n")
        await line.gone()

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as busy, calling(relay) as idle:
            idle.send(b"")
            busy.send(post(b"q"))
            await busy.head()
            await until(lambda: relay.connections == 2)
            draining = asyncio.create_task(relay.drain(30.0))
            assert await idle.rest() == b""
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", relay.port)
            release.set()
            assert (await busy.rest()).endswith(b"two\r\n0\r\n\r\n")
            assert await draining == 0
    assert director.transcripts[0][-1] == "ended"


@over_sockets
async def test_an_answer_that_comes_while_draining_says_that_it_is_the_last() -> None:
    release = asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        await release.wait()
        line.send(HELLO)
        await line.gone()

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"q"))
            await until(lambda: bool(director.exchanges))
            draining = asyncio.create_task(relay.drain(30.0))
            await until(lambda: relay._common.is_draining)
            release.set()
            assert b"connection: close\r\n" in await caller.head()
            assert await caller.rest() == b"hello"
            assert await draining == 0


@over_sockets
async def test_draining_ends_at_its_deadline() -> None:
    async def script(line: Line) -> None:
        await line.request()
        await line.gone()

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"q"))
            await until(lambda: bool(director.exchanges))
            assert await relay.drain(0.01) == 1
    assert director.transcripts == [["sent", "abandoned"]]


@pytest.mark.parametrize(
    ("descriptors", "clients"),
    [(0, 1), (1024, 448), (4096, 1984), (1 << 20, 16_384), (sys.maxsize, 16_384)],
)
def test_half_of_the_descriptors_are_for_replicas(descriptors: int, clients: int) -> None:
    assert connections_within(descriptors) == clients
