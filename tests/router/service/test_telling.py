"""Telling: processes on one port know each other's requests, over real sockets, and lose them."""

from __future__ import annotations

import asyncio
import errno
import http.client
import os
import random
import re
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from router import telling
from router.asks import Ask
from router.fleet import Decision, Fleet
from router.telling import GREETING, LOOK_SECONDS, TOGETHER_SECONDS, Telling, socket_path
from router.tidings import Teller
from tests.router.relay.harness import over_sockets, until
from tests.router.service.fakes import (
    Launched,
    all_ready,
    children,
    is_replaced,
    launched,
    replicas,
)  # fmt: skip
from tests.router.service.fakes import until as until_it

LONG = 20
"""Blocks of a prompt."""


class Process:
    """One of several, without anything but its fleet."""

    def __init__(self, folder: Path, number: int) -> None:
        self.fleet = Fleet(rng=random.Random(number))
        self.fleet.join("a")
        self.fleet.join("b")
        self.telling = Telling(self.fleet, lambda: folder, number, now=time.monotonic)

    def places(self, first: int) -> Decision:
        blocks = [*range(first, first + LONG)]
        decision = self.fleet.choose(Ask(blocks, 512.0, LONG * 512), time.monotonic())
        assert isinstance(decision, Decision)
        return decision


async def met(folder: Path, count: int) -> list[Process]:
    processes = [Process(folder, number) for number in range(count)]
    for each in processes:
        await each.telling.start()
    await until(lambda: all(each.telling.listeners == count - 1 for each in processes))
    return processes


async def closed(processes: list[Process]) -> None:
    for each in processes:
        await each.telling.close()


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "LOOK_SECONDS", 0.02)


@over_sockets
async def test_each_hears_what_every_other_places(tmp_path: Path) -> None:
    processes = await met(tmp_path, 3)
    try:
        for number, each in enumerate(processes):
            each.places(1000 * number)
        await until(lambda: [each.telling.heard for each in processes] == [2, 2, 2])
        assert [each.fleet.reservations for each in processes] == [1, 1, 1]
    finally:
        await closed(processes)


@over_sockets
async def test_who_ends_takes_along_what_it_had_under_way(tmp_path: Path) -> None:
    one, other = await met(tmp_path, 2)
    try:
        one.places(0)
        await until(lambda: other.telling.heard == 1)
        await one.telling.close()
        await until(lambda: other.telling.heard == 0 and other.telling.listeners == 0)
        assert other.fleet.listener is None, "nobody is there to be told"
        other.places(0)  # and it goes on alone
    finally:
        await closed([other])


@over_sockets
async def test_who_is_started_again_is_told_and_heard(tmp_path: Path) -> None:
    one, other = await met(tmp_path, 2)
    await one.telling.close()
    again = Process(tmp_path, 0)
    try:
        await again.telling.start()
        await until(lambda: again.telling.listeners == other.telling.listeners == 1)
        again.places(0)
        other.places(1000)
        await until(lambda: again.telling.heard == other.telling.heard == 1)
    finally:
        await closed([again, other])


@over_sockets
async def test_what_ended_while_nobody_listened_is_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who connects soon enough would hear of its beginning and never of its end."""
    one, other = await met(tmp_path, 2)
    try:
        monkeypatch.setattr(telling, "TOGETHER_SECONDS", 0.5)
        decision = one.places(0)
        await other.telling.close()
        await until(lambda: one.telling.listeners == 0)
        one.fleet.released(decision.ticket, time.monotonic())
        other = Process(tmp_path, 1)
        await other.telling.start()
        await until(lambda: one.telling.listeners == 1)
        await asyncio.sleep(1.0)
        assert other.telling.heard == 0
    finally:
        await closed([one, other])


@over_sockets
async def test_a_look_that_fails_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where no descriptor is left for the directory."""
    one, other = await met(tmp_path, 2)
    try:
        failed: list[str] = []

        def fails(folder: Path, pattern: str) -> list[Path]:
            failed.append(pattern)
            raise OSError(errno.EMFILE, "too many open files")

        with monkeypatch.context() as without:
            without.setattr(Path, "glob", fails)
            await until(lambda: len(failed) > 3)
        await other.telling.close()
        other = Process(tmp_path, 1)
        await other.telling.start()
        await until(lambda: one.telling.listeners == 1)
    finally:
        await closed([one, other])


