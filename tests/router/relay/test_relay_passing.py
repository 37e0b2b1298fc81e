"""Passing on: what reaches the replica, what comes back, over real sockets.

Past 400 lines because what must pass unchanged, in both directions, is one list.
"""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from router.relay.exchange import Attempt, Reply
from tests.router.relay.harness import (
    CHUNKED,
    GET,
    HELLO,
    Line,
    ScriptedDirector,
    ScriptedExchange,
    answering,
    ask,
    calling,
    over_sockets,
    post,
    relaying,
    replica,
    until,
)

HEAD = b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n"


@over_sockets
async def test_an_exchange_hears_of_each_step_in_order() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"question"))
            head, body = await caller.response()
    assert (head[:15], body) == (b"HTTP/1.1 200 OK", b"hello")
    assert director.transcripts == [["sent", "head 200", "first_byte", "ended"]]
    assert director.bodies == [b"question"] and director.tails == [b"hello"]


@over_sockets
async def test_the_replica_gets_the_head_anew_and_the_body_as_it_was() -> None:
    async with replica() as there:
        attempt = there.attempt(
            path_prefix=b"/one",
            request_headers=((b"authorization", b"Bearer replica"), (b"x-new", b"1")),
        )
        async with relaying(ScriptedDirector(attempt)) as relay, calling(relay) as caller:
            fields = (b"Authorization: Bearer mine", b"X-Kept: yes", b"TE: trailers")
            named = (b"Connection: keep-alive, X-Named", b"X-Named: no", b"Keep-Alive: 5")
            caller.send(post(b"{}", *fields, *named))
            await caller.response()
    head, body = there.requests[0]
    assert head.split(b"\r\n") == [
        b"POST /one/v1/completions HTTP/1.1",
        b"host: 127.0.0.1:%d" % there.port,
        b"x-kept: yes",
        b"authorization: Bearer replica",
        b"x-new: 1",
        b"content-length: 2",
        b"",
        b"",
    ]
    assert body == b"{}"


@over_sockets
async def test_chunks_come_back_byte_for_byte() -> None:
    stream = b"4;ext=1\r\nabcd\r\n1\r\ne\r\n0\r\ntrailer: yes\r\n\r\n"

    async def script(line: Line) -> None:
        await line.request()
        for index in range(len(CHUNKED + stream)):
            line.send((CHUNKED + stream)[index : index + 1])
            await line.writer.drain()
        await line.gone()

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt(response_headers=((b"x-why", b"so"),)))
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"q"))
            head = await caller.head()
            body = await caller.reader.readexactly(len(stream))
            assert await caller.rest() == b""  # Not ended by the plain last chunk: closed.
    assert head == CHUNKED[:-2] + b"x-why: so\r\n\r\n"
    assert body == stream
    assert director.tails == [b"abcde"]


@pytest.mark.parametrize(
    "pieces", [[b"0", b"\r\n\r\n"], [b"0\r\n\r", b"\n"], [b"0", b"\r", b"\n", b"\r", b"\n"]]
)
@over_sockets
async def test_a_last_chunk_in_pieces_ends_the_answer_and_not_the_connection(
    pieces: list[bytes],
) -> None:
    got = asyncio.Event()

    async def script(line: Line) -> None:
        while True:
            await line.request()
            line.send(CHUNKED + b"5\r\nhello\r\n")
            for piece in pieces:
                await got.wait()
                got.clear()
                line.send(piece)

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(GET * 2)
            for _ in range(2):
                assert await caller.head() == CHUNKED
                await caller.reader.readexactly(len(b"5\r\nhello\r\n"))
                for piece in pieces:
                    got.set()
                    assert await caller.reader.readexactly(len(piece)) == piece
    assert there.accepted == 1 and len(there.requests) == 2


@over_sockets
async def test_each_chunk_is_passed_on_before_the_next_one_exists() -> None:
    passed = asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        line.send(CHUNKED + b"3\r\none\r\n")
        await passed.wait()
        line.send(b"3\r\ntwo\r\n0\r\n\r\n")
        await line.gone()

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"q"))
            await caller.head()
            assert await caller.reader.readexactly(8) == b"3\r\none\r\n"
            passed.set()
            assert await caller.reader.readexactly(13) == b"3\r\ntwo\r\n0\r\n\r\n"


