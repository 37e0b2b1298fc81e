"""Telling: the connections by which the processes on one port tell each other of their requests.

Each listens on a socket in the directory they meet in, and connects to every other's: a connection
carries one process's tidings to one other, from when it is made until it ends; what went before is
not caught up on. Tidings are sent together, 20 ms after the first: a prefill takes longer, and
being woken for each would cost more than all else about them. Whoever does not take them is cut
off and connected to anew; nobody waits for anybody.

It must not know what tidings say (`tidings`). Of the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

from router.fleet import Fleet
from router.tidings import Heard, Teller

log = logging.getLogger(__name__)

GREETING = b"sharedfs-router tidings 1\n"
"""A process started again after an update may be of another version: it is not listened to."""
LENGTH_BYTES = 4
TOGETHER_SECONDS = 0.02
WAITING_BYTES_MAX = 16 << 20
"""For one listener that stands still."""
MESSAGE_BYTES_MAX = 64 << 20
LOOK_SECONDS = 0.5
"""Between two looks for processes not connected to."""


def socket_path(folder: Path, number: int) -> Path:
    return folder / f"worker-{number}.told"


class Telling:
    """One process among others. `meeting` is where they meet; None: there are no others."""

    def __init__(
        self,
        fleet: Fleet,
        meeting: Callable[[], Path | None],
        number: int,
        *,
        now: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._meeting = meeting
        self._number = number
        self._now = now
        self._teller = Teller(self._soon)
        self._listeners: dict[str, asyncio.WriteTransport] = {}
        """By the name of their sockets."""
        self._heard: set[_Hearing] = set()
        self._has_complained = False
        self._server: asyncio.Server | None = None
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def listeners(self) -> int:
        """Other processes this one tells."""
        return len(self._listeners)

    @property
    def heard(self) -> int:
        """Requests under way that others told of."""
        return sum(len(each.heard) for each in self._heard)

    async def start(self) -> None:
        """OSError if the directory is gone."""
        folder = self._meeting()
        if folder is None:
            return
        path = socket_path(folder, self._number)
        path.unlink(missing_ok=True)  # of this number's process before a restart
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._hearing, str(path))
        self._looking = asyncio.create_task(self._look(path.name), name="telling")

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        for transport in self._listeners.values():
            transport.abort()
        for hearing in tuple(self._heard):
            hearing.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def _hearing(self) -> asyncio.Protocol:
        return _Hearing(Heard(self._fleet), self._now, self._heard, self._complain)

    async def _look(self, mine: str) -> None:
        """Connects to who is there and was not."""
        loop = asyncio.get_running_loop()
        while True:
            for path in self._places():
                name = path.name
                if name == mine or name in self._listeners:
                    continue
                try:
                    transport, _ = await loop.create_unix_connection(
                        partial(_Told, partial(self._lost, name)), str(path)
                    )
                except OSError:
                    continue  # it is being started again
                if transport.is_closing():
                    continue  # it ended before we came to know of it
                transport.write(GREETING)
                self._listeners[name] = transport
                self._fleet.listener = self._teller
            await asyncio.sleep(LOOK_SECONDS)

    def _complain(self, trouble: str) -> None:
        """Once: whoever is not listened to connects again and again."""
        if not self._has_complained:
            self._has_complained = True
            log.warning("not listening to a process on this port: %s", trouble)

    def _places(self) -> list[Path]:
        """Where processes listen; none where the directory cannot be read for now."""
        try:
            folder = self._meeting()
            return [] if folder is None else sorted(folder.glob("*.told"))
        except OSError:  # no descriptor is left: next time there may be one
            return []

    def _lost(self, name: str) -> None:
        self._listeners.pop(name, None)
        if not self._listeners:
            self._fleet.listener = None
            self._teller.take()  # of whose ends nobody would tell who listens next

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOGETHER_SECONDS, self._tell)

    def _tell(self) -> None:
        self._timer = None
        message = self._teller.take()
        message = len(message).to_bytes(LENGTH_BYTES, "big") + message
        for name, transport in tuple(self._listeners.items()):
            if transport.get_write_buffer_size() > WAITING_BYTES_MAX:
                log.warning("%s takes no tidings: connecting anew", name)
                transport.abort()
            elif not transport.is_closing():
                transport.write(message)


class _Told(asyncio.Protocol):
    """To one who is told."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost()


class _Hearing(asyncio.Protocol):
    """From one who tells. Belongs to `all_` while it lasts."""

    def __init__(
        self,
        heard: Heard,
        now: Callable[[], float],
        all_: set[_Hearing],
        complain: Callable[[str], None],
    ) -> None:
        self.heard = heard
        self._now = now
        self._all = all_
        self._complain = complain
        self._transport: asyncio.Transport | None = None
        self._pending = bytearray()
        self._is_greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._all.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._all.discard(self)
        self.heard.gone(self._now())

    def cut(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._pending += data
        try:
            self._read()
        except ValueError as error:
            self._complain(str(error))
            self.cut()

    def _read(self) -> None:
        pending, position = self._pending, 0
        if not self._is_greeted:
            if len(pending) < len(GREETING):
                return
            if not pending.startswith(GREETING):
                raise ValueError("it is of another version")
            self._is_greeted, position = True, len(GREETING)
        while len(pending) >= position + LENGTH_BYTES:
            begin = position + LENGTH_BYTES
            length = int.from_bytes(pending[position:begin], "big")
            if length > MESSAGE_BYTES_MAX:
                raise ValueError("a message beyond all measure")
            if len(pending) < begin + length:
                break
            position = begin + length
            self.heard.hear(bytes(pending[begin:position]), self._now())
        del pending[:position]
