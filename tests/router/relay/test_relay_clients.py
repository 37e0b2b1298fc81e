"""Faults of clients: they leave at any moment, or do not read; and replicas that read slowly."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from router.relay.exchange import Attempt, Reply
from router.relay.limits import Limits
from tests.router.relay.harness import (
    CHUNKED,
    GET,
    HELLO,
    Line,
    ScriptedDirector,
    answering,
    calling,
    nowhere,
    over_sockets,
    post,
    relaying,
    replica,
    until,
)

CANCEL_SECONDS_MAX = 0.1 * 5
"""Promised within 0.1 s; a busy machine gets five times that."""
PART = CHUNKED + b"3\r\nabc\r\n"


async def hang(line: Line) -> None:
    await line.request()
    await line.gone()


@pytest.mark.parametrize("how", ["close", "reset"])
@over_sockets
async def test_a_client_gone_during_prefill_frees_the_replica_at_once(how: str) -> None:
    async with replica(hang) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay:
            for _ in range(20):
                async with calling(relay) as caller:
                    caller.send(post(b"question" * 1000))
                    await until(lambda: there.open == 1)
                    await until(lambda: bool(director.open))
                    if how == "reset":
                        caller.reset()
                async with asyncio.timeout(CANCEL_SECONDS_MAX):
                    await until(lambda: there.open == 0)
                assert director.open == 0
    assert director.transcripts == [["sent", "abandoned"]] * 20


@over_sockets
async def test_a_client_gone_in_mid_stream_frees_the_replica_at_once() -> None:
    async def script(line: Line) -> None:
        await line.request()
        line.send(PART)
        await line.gone()

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay:
            async with calling(relay) as caller:
                caller.send(post(b"question"))
                await caller.head()
            async with asyncio.timeout(CANCEL_SECONDS_MAX):
                await until(lambda: there.open == 0)
    assert director.transcripts == [["sent", "head 200", "first_byte", "abandoned"]]


@over_sockets
async def test_a_client_gone_while_the_decision_is_made_ends_it() -> None:
    director = ScriptedDirector(nowhere())
    director.gate = asyncio.Event()
    async with relaying(director) as relay:
        async with calling(relay) as caller:
            caller.send(post(b"question"))
            await until(lambda: bool(director.requests))
        await until(lambda: relay.tasks == 1)
    assert director.exchanges == []


@contextlib.contextmanager
def full_house() -> Iterator[Attempt]:
    """An attempt at a port whose queue is full: connecting neither succeeds nor fails."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port = listening.getsockname()[1]
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield Attempt("127.0.0.1", port)


@over_sockets
async def test_a_client_gone_while_connecting_ends_the_attempt() -> None:
    with full_house() as attempt:
        director = ScriptedDirector(attempt)
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"question"))
            await until(lambda: bool(director.exchanges))
    assert director.transcripts == [["abandoned"]]


@over_sockets
async def test_a_replica_that_does_not_let_us_in_is_given_up_after_its_time() -> None:
    with full_house() as attempt:
        async with replica() as healthy:
            director = ScriptedDirector(attempt, healthy.attempt())
            limits = Limits(connect_seconds=0.05)
            async with relaying(director, limits) as relay, calling(relay) as caller:
                caller.send(post(b"question"))
                assert (await caller.response())[1] == b"hello"
    assert director.transcripts[0][:2] == ["failed connect", "sent"]


@over_sockets
async def test_clients_gone_at_any_moment_of_connecting_leave_nothing() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay:
            for turns in range(60):
                async with calling(relay) as caller:
                    caller.send(post(b"question"))
                    for _ in range(turns % 12):
                        await asyncio.sleep(0)
                    caller.writer.write_eof()
                    with contextlib.suppress(ConnectionResetError):
                        await caller.rest()
            await until(lambda: relay.tasks <= 1)
            relay._common.pool.close()
            await until(lambda: relay.upstream_connections == 0)


@over_sockets
async def test_a_client_that_stops_reading_and_leaves_frees_the_replica_at_once() -> None:
    size = 64 << 20
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size)
    async with replica(answering(answer)) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
            caller.send(post(b"question"))
            await until(lambda: any(client.is_paused for client in relay._common.clients))
            caller.writer.write_eof()
            await until(lambda: there.open == 0)
            assert director.transcripts[0][-1] == "abandoned"


@over_sockets
async def test_a_slow_client_slows_the_replica_and_nothing_piles_up() -> None:
    sent = 0

    async def script(line: Line) -> None:
        nonlocal sent
        await line.request()
        line.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (256 << 20))
        for _ in range(256):
            line.send(bytes(1 << 20))
            await line.writer.drain()
            sent += 1

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
            caller.send(post(b"question"))
            last = -1
            while sent != last:  # Until it moves no more.
                last = sent
                await asyncio.sleep(0.1)
            (client,) = relay._common.clients
            assert client.is_paused
            assert client.transport.get_write_buffer_size() < 1 << 20
            assert sent < 64, "the kernel's buffers, and little of ours"
    assert director.transcripts[0][-1] == "abandoned"