@over_sockets
async def test_a_chunked_request_arrives_with_its_length() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            chunks = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\ntrailer: 1\r\n\r\n"
            head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            caller.send(head + chunks)
            await caller.response()
    head, body = there.requests[0]
    assert b"content-length: 5\r\n" in head and body == b"abcde"
    assert b"transfer-encoding" not in head and b"trailer" not in head


@over_sockets
async def test_connections_are_kept_on_both_sides() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            for _ in range(5):
                caller.send(GET)
                await caller.response()
            assert (relay.connections, relay.upstream_connections) == (1, 1)
    assert there.accepted == 1 and len(there.requests) == 5


@over_sockets
async def test_pipelined_requests_are_answered_in_order() -> None:
    first = asyncio.Event()

    async def script(line: Line) -> None:
        while True:
            _, body = await line.request()
            if body == b"0":
                await first.wait()
            line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n" + body)

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(b"".join(post(b"%d" % index) for index in range(8)))
            await asyncio.sleep(0)
            first.set()
            assert [(await caller.response())[1] for _ in range(8)] == [b"%d" % i for i in range(8)]


@over_sockets
async def test_a_flood_of_pipelined_requests_is_answered_without_reading_ahead() -> None:
    director = ScriptedDirector(Reply(200, b"ok"))
    async with relaying(director) as relay, calling(relay) as caller:
        caller.send(GET * 5000)
        for _ in range(5000):
            assert (await caller.response())[1] == b"ok"


@over_sockets
async def test_a_head_request_ends_with_its_head() -> None:
    async with replica(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            for _ in range(2):
                caller.send(HEAD)
                assert b"content-length: 5" in await caller.head()
    assert director.transcripts == [["sent", "head 200", "ended"]] * 2
    assert there.accepted == 1


@pytest.mark.parametrize("status", [204, 304])
@over_sockets
async def test_a_status_without_a_body_ends_with_its_head(status: int) -> None:
    answer = b"HTTP/1.1 %d Nothing\r\netag: x\r\n\r\n" % status
    async with replica(answering(answer)) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            for _ in range(2):
                caller.send(GET)
                assert await caller.head() == answer
    assert there.accepted == 1


@over_sockets
async def test_interim_answers_are_not_the_answer() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with replica(answering(interim + HELLO)) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(GET)
            assert await caller.response() == (HELLO[:-5], b"hello")


@over_sockets
async def test_an_answer_that_ends_with_its_connection_ends_the_clients() -> None:
    answer = b"HTTP/1.1 200 OK\r\n\r\nall of it"
    async with replica(answering(answer, then_close=True)) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(GET)
            assert b"connection: close" in await caller.head()
            assert await caller.rest() == b"all of it"
    assert director.transcripts[0][-1] == "ended"


@pytest.mark.parametrize("kept", [False, True], ids=["a new connection", "a kept one"])
@over_sockets
async def test_an_empty_answer_that_ends_with_its_connection_reaches_who_asked(kept: bool) -> None:
    """On a kept connection the client before must hear nothing of it."""
    empty = b"HTTP/1.1 200 OK\r\nserver: x\r\n\r\n"
    answers = (HELLO, empty) if kept else (empty,)
    async with replica(answering(*answers, then_close=True)) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as before, calling(relay) as caller:
            if kept:
                before.send(GET)
                assert (await before.response())[1] == b"hello"
            caller.send(GET)
            assert b"connection: close" in await caller.head()
            assert await caller.rest() == b""
            before.writer.write_eof()
            assert await before.rest() == b""
    assert there.accepted == 1 and director.transcripts[-1] == ["sent", "head 200", "ended"]


@over_sockets
async def test_an_http_1_0_client_gets_the_payload_without_chunks() -> None:
    stream = CHUNKED + b"3\r\nabc\r\n" * 50 + b"0\r\n\r\n"
    async with replica(answering(stream)) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(b"GET / HTTP/1.0\r\n\r\n")
            assert b"transfer-encoding" not in await caller.head()
            assert await caller.rest() == b"abc" * 50
    assert director.tails == [b"abc" * 50]


@over_sockets
async def test_a_client_that_waits_to_be_told_is_told() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            whole = post(b"body", b"Expect: 100-continue")
            caller.send(whole[:-4])
            assert await caller.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
            caller.send(b"body")
            assert (await caller.response())[1] == b"hello"
    assert b"expect" not in there.requests[0][0]


@over_sockets
async def test_being_told_waits_for_its_turn() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"one") + post(b"two", b"Expect: 100-continue")[:-3])
            assert (await caller.response())[1] == b"hello"
            assert await caller.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
            caller.send(b"two")
            assert (await caller.response())[1] == b"hello"
    assert director.bodies == [b"one", b"two"]


