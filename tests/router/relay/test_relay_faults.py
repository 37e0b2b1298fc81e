"""Faults: replicas that die, hang or refuse at each stage; clients that leave or do not read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from router.relay.exchange import Attempt, Failure, Reply
from router.relay.limits import Limits
from tests.router.relay.harness import (
    CHUNKED,
    GET,
    HELLO,
    Line,
    Script,
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
COUNTED = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"
PART = CHUNKED + b"3\r\nabc\r\n"


def after_request(data: bytes, *, with_reset: bool) -> Script:
    """Takes a request, answers a part, dies."""

    async def script(line: Line) -> None:
        await line.request()
        line.send(data)
        await line.writer.drain()
        if with_reset:
            line.reset()

    return script


async def hang(line: Line) -> None:
    await line.request()
    await line.gone()


# -- before the head is passed on ---------------------------------------------------------------


@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("part", [b"", b"HTT", b"HTTP/1.1 200 OK\r\nconten", CHUNKED, COUNTED])
@over_sockets
async def test_a_replica_that_dies_before_its_head_is_replaced(
    part: bytes, with_reset: bool
) -> None:
    async with (
        replica(after_request(part, with_reset=with_reset)) as dying,
        replica() as healthy,
    ):
        director = ScriptedDirector(dying.attempt(), healthy.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"question"))
            assert (await caller.response())[1] == b"hello"
    first = ["sent", "head 200"] if part.endswith(b"\r\n\r\n") else ["sent"]
    if with_reset and director.transcripts[0][1] != "head 200":
        first = ["sent"]  # The reset overtook the head.
    later = ["failed closed", "sent", "head 200", "first_byte", "ended"]
    assert director.transcripts == [first + later]
    assert healthy.requests[0][1] == b"question"


@over_sockets
async def test_a_replica_that_is_not_there_is_replaced() -> None:
    async with replica() as healthy:
        director = ScriptedDirector(nowhere(), nowhere(), healthy.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"question"))
            assert (await caller.response())[1] == b"hello"
    assert director.transcripts[0][:3] == ["failed connect", "failed connect", "sent"]


@pytest.mark.parametrize("head", [b"", CHUNKED])
@over_sockets
async def test_a_replica_that_hangs_is_given_up_after_its_time(head: bytes) -> None:
    async def script(line: Line) -> None:
        await line.request()
        line.send(head)
        await line.gone()

    async with replica(script) as hanging, replica() as healthy:
        director = ScriptedDirector(hanging.attempt(first_byte_seconds_max=60.0), healthy.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"question"))
            wanted = ["sent", "head 200"] if head else ["sent"]
            await until(lambda: director.transcripts == [wanted])
            relay.sweep(relay._common.now() + 59.0)
            assert director.transcripts == [wanted]
            relay.sweep(relay._common.now() + 61.0)
            assert (await caller.response())[1] == b"hello"
            await until(lambda: hanging.open == 0)
    calls = [call for call in director.transcripts[0] if call != "head 200"]
    assert calls == ["sent", "failed timeout", "sent", "first_byte", "ended"]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\ncontent-length: 3\n\nabc",
        b"\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 700_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 4000,
        CHUNKED + b"5;" + b"a" * 700_000,
        CHUNKED + b"no chunk",
    ],
)
@over_sockets
async def test_what_is_no_answer_is_a_malformed_one(nonsense: bytes) -> None:
    async def script(line: Line) -> None:
        await line.request()
        line.send(nonsense)
        await line.gone()

    async with replica(script) as odd, replica() as healthy:
        director = ScriptedDirector(odd.attempt(), healthy.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(GET)
            assert (await caller.response())[1] == b"hello"
    calls = [call for call in director.transcripts[0] if call != "head 200"]
    assert calls[:3] == ["sent", f"failed {Failure.MALFORMED.value}", "sent"]


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
@over_sockets
async def test_an_error_passes_unless_the_director_wants_another_attempt(status: int) -> None:
    answer = b"HTTP/1.1 %d Odd\r\ncontent-length: 2\r\n\r\nno" % status
    async with replica(answering(answer)) as refusing, replica() as healthy:
        director = ScriptedDirector(refusing.attempt(), healthy.attempt(), retried=(429, 503))
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"question"))
            head, body = await caller.response()
    if status in (429, 503):
        assert body == b"hello" and healthy.requests[0][1] == b"question"
        assert director.transcripts[0][:3] == ["sent", f"head {status}", "sent"]
    else:
        assert head.startswith(b"HTTP/1.1 %d Odd\r\n" % status) and body == b"no"
        assert director.transcripts == [["sent", f"head {status}", "first_byte", "ended"]]


@over_sockets
async def test_when_no_attempt_is_left_the_director_answers() -> None:
    director = ScriptedDirector(nowhere(), Reply(503, b"nobody"))
    async with relaying(director) as relay, calling(relay) as caller:
        caller.send(post(b"question"))
        head, body = await caller.response()
        assert head.startswith(b"HTTP/1.1 503 ") and body == b"nobody"
        assert relay.bodies_bytes == 0


@over_sockets
async def test_attempts_end_even_if_the_director_never_gives_up() -> None:
    director = ScriptedDirector(*[nowhere()] * 50)
    async with relaying(director, Limits(attempts_max=3)) as relay, calling(relay) as caller:
        caller.send(post(b"question"))
        assert (await caller.response())[0].startswith(b"HTTP/1.1 502 ")
    assert director.transcripts == [["failed connect"] * 3 + ["abandoned"]]


@over_sockets
async def test_a_pooled_connection_that_was_closed_meanwhile_costs_nothing() -> None:
    """The replica closes after each answer without saying so: the next request meets the close."""

    async def script(line: Line) -> None:
        await line.request()
        line.send(HELLO)
        await line.request()  # Gets the next request's bytes, and closes without an answer.

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            for _ in range(3):
                caller.send(post(b"question"))
                assert (await caller.response())[1] == b"hello"
    assert [calls.count("failed closed") for calls in director.transcripts] == [0, 0, 0]
    assert director.transcripts[1] == ["sent", "sent", "head 200", "first_byte", "ended"]


@over_sockets
async def test_a_late_death_on_a_pooled_connection_is_a_failure_not_staleness() -> None:
    async with replica(answering(HELLO, then_close=False)) as there:

        async def second_dies(line: Line) -> None:
            await line.request()
            line.send(HELLO)
            await line.request()

        there.script = second_dies
        director = ScriptedDirector(there.attempt(), Reply(502, b"dead"))
        limits = Limits(stale_seconds=0.0)
        async with relaying(director, limits) as relay, calling(relay) as caller:
            caller.send(GET)
            await caller.response()
            caller.send(GET)
            assert (await caller.response())[1] == b"dead"
    assert director.transcripts[1] == ["sent", "failed closed"]


# -- after the head is passed on ----------------------------------------------------------------


@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("part", [PART, PART + b"5\r\nab", PART + b"2"])
@over_sockets
async def test_a_stream_that_breaks_off_is_seen_to_and_not_retried(
    part: bytes, with_reset: bool
) -> None:
    async with (
        replica(after_request(part, with_reset=with_reset)) as dying,
        replica() as healthy,
    ):
        director = ScriptedDirector(dying.attempt(), healthy.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"question"))
            got = await caller.rest()
    if not with_reset:  # A reset may overtake what was sent before it.
        assert got == part
        assert director.transcripts[0][-1] == "broken"
    assert b"0\r\n\r\n" not in got and b"hello" not in got
    assert healthy.requests == [] or with_reset


@over_sockets
async def test_a_counted_answer_that_stops_short_is_broken() -> None:
    part = COUNTED + b"half"
    async with replica(after_request(part, with_reset=False)) as dying:
        director = ScriptedDirector(dying.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"question"))
            assert await caller.rest() == part
    assert director.transcripts == [["sent", "head 200", "first_byte", "broken"]]


@over_sockets
async def test_an_answer_that_only_a_close_would_end_is_broken_off_by_a_reset() -> None:
    passed = asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        line.send(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await passed.wait()
        line.reset()

    async with replica(script) as dying:
        director = ScriptedDirector(dying.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"question"))
            await caller.head()
            assert await caller.reader.readexactly(4) == b"half"
            passed.set()
            with pytest.raises(ConnectionResetError):
                await caller.rest()
    assert director.transcripts[0][-1] == "broken"


@pytest.mark.parametrize("excess", [b"HTTP/1.1 200 OK\r\n\r\n", b"X", b"\r\n"])
@over_sockets
async def test_what_follows_an_answer_reaches_nobody(excess: bytes) -> None:
    async with replica(answering(HELLO + excess)) as odd:
        director = ScriptedDirector(odd.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            for _ in range(2):
                caller.send(GET)
                assert await caller.response() == (HELLO[:-5], b"hello")
    assert odd.accepted == 2, "such a connection is not used again"


@over_sockets
async def test_what_follows_a_chunked_answer_spoils_it() -> None:
    whole = PART + b"0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    async with replica(answering(whole)) as odd, replica() as healthy:
        director = ScriptedDirector(odd.attempt(), healthy.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(GET)
            assert await caller.response() == (HELLO[:-5], b"hello")
    assert director.transcripts[0][:3] == ["sent", "head 200", "failed malformed"]


@over_sockets
async def test_what_follows_the_end_of_a_stream_breaks_it_off() -> None:
    async def script(line: Line) -> None:
        await line.request()
        line.send(PART)
        await first.wait()
        line.send(b"0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await line.gone()

    first = asyncio.Event()
    async with replica(script) as odd:
        director = ScriptedDirector(odd.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(GET)
            await caller.head()
            first.set()
            assert await caller.rest() == b"3\r\nabc\r\n"
    assert director.transcripts[0][-1] == "broken"


@over_sockets
async def test_bytes_nobody_asked_for_close_a_resting_connection() -> None:
    async def script(line: Line) -> None:
        await line.request()
        line.send(HELLO)
        await line.writer.drain()
        await asyncio.sleep(0.01)  # Lets the answer go out on its own.
        line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison")
        await line.gone()

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        limits = Limits(upstream_idle_seconds=1000.0)
        async with relaying(director, limits) as relay, calling(relay) as caller:
            caller.send(GET)
            await caller.response()
            await until(lambda: relay.upstream_connections == 0)
            caller.send(GET)
            assert (await caller.response())[1] == b"hello"
    assert there.accepted == 2


# -- clients ------------------------------------------------------------------------------------


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
