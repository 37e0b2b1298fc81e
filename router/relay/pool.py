"""Pool: connections to replicas, kept between requests, youngest first.

One event loop's thread. A connection that closes while it rests leaves by itself; one that rests
longer than `upstream_idle_seconds` is closed by `sweep`. It must not know requests.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from router.relay.limits import Limits
from router.relay.resolver import Resolver
from router.relay.upstream import Upstream

Key = tuple[str, int, bool]
"""Host, port, whether TLS."""

KEEPALIVE_OPTIONS = (
    # A host that lost power says nothing: found out after about a minute.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class Pool:
    """All connections to all replicas."""

    def __init__(
        self,
        limits: Limits,
        now: Callable[[], float],
        resolver: Resolver,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.limits = limits
        self._now = now
        self._resolver = resolver
        self._tls = tls
        self._idle: dict[Key, list[Upstream]] = {}
        self._open: set[Upstream] = set()

    def __len__(self) -> int:
        return len(self._open)

    def take(self, key: Key) -> Upstream | None:
        """A resting connection, if there is one."""
        resting = self._idle.get(key)
        while resting:
            upstream = resting.pop()
            if not upstream.transport.is_closing():
                upstream.is_reused = True
                return upstream
        return None

    async def connect(self, key: Key) -> Upstream:
        """A new connection; OSError or TimeoutError when there is none to be had."""
        host, _, is_tls = key
        tls = None
        if is_tls:
            self._tls = self._tls or ssl.create_default_context()
            tls = self._tls
        async with asyncio.timeout(self.limits.connect_seconds):
            return await self._resolver.connected(
                host, lambda address: self._connect(key, address, tls)
            )

    async def _connect(self, key: Key, address: str, tls: ssl.SSLContext | None) -> Upstream:
        host, port, _ = key
        name = None if tls is None else host
        loop = asyncio.get_running_loop()
        upstream = Upstream(self, key)
        try:
            await loop.create_connection(
                lambda: cast(Any, upstream), address, port, ssl=tls, server_hostname=name
            )
        except BaseException:
            # A connection that was made but not awaited to the end never says that it is lost.
            upstream.give_up()
            self.forget(upstream)
            raise
        return upstream

    def give_back(self, upstream: Upstream) -> None:
        """Keeps a connection for the next request, or closes it where there are enough."""
        resting = self._idle.setdefault(upstream.key, [])
        if len(resting) >= self.limits.upstream_idle_max:
            upstream.transport.close()
            return
        upstream.idle_since = self._now()
        resting.append(upstream)

    def opened(self, upstream: Upstream) -> None:
        """Called by a connection when it is made."""
        self._open.add(upstream)
        sock = upstream.transport.get_extra_info("socket")
        for level, option, value in KEEPALIVE_OPTIONS:
            sock.setsockopt(level, option, value)

    def forget(self, upstream: Upstream) -> None:
        """Called by a connection when it is lost."""
        self._open.discard(upstream)
        resting = self._idle.get(upstream.key)
        if resting and upstream in resting:
            resting.remove(upstream)

    def sweep(self, now: float) -> None:
        """Closes what has rested too long, oldest first."""
        for key, resting in list(self._idle.items()):
            old = 0
            while old < len(resting) and (
                now - resting[old].idle_since >= self.limits.upstream_idle_seconds
            ):
                resting[old].transport.close()
                old += 1
            del resting[:old]
            if not resting:
                del self._idle[key]

    def close(self) -> None:
        """Cuts every connection."""
        self._idle.clear()
        for upstream in list(self._open):
            upstream.transport.abort()