@pytest.mark.parametrize("framing", [b"content-length: 3", b"transfer-encoding: chunked"])
@over_sockets
async def test_an_upgrade_nobody_speaks_is_ignored_and_the_body_read(framing: bytes) -> None:
    body = b"abc" if b"length" in framing else b"3\r\nabc\r\n0\r\n\r\n"
    fields = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n"
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(b"POST / HTTP/1.1\r\nhost: x\r\n" + fields + framing + b"\r\n\r\n" + body)
            await caller.response()
            caller.send(post(b"next"))
            await caller.response()
    assert director.bodies == [b"abc", b"next"]
    assert b"upgrade" not in there.requests[0][0].lower()


@over_sockets
async def test_an_absolute_target_is_sent_as_a_path() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(b"GET http://elsewhere/a?b HTTP/1.1\r\nhost: elsewhere\r\n\r\n")
            await caller.response()
    assert there.requests[0][0].startswith(b"GET /a?b HTTP/1.1\r\n")


@over_sockets
async def test_a_body_of_40_mib_arrives_whole() -> None:
    body = os.urandom(1 << 20) * 40
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(body))
            await caller.response()
    assert there.requests[0][1] == body


@over_sockets
async def test_a_response_of_40_mib_arrives_whole() -> None:
    body = os.urandom(1 << 20) * 40
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with replica(answering(head + body)) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(GET)
            assert (await caller.response())[1] == body
    assert director.tails == [body[-4096:]]


@over_sockets
async def test_a_body_in_one_byte_chunks_is_held_in_few_pieces() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            caller.send(head + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
            await caller.response()
    assert director.bodies == [b"x" * 20_000]
    assert director.pieces[0] < 5_000
    assert there.requests[0][1] == b"x" * 20_000


@over_sockets
async def test_the_directors_body_is_sent_instead() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt(body=(b"an", b"other")))
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"one"))
            await caller.response()
    assert there.requests[0][1] == b"another"