@pytest.mark.parametrize(
    "said",
    [
        b"sharedfs-router tidings 0\n" + b"\0" * 64,
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + b"\0" * 64,
        GREETING + b"\xff\xff\xff\xff",
        GREETING + b"\0\0\0\1\xc1",
        GREETING + b"\0\0\0\3\x91\x91\x07",
    ],
)
@over_sockets
async def test_who_speaks_otherwise_is_not_listened_to(
    tmp_path: Path, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Which is said once, however often it comes: it does until it is the same version."""
    (alone,) = await met(tmp_path, 1)
    try:
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(socket_path(tmp_path, 0)))
                stranger.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(stranger, said)
                assert await asyncio.wait_for(read_end(stranger), 20) == b""
        assert caplog.text.count("not listening") == 1
    finally:
        await closed([alone])


async def read_end(stranger: socket.socket) -> bytes:
    try:
        return await asyncio.get_running_loop().sock_recv(stranger, 1)
    except ConnectionResetError:
        return b""


@over_sockets
async def test_a_message_in_pieces_is_heard_whole(tmp_path: Path) -> None:
    (alone,) = await met(tmp_path, 1)
    teller = Teller()
    elsewhere = Process(tmp_path, 9)
    elsewhere.fleet.listener = teller
    try:
        _, writer = await asyncio.open_unix_connection(str(socket_path(tmp_path, 0)))
        for first in (0, 1000):
            elsewhere.places(first)
        message = teller.take()
        for byte in GREETING + len(message).to_bytes(4, "big") + message:
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0)
        await until(lambda: alone.telling.heard == 2)
        writer.close()
        await until(lambda: alone.telling.heard == 0)
    finally:
        await closed([alone])


@over_sockets
async def test_who_takes_nothing_is_cut_off_and_costs_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telling, "WAITING_BYTES_MAX", 1 << 20)
    (alone,) = await met(tmp_path, 1)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(socket_path(tmp_path, 1)))
        deaf.listen()
        try:
            await until(lambda: alone.telling.listeners == 1)
            first = 0
            while not caplog.records:
                for _ in range(20):
                    alone.places(first := first + LONG)
                await asyncio.sleep(0.003)
            assert "takes no tidings" in caplog.text
            await until(lambda: alone.telling.listeners == 1)  # until it can hear again
        finally:
            await closed([alone])


def test_a_prompt_goes_where_any_of_the_processes_sent_it_before() -> None:
    with replicas(2) as pair:
        urls = ",".join(each.url for each in pair)
        with launched("--replicas", urls, "--workers", "2") as running:
            _all_met(running)
            served: dict[str, set[str | None]] = {}
            for _ in range(6):  # by either process
                for prompt in ("a", "b", "c", "d"):
                    answer = running.chat(prompt * 20_000)
                    served.setdefault(prompt, set()).add(answer.replica)
                    time.sleep(10 * TOGETHER_SECONDS)
            assert [len(where) for where in served.values()] == [1, 1, 1, 1]


def test_requests_of_a_process_that_is_killed_burden_nobody() -> None:
    with replicas(1) as (one,), launched("--replicas", one.url, "--workers", "2") as running:
        _all_met(running)
        one.script.hold_after = (1, go_on := threading.Event())
        streams = [running.stream() for _ in range(8)]
        until_it(lambda: _gauge(running, "heard") == 8.0)  # each by the process that has it not
        killed, _ = children(running.process.pid)
        os.kill(killed, signal.SIGKILL)
        until_it(lambda: is_replaced(running.process.pid, killed))
        go_on.set()
        for _, answer in streams:
            with suppress(http.client.HTTPException, ConnectionError):
                answer.read()
        until_it(lambda: _gauge(running, "heard") == _gauge(running, "reservations") == 0.0)


def _all_met(running: Launched) -> None:
    """Both processes serve, and tell each other."""
    until_it(lambda: running.ask("/replicas").json()["workers"] == 2)
    until_it(lambda: all_ready(running.ask("/replicas").json()))
    time.sleep(3 * LOOK_SECONDS)


def _gauge(running: Launched, name: str) -> float:
    page = running.ask("/metrics").body.decode()
    (line,) = re.findall(rf"^sharedfs_router_{name} (.*)$", page, re.M)
    return float(line)
