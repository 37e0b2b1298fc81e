"""Faults of replicas: they die, hang, refuse or talk nonsense, at each stage of an answer."""

from __future__ import annotations

import asyncio
import socket

import pytest

from router.relay.exchange import Attempt, Failure, Reply, Where
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


def _at(port: int) -> Where:
    return "127.0.0.1", port, False, b""


@pytest.mark.parametrize("head", [b"", CHUNKED])
@over_sockets
async def test_a_replica_that_is_given_up_keeps_nobody_waiting(head: bytes) -> None:
    async def script(line: Line) -> None:
        await line.request()
        line.send(head)
        await line.gone()

    async with replica(script) as hanging, replica() as healthy:
        director = ScriptedDirector(hanging.attempt(), healthy.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"question"))
            wanted = ["sent", "head 200"] if head else ["sent"]
            await until(lambda: director.transcripts == [wanted])
            beside = ("127.0.0.1", hanging.port, False, b"/another")
            assert not relay.waits(beside) and relay.give_up(beside, "down") == 0
            assert relay.give_up(_at(healthy.port), "down") == 0
            assert relay.waits(_at(hanging.port))
            assert relay.give_up(_at(hanging.port), "down") == 1
            assert not relay.waits(_at(hanging.port))
            assert (await caller.response())[1] == b"hello"
            await until(lambda: hanging.open == 0)
    calls = [call for call in director.transcripts[0] if call != "head 200"]
    assert calls == ["sent", "failed timeout", "sent", "first_byte", "ended"]


@over_sockets
async def test_a_connection_that_is_still_being_made_is_given_up_too() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # no room for another
            async with replica() as healthy:
                director = ScriptedDirector(Attempt("127.0.0.1", port), healthy.attempt())
                async with relaying(director) as relay, calling(relay) as caller:
                    caller.send(post(b"question"))
                    await until(lambda: relay.tasks == 2)
                    assert relay.give_up(_at(port), "down") == 1
                    assert (await caller.response())[1] == b"hello"
    assert director.transcripts[0][:2] == ["failed connect", "sent"]


@over_sockets
async def test_an_answer_that_has_begun_is_not_given_up() -> None:
    go_on = asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        line.send(PART)
        await go_on.wait()
        line.send(b"0\r\n\r\n")

    async with replica(script) as slow:
        director = ScriptedDirector(slow.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"question"))
            await until(lambda: ["sent", "head 200", "first_byte"] in director.transcripts)
            assert relay.give_up(_at(slow.port), "down") == 0
            go_on.set()
            assert (await caller.response())[1] == b"3\r\nabc\r\n0\r\n\r\n"
    assert director.transcripts == [["sent", "head 200", "first_byte", "ended"]]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc",
        b"HTTP/1.1 099 Odd\r\ncontent-length: 0\r\n\r\n",
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


@over_sockets
async def test_what_must_not_be_repeated_goes_out_once_and_on_a_new_connection() -> None:
    async def script(line: Line) -> None:
        await line.request()
        line.send(HELLO)
        await line.request()

    async def dies(line: Line) -> None:
        await line.request()

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt(is_repeatable=False), Reply(502, b"dead"))
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"one"))
            assert (await caller.response())[1] == b"hello"
            assert relay.upstream_connections == 1, "there is one to be used again"
            there.script = dies
            caller.send(post(b"two"))
            assert (await caller.response())[1] == b"dead"
    assert [[body for _, body in line.requests] for line in there.lines] == [[b"one"], [b"two"]]
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