@over_sockets
async def test_the_directors_own_answer_needs_no_replica() -> None:
    director = ScriptedDirector(Reply(429, b"later", ((b"retry-after", b"3"),)))
    async with relaying(director) as relay, calling(relay) as caller:
        for _ in range(2):
            caller.send(post(b"q"))
            head, body = await caller.response()
            assert head.startswith(b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\n")
            assert body == b"later"


@over_sockets
async def test_a_refused_head_is_answered_before_its_body_is_read() -> None:
    director = ScriptedDirector(Reply(200))
    director.refusal = Reply(401, b"who?")
    async with relaying(director) as relay, calling(relay) as caller:
        caller.send(post(b"x" * 1000)[:-1000])
        assert (await caller.rest()).startswith(b"HTTP/1.1 401 Unauthorized\r\n")
    assert director.requests == []


@pytest.mark.parametrize(
    ("refused", "line"),
    [(HEAD, b"HTTP/1.1 401 "), (HEAD.replace(b"host:", b"host :"), b"HTTP/1.1 400 ")],
)
@over_sockets
async def test_a_refused_head_request_is_answered_by_a_head_alone(
    refused: bytes, line: bytes
) -> None:
    director = ScriptedDirector(Reply(204))
    director.refusal = Reply(401, b"who?")
    async with relaying(director) as relay:
        answer = await ask(relay, refused)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(line) and b"content-length: " in head and body == b""


@over_sockets
async def test_what_is_refused_after_a_head_request_is_told_why() -> None:
    director = ScriptedDirector(Reply(204))
    async with relaying(director) as relay, calling(relay) as caller:
        caller.send(HEAD + b"nonsense\r\n\r\n")
        assert (await caller.head()).startswith(b"HTTP/1.1 204 ")
        assert b"not well-formed" in (await caller.response())[1]


@over_sockets
async def test_a_decision_may_take_its_time() -> None:
    async with replica() as there:
        director = ScriptedDirector(there.attempt())
        director.gate = asyncio.Event()
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(post(b"q"))
            while not director.requests:
                await asyncio.sleep(0.001)
            director.gate.set()
            assert (await caller.response())[1] == b"hello"


@over_sockets
async def test_a_director_that_fails_is_a_500_and_the_next_request_is_served() -> None:
    director = ScriptedDirector(Reply(200, b"ok"))
    async with relaying(director) as relay, calling(relay) as caller:
        director.steps = ()
        caller.send(GET)
        assert (await caller.response())[0].startswith(b"HTTP/1.1 500 ")
        director.steps = (Reply(200, b"ok"),)
        caller.send(GET)
        assert (await caller.response())[1] == b"ok"


class Mistaken(ScriptedExchange):
    """Raises at one of its steps."""

    step = ""

    def _note(self, call: str, *, is_last: bool = False) -> None:
        super()._note(call, is_last=is_last)
        if call.startswith(self.step):
            raise ArithmeticError("a mistake of ours")


@pytest.mark.parametrize("step", ["head", "first_byte", "ended", "broken", "failed"])
@over_sockets
async def test_an_exchange_that_fails_costs_no_answer(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mistaken, "step", step)
    monkeypatch.setattr("tests.router.relay.harness.ScriptedExchange", Mistaken)
    torn = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel"
    answer = {"broken": torn, "failed": b""}.get(step, HELLO)
    async with replica(answering(answer, then_close=True)) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(GET)
            if step == "failed":
                assert (await caller.head()).startswith(b"HTTP/1.1 500 ")
                director.open -= 1  # it failed before it could count itself
            elif step == "broken":
                assert (await caller.rest()).endswith(b"hel")
            else:
                assert (await caller.response())[1] == b"hello"
                caller.send(GET)  # nor the connection
                assert (await caller.response())[1] == b"hello"


@over_sockets
async def test_a_client_that_leaves_an_exchange_that_fails_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Mistaken, "step", "abandoned")
    monkeypatch.setattr("tests.router.relay.harness.ScriptedExchange", Mistaken)
    async with replica(Line.gone) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay:
            async with calling(relay) as caller:
                caller.send(GET)
                await until(lambda: there.accepted == 1)
            await until(lambda: relay.connections == 0)
            assert relay.tasks == 1


@over_sockets
async def test_neither_side_waits_for_small_packets_to_fill() -> None:
    async with replica() as there:
        director = ScriptedDirector(Attempt("127.0.0.1", there.port))
        async with relaying(director) as relay, calling(relay) as caller:
            caller.send(GET)
            await caller.response()
            common = relay._common
            transports = [next(iter(common.clients)).transport]
            transports += [upstream.transport for upstream in common.pool._open]
            assert len(transports) == 2
            for transport in transports:
                sock = transport.get_extra_info("socket")
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@over_sockets
async def test_a_kept_connection_takes_every_kind_of_answer_after_every_other() -> None:
    chunks = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    chunked = CHUNKED + chunks
    split = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nseve"

    async def script(line: Line) -> None:
        for answer in (chunked, HELLO, chunked, split, chunked, chunked):
            await line.request()
            line.send(answer)
            if answer is split:
                await line.writer.drain()
                await asyncio.sleep(0)
                line.send(b"n!!")

    async with replica(script) as there:
        director = ScriptedDirector(there.attempt())
        async with relaying(director) as relay, calling(relay) as caller:
            bodies = []
            for _ in range(5):
                caller.send(post(b"q"))
                bodies.append((await caller.response())[1])
            async with calling(relay) as old:  # of HTTP/1.0: gets no chunks
                old.send(b"GET / HTTP/1.0\r\nhost: a\r\n\r\n")
                rest = await old.rest()
        lines = there.accepted
    assert bodies == [chunks, b"hello", chunks, b"seven!!", chunks]
    assert rest.endswith(b"\r\n\r\nabcde") and lines == 1