@over_sockets
async def test_a_slow_client_that_reads_on_gets_everything() -> None:
    size = 32 << 20
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size)
    async with replica(answering(answer)) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            transport = caller.writer.transport
            transport.pause_reading()  # type: ignore[attr-defined]
            caller.send(post(b"question"))
            await until(lambda: any(client.is_paused for client in relay._common.clients))
            transport.resume_reading()  # type: ignore[attr-defined]
            assert len((await caller.response())[1]) == size
            caller.send(GET)
            assert len((await caller.response())[1]) == size
    assert there.accepted == 1


@pytest.mark.parametrize("ends", [False, True])
@over_sockets
async def test_own_answers_nobody_takes_wait_for_who_asked(ends: bool) -> None:
    count, page = 2000, bytes(100_000)
    director = ScriptedDirector(Reply(200, page))
    async with relaying(director) as relay, calling(relay) as caller:
        transport = caller.writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]
        caller.send(GET * count)
        if ends:
            caller.writer.write_eof()
        await until(lambda: any(client.is_paused for client in relay._common.clients))
        (client,) = relay._common.clients
        relay.sweep(relay._common.now() + Limits().idle_seconds + 1)
        assert client.transport.get_write_buffer_size() < 1 << 20
        assert len(director.requests) < count // 2, "the kernel's buffers, and little of ours"
        transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(count):
            assert (await caller.response())[1] == page
        if ends:
            assert await caller.rest() == b""
        else:
            caller.send(GET)
            assert (await caller.response())[1] == page


@over_sockets
async def test_who_takes_no_answers_is_not_read_on() -> None:
    director = ScriptedDirector(Reply(200, bytes(32 << 20)))
    async with relaying(director) as relay, calling(relay) as caller:
        transport = caller.writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]
        caller.send(GET)
        await until(lambda: any(client.is_paused for client in relay._common.clients))
        (client,) = relay._common.clients
        assert client._is_reading, "its leaving would be noticed"
        director.steps = (Reply(200, b"small"),)
        caller.send(GET[:-2])
        await until(lambda: client._reader.is_in_head)
        caller.send(GET[-2:] + GET * 50_000)
        await until(lambda: not client._is_reading)
        held = len(client._ready)
        await asyncio.sleep(0.01)
        assert (len(director.requests), len(client._ready)) == (1, held)
        assert held < 25_000, "what came in one piece"
        relay.sweep(relay._common.now() + Limits().idle_seconds + 1)
        assert relay.connections == 1
        caller.reset()
        relay.sweep(relay._common.now() + Limits().stall_seconds + 1)


@over_sockets
async def test_what_follows_an_answer_nobody_takes_is_refused_in_its_turn() -> None:
    page = bytes(32 << 20)
    director = ScriptedDirector(Reply(200, page))
    async with relaying(director) as relay, calling(relay) as caller:
        transport = caller.writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]
        caller.send(GET * 2 + b"nonsense\r\n\r\n" + bytes(8 << 20))
        await until(lambda: any(client.is_paused for client in relay._common.clients))
        transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(2):
            assert (await caller.response())[1] == page
        assert (await caller.rest()).startswith(b"HTTP/1.1 400 ")


@over_sockets
async def test_pipelined_answers_that_are_taken_late_all_come_in_order() -> None:
    size = 8 << 20

    async def script(line: Line) -> None:
        while True:
            _, body = await line.request()
            line.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + body * size)

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            transport = caller.writer.transport
            transport.pause_reading()  # type: ignore[attr-defined]
            caller.send(b"".join(post(b"%d" % index) for index in range(9)))
            await until(lambda: any(client.is_paused for client in relay._common.clients))
            transport.resume_reading()  # type: ignore[attr-defined]
            for index in range(9):
                assert (await caller.response())[1] == b"%d" % index * size


@over_sockets
async def test_a_client_that_never_reads_is_cut_off_in_the_end() -> None:
    size = 64 << 20
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size)
    async with replica(answering(answer)) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
            caller.send(post(b"question"))
            await until(lambda: any(client.is_paused for client in relay._common.clients))
            relay.sweep(relay._common.now() + Limits().stall_seconds + 1)
            await until(lambda: relay.connections == 0)
    assert director.transcripts[0][-1] == "abandoned"


@over_sockets
async def test_a_replica_that_reads_slowly_gets_the_whole_body() -> None:
    size = 32 << 20
    troubles: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, trouble: troubles.append(trouble))

    async def script(line: Line) -> None:
        head = await line.reader.readuntil(b"\r\n\r\n")
        assert b"content-length: %d\r\n" % size in head
        left = size
        while left:
            left -= len(await line.reader.read(1 << 18))
        line.send(HELLO)
        await line.gone()

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(bytes(size)))
            assert (await caller.response())[1] == b"hello"
    assert not troubles


@over_sockets
async def test_an_answer_before_the_whole_body_was_taken_is_passed_on() -> None:
    """The connection has unsent request bytes in it: it is not used again."""
    early = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno"

    async def script(line: Line) -> None:
        await line.reader.readuntil(b"\r\n\r\n")
        line.writer.transport.pause_reading()  # type: ignore[attr-defined]
        line.send(early)
        await line.writer.drain()
        await asyncio.sleep(0.05)
        line.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await line.gone()

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(bytes(32 << 20)))
            assert (await caller.response())[1] == b"no"
            await until(lambda: relay.upstream_connections == 0)
