"""Names are looked up beside the loop, one at a time each; old addresses bridge a silence."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest

from router.relay import resolver as module
from router.relay.exchange import Attempt
from router.relay.resolver import (
    FRESH_SECONDS,
    LOOKUP_SECONDS_MAX,
    PATIENCE_SECONDS,
    PAUSE_SECONDS,
    SILENT_SECONDS,
    STALE_SECONDS_MAX,
    ResolveError,
    Resolver,
    is_address,
    look_up,
)
from tests.router.relay.harness import (
    ScriptedDirector,
    calling,
    over_sockets,
    post,
    relaying,
    replica,
    until,
)

NO_SUCH_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


class NameServer:
    """Answers as a test says, and says nothing of a name while `holds` has it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked: list[str] = []
        self.says: Sequence[str] | Exception = ["10.0.0.1", "10.0.0.2"]
        self.holds: dict[str, threading.Event] = {}
        self.resolver = Resolver(lambda: self.now, self.look_up)

    def hold(self, *names: str) -> None:
        self.holds.update((name, threading.Event()) for name in names)

    def look_up(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        if name in self.holds:
            self.holds[name].wait()
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.fixture
def names() -> Iterator[NameServer]:
    made = NameServer()
    yield made
    for held in made.holds.values():
        held.set()


TWO = ("10.0.0.1", "10.0.0.2")


@over_sockets
async def test_a_name_is_looked_up_once_at_a_time(names: NameServer) -> None:
    """However many ask, and whoever of them leaves meanwhile."""
    names.hold("a")
    asking = [asyncio.create_task(names.resolver.addresses("a")) for _ in range(20)]
    await until(lambda: names.asked == ["a"])
    asking[0].cancel()
    await asyncio.wait(asking[:1])
    asking.append(asyncio.create_task(names.resolver.addresses("a")))
    await asyncio.sleep(0)
    names.holds["a"].set()
    assert set(await asyncio.gather(*asking[1:])) == {TWO}
    assert names.asked == ["a"]


@over_sockets
async def test_good_addresses_are_used_for_a_while_without_asking(names: NameServer) -> None:
    assert await names.resolver.addresses("a") == TWO
    names.says = ["10.0.0.3"]
    names.now += FRESH_SECONDS - 0.1
    assert await names.resolver.addresses("a") == TWO
    assert names.asked == ["a"]
    names.now += 0.1
    assert await names.resolver.addresses("a") == ("10.0.0.3",)


@pytest.mark.parametrize("nothing", [NO_SUCH_NAME, []])
@over_sockets
async def test_old_addresses_are_used_when_a_look_up_fails(
    names: NameServer, nothing: Sequence[str] | Exception
) -> None:
    await names.resolver.addresses("a")
    names.says = nothing
    names.now += FRESH_SECONDS
    for _ in range(3):  # and it is not asked again for each connection
        assert await names.resolver.addresses("a") == TWO
    assert names.asked == ["a"] * 2
    names.now += STALE_SECONDS_MAX
    with pytest.raises(ResolveError, match="cannot resolve a: "):
        await names.resolver.addresses("a")


@over_sockets
async def test_a_silent_address_leaves_the_next_its_time_and_is_then_tried_last(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ADDRESS_SECONDS", 0.01)
    tried: list[str] = []

    async def connect(address: str) -> str:
        tried.append(address)
        if address == TWO[0]:
            await asyncio.Event().wait()
        return address

    for _ in range(2):
        assert await names.resolver.connected("a", connect) == TWO[1]
    names.now += SILENT_SECONDS
    assert await names.resolver.connected("a", connect) == TWO[1]
    assert tried == [*TWO, TWO[1], *TWO]


@over_sockets
async def test_a_look_up_that_ends_meanwhile_does_not_hide_that_an_address_is_silent(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ADDRESS_SECONDS", 0.1)
    tried: list[str] = []

    async def connect(address: str) -> str:
        tried.append(address)
        if address == TWO[0]:
            names.now += FRESH_SECONDS
            await names.resolver.addresses("a")
            await asyncio.Event().wait()
        return address

    for _ in range(2):
        assert await names.resolver.connected("a", connect) == TWO[1]
    assert tried == [*TWO, TWO[1]]


@over_sockets
async def test_old_addresses_are_used_while_a_look_up_is_under_way(names: NameServer) -> None:
    await names.resolver.addresses("a")
    names.hold("a")
    names.now += FRESH_SECONDS
    first = asyncio.create_task(names.resolver.addresses("a"))
    await until(lambda: len(names.asked) == 2)
    names.now += PATIENCE_SECONDS
    for _ in range(100):  # not each of them waits
        assert await names.resolver.addresses("a") == TWO
    assert await first == TWO
    assert len(names.asked) == 2
    names.now += STALE_SECONDS_MAX  # it never ends: they are not believed for ever
    with pytest.raises(ResolveError, match="cannot resolve a: its look-up takes long"):
        await names.resolver.addresses("a")


@over_sockets
async def test_an_error_says_which_name_and_why(names: NameServer) -> None:
    names.says = NO_SUCH_NAME
    with pytest.raises(ResolveError, match=r"cannot resolve a: .*Name or service not known"):
        await names.resolver.addresses("a")
    names.says = ["10.0.0.3"]
    names.now += PAUSE_SECONDS
    assert await names.resolver.addresses("a") == ("10.0.0.3",)


@over_sockets
async def test_a_name_that_is_never_answered_is_given_up_and_not_asked_again(
    names: NameServer,
) -> None:
    names.hold("a")
    first = asyncio.create_task(names.resolver.addresses("a"))
    await until(lambda: names.asked == ["a"])
    for _ in range(100):
        names.now += LOOKUP_SECONDS_MAX
        with pytest.raises(ResolveError, match=r"cannot resolve a: .* takes long"):
            await names.resolver.addresses("a")
    assert names.asked == ["a"]
    names.holds["a"].set()
    assert await first == await names.resolver.addresses("a") == TWO


@over_sockets
async def test_names_nobody_answers_for_hold_up_no_other(names: NameServer) -> None:
    stuck = [f"slow{number}" for number in range(100)]
    names.hold(*stuck)
    waiting = [asyncio.create_task(names.resolver.addresses(name)) for name in stuck]
    await until(lambda: len(names.asked) == 100)
    assert await names.resolver.addresses("a") == TWO
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()


@over_sockets
async def test_names_that_left_are_forgotten_but_not_their_look_ups(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NAMES_MAX", 3)
    for number in range(9):
        await names.resolver.addresses(f"old{number}")
    assert names.resolver.names == 3
    names.hold("a", "b", "c")
    waiting = [asyncio.create_task(names.resolver.addresses(name)) for name in "abc"]
    await until(lambda: set("abc") <= set(names.asked))
    with pytest.raises(ResolveError, match="cannot resolve d: too many"):
        await names.resolver.addresses("d")
    for held in names.holds.values():
        held.set()
    await asyncio.gather(*waiting)
    assert await names.resolver.addresses("d") == TWO
    assert names.resolver.names == 3


@over_sockets
async def test_a_machine_without_threads_is_an_error_like_others(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(ResolveError, match="cannot resolve a: can't start"):
            await names.resolver.addresses("a")
    names.now += PAUSE_SECONDS
    assert await names.resolver.addresses("a") == TWO


@over_sockets
async def test_an_address_is_not_looked_up(names: NameServer) -> None:
    async def connect(address: str) -> str:
        return address

    for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "fe80::1%lo"):
        assert is_address(host) and await names.resolver.connected(host, connect) == host
    assert names.asked == [] and names.resolver.names == 0
    assert not any(map(is_address, ("a", "localhost", "1.2.3.4.test", "", "127.1")))


@over_sockets
async def test_all_addresses_of_a_name_are_tried_in_turn(names: NameServer) -> None:
    names.says = ["::1", "127.0.0.9", "127.0.0.1"]
    async with replica() as there:
        director = ScriptedDirector(Attempt("a", there.port))
        async with relaying(director, resolver=names.resolver) as relay, calling(relay) as caller:
            caller.send(post(b"q"))
            assert (await caller.response())[1] == b"hello"
        assert there.accepted == 1
        tried: list[str] = []

        async def connect(address: str) -> None:
            tried.append(address)
            raise ConnectionRefusedError(f"no {address}")

        with pytest.raises(OSError, match=r"no ::1; no 127.0.0.9; no 127.0.0.1"):
            await names.resolver.connected("a", connect)
        assert tried == names.says


def test_the_system_knows_this_machine() -> None:
    assert set(look_up("localhost")) <= {"127.0.0.1", "::1"} and look_up("localhost")


STUCK = """
import asyncio, time
from router.relay.resolver import Resolver

async def main():
    asking = asyncio.create_task(Resolver(look_up=lambda name: time.sleep(3600)).addresses("a"))
    await asyncio.sleep(0.01)
    asking.cancel()

asyncio.run(main())
"""


def test_a_look_up_under_way_keeps_no_process_from_ending() -> None:
    subprocess.run([sys.executable, "-c", STUCK], check=True, timeout=60)
