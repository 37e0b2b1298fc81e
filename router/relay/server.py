"""Server: a listening relay. `serve` starts one, `drain` ends it without cutting a stream.

All of it runs on one event loop's thread (uvloop's in production; any asyncio loop works). Several
processes share a port with `reuse_port`. It must not know what a `Director` decides or why.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from typing import Any, cast

from router.relay.client import Client
from router.relay.common import Common
from router.relay.exchange import Director, Where
from router.relay.limits import Limits
from router.relay.pool import Pool
from router.relay.resolver import Resolver

BACKLOG = 4096
"""Connections the kernel holds for us while the loop is busy; capped by net.core.somaxconn."""


class RelayServer:
    """A running relay; made by `serve`."""

    def __init__(self, common: Common, server: asyncio.Server) -> None:
        self._common = common
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]
        self._sweeper = common.spawn(self._sweep_for_ever())

    @property
    def connections(self) -> int:
        """Open clients."""
        return len(self._common.clients)

    @property
    def upstream_connections(self) -> int:
        """Open connections to replicas, resting ones included."""
        return len(self._common.pool)

    @property
    def tasks(self) -> int:
        """Connections being made and decisions awaited, and the sweeper."""
        return len(self._common.tasks)

    @property
    def bodies_bytes(self) -> int:
        """Request bodies held for attempts still possible."""
        return self._common.bodies_bytes

    async def drain(self, deadline_seconds: float) -> int:
        """Stops accepting, lets running requests finish, then closes. Returns how many were cut."""
        common = self._common
        common.is_draining = True
        self._server.close()
        for client in list(common.clients):
            client.close_if_idle()
        if common.clients:
            common.nobody_left.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(common.nobody_left.wait(), deadline_seconds)
        cut = len(common.clients)
        await self.close()
        return cut

    async def close(self) -> None:
        """Cuts everything and returns when all connections and tasks are gone."""
        common = self._common
        common.is_draining = True
        self._server.close()
        for client in list(common.clients):
            client.transport.abort()
        if common.clients:
            common.nobody_left.clear()
            await common.nobody_left.wait()
        common.pool.close()
        tasks = list(common.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while len(common.pool):
            await asyncio.sleep(0)  # Connections say that they are lost on the next turn.

    def waits(self, where: Where) -> bool:
        """Whether a request waits for an answer from there of which nothing was passed on yet."""
        return any(client.waits(where) for client in self._common.clients)

    def give_up(self, where: Where, detail: str) -> int:
        """Fails every attempt there of which nothing was passed on yet, at once: somebody knows
        that no answer will come. Returns how many; the exchanges say what follows."""
        return sum(client.give_up(where, detail) for client in list(self._common.clients))

    def sweep(self, now: float) -> None:
        """Ends every wait whose time is up."""
        for client in list(self._common.clients):
            client.sweep(now)
        self._common.pool.sweep(now)

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._common.limits.sweep_seconds)
            self.sweep(self._common.now())


async def serve(
    director: Director,
    *,
    host: str,
    port: int,
    limits: Limits | None = None,
    reuse_port: bool = False,
    now: Callable[[], float] = time.monotonic,
    tls: ssl.SSLContext | None = None,
    resolver: Resolver | None = None,
) -> RelayServer:
    """Returns a relay that accepts connections on `host` and `port` (0: any free one).

    `tls` is used towards https replicas instead of the system's certificates, `resolver` where
    somebody else asks for the same names. OSError when the port cannot be had.
    """
    limits = limits or Limits()
    loop = asyncio.get_running_loop()
    common = Common(director, limits, now, loop, Pool(limits, now, resolver or Resolver(now), tls))
    server = await loop.create_server(
        lambda: cast(Any, Client(common)),
        host,
        port,
        reuse_port=reuse_port or None,
        backlog=BACKLOG,
    )
    return RelayServer(common, server)
