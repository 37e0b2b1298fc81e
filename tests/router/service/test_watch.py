"""Watching replicas that answer what no replica should: they are watched all the same."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import uvloop

from router.fetch import FetchError, fetch
from router.fleet import Fleet
from router.members import Members
from router.relay.resolver import Resolver
from router.replicas import Replica
from router.watch import Rhythm, Watch

OFTEN = Rhythm(health_seconds=0.01, scrape_seconds=0.01)
WELL = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
UPGRADE = b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"


def whole(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % len(body) + body


@asynccontextmanager
async def replica(answer: Callable[[bytes], bytes | None]) -> AsyncIterator[Replica]:
    """Answers each path with bytes, or with nothing while the connection lasts."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        data = answer(head.split()[1])
        writer.write(await reader.read() if data is None else data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Replica(f"127.0.0.1:{port}", "127.0.0.1", port)
    finally:
        server.close()


async def is_watched_after(
    answer: Callable[[bytes], bytes | None],
    rhythm: Rhythm = OFTEN,
    awaited: Sequence[bytes] = (b"/health",),
) -> Members:
    """Watches a replica that answers so, until it was asked for each of these some times."""
    asked: Counter[bytes] = Counter()

    def counted(path: bytes) -> bytes | None:
        asked[path] += 1
        return answer(path)

    fleet = Fleet(rng=random.Random(1))
    members = Members(fleet)
    async with replica(counted) as there:
        members.apply({there.id: there})
        watch = Watch(
            members, fleet, rhythm, now=asyncio.get_running_loop().time, resolver=Resolver()
        )
        watch.follow()
        try:
            async with asyncio.timeout(20):
                while any(asked[path] < 5 for path in awaited):
                    await asyncio.sleep(0.001)
        finally:
            await watch.stop()
    return members


@pytest.mark.parametrize(
    "metrics",
    [
        b"vllm:num_requests_waiting 1e308\n" * 3,
        b'vllm:cache_config_info{num_gpu_blocks="' + b"9" * 5000 + b'",block_size="16"} 1\n',
        b"vllm:num_requests_waiting -5\nvllm:kv_cache_usage_perc -inf\n",
    ],
)
def test_absurd_numbers_end_no_watch(metrics: bytes) -> None:
    def answer(path: bytes) -> bytes:
        return whole(metrics) if path == b"/metrics" else WELL

    assert len(uvloop.run(is_watched_after(answer)).ready()) == 1


def test_an_upgrade_nobody_asked_for_is_a_failed_probe() -> None:
    members = uvloop.run(is_watched_after(lambda path: UPGRADE))
    (member,) = members
    assert "health check failed" in member.trouble and not members.ready()


def test_a_replica_that_ends_in_the_midst_of_its_answers_head_is_not_well() -> None:
    members = uvloop.run(is_watched_after(lambda path: b"HTTP/1.1 200 OK\r\ncontent-len"))
    (member,) = members
    assert "closed before an answer" in member.trouble and not members.ready()


@pytest.mark.parametrize(
    "framing", [b"content-length: 99\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n1f\r\n"]
)
def test_numbers_cut_short_are_none(framing: bytes) -> None:
    """Of twelve requests that wait one digit may have come."""
    page = b"HTTP/1.1 200 OK\r\n" + framing + b"vllm:num_requests_waiting 1"

    async def ask() -> None:
        async with replica(lambda path: page) as there:
            await fetch(there, "/metrics", resolver=Resolver(), deadline_seconds=20.0)

    with pytest.raises(FetchError, match="ended early"):
        uvloop.run(ask())


def test_an_answer_that_ends_with_its_connection_is_one() -> None:
    async def ask() -> bytes:
        async with replica(lambda path: b"HTTP/1.1 200 OK\r\n\r\nall of it") as there:
            return (await fetch(there, "/metrics", resolver=Resolver(), deadline_seconds=20.0)).body

    assert uvloop.run(ask()) == b"all of it"


def test_models_without_a_name_are_none() -> None:
    entries = [{"id": ["x"]}, {"id": None}, {}, "x", {"id": "m"}]
    body = json.dumps({"data": entries}).encode()

    def answer(path: bytes) -> bytes:
        return whole(body) if path == b"/v1/models" else WELL

    members = uvloop.run(is_watched_after(answer))
    assert [entry["id"] for entry in members.merged_models()] == ["m"]
    assert members.without("other") == frozenset()


def test_models_are_asked_for_whenever_a_replica_is_well_again() -> None:
    """It may be another engine that listens there now."""
    probes = itertools.count(1)

    def answer(path: bytes) -> bytes:
        if path == b"/health":
            return WELL if next(probes) % 8 else b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n"
        return whole(b'{"data": [{"id": "m"}]}')

    uvloop.run(is_watched_after(answer, awaited=(b"/v1/models",)))


def test_a_mistake_of_ours_ends_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(page: bytes) -> None:
        raise AssertionError("a mistake")

    monkeypatch.setattr("router.watch.scraped", broken)
    assert len(uvloop.run(is_watched_after(lambda path: WELL)).ready()) == 1


PATIENT = Rhythm(health_seconds=0.01, scrape_seconds=0.01, health_deadline_seconds=600.0)


@pytest.mark.parametrize("path", [b"/metrics", b"/v1/models"])
def test_no_probe_waits_for_another_answer(path: bytes) -> None:
    def answer(asked: bytes) -> bytes | None:
        return None if asked == path else WELL

    others = [b"/health", b"/metrics"]
    awaited = [other for other in others if other != path]
    assert len(uvloop.run(is_watched_after(answer, PATIENT, awaited)).ready()) == 1


def test_metrics_wait_for_no_probe() -> None:
    probes: list[bytes] = []

    def answer(asked: bytes) -> bytes | None:
        probes.extend([asked] if asked == b"/health" else [])
        return None if asked == b"/health" and len(probes) > 1 else WELL

    uvloop.run(is_watched_after(answer, PATIENT, [b"/metrics"]))
    assert len(probes) == 2


def test_models_are_asked_for_once_at_a_time() -> None:
    """However many clients ask, and whoever of them leaves meanwhile."""
    asked = 0

    async def ask() -> None:
        nonlocal asked
        hold = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            head = await reader.readuntil(b"\r\n\r\n")
            asked += b"/v1/models" in head
            await hold.wait()
            writer.write(whole(b'{"data":[{"id":"m"}]}'))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        fleet = Fleet(rng=random.Random(1))
        members = Members(fleet)
        members.apply({"a:1": Replica("a:1", "127.0.0.1", port)})
        members.probed("a:1", "", 0.0)
        watch = Watch(
            members, fleet, OFTEN, now=asyncio.get_running_loop().time, resolver=Resolver()
        )
        waiting = [asyncio.create_task(watch.refresh_models()) for _ in range(20)]
        while not asked:
            await asyncio.sleep(0.001)
        waiting[0].cancel()
        await asyncio.sleep(0)
        hold.set()
        await asyncio.gather(*waiting[1:])
        assert [entry["id"] for entry in members.merged_models()] == ["m"]
        await watch.stop()
        server.close()

    uvloop.run(asyncio.wait_for(ask(), 20))
    assert asked == 1


def test_a_host_field_is_one_also_of_an_ipv6_address() -> None:
    heads: list[bytes] = []

    async def ask() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(WELL)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        there = Replica(f"[::ffff:127.0.0.1]:{port}/x", "::ffff:127.0.0.1", port, path="/x")
        await fetch(there, "/health", resolver=Resolver(), deadline_seconds=20.0)
        server.close()
        assert f"\r\nhost: [::ffff:127.0.0.1]:{port}\r\n".encode() in heads[0]

    uvloop.run(ask())


def test_a_host_name_that_cannot_be_one_is_no_answer() -> None:
    async def ask() -> None:
        await fetch(
            Replica("a..b:80", "a..b", 80), "/health", resolver=Resolver(), deadline_seconds=5.0
        )

    with pytest.raises(FetchError):
        uvloop.run(ask())
