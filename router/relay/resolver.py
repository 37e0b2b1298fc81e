"""Resolver: the addresses of replicas' names, without one slow name holding up the others.

An address is its own answer and costs nothing. A name is looked up on a daemon thread of its own,
one look-up of each at a time: the event loop's own look-ups share a few threads and go on after
whoever wanted them has left, so one name nobody answers for soon takes every name's turn. The last
good addresses are used for `FRESH_SECONDS` without asking, and longer while asking brings nothing.

At most `NAMES_MAX` names are known, the least recently used are forgotten; one that is being looked
up never is, so this bounds the threads as well. Of one event loop's thread; it must not know
replicas.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

FRESH_SECONDS = 5.0
PAUSE_SECONDS = 1.0
"""From a failed look-up to the next."""
STALE_SECONDS_MAX = 3600.0
"""A name server that is down is bridged; a name taken back is not believed for ever."""
PATIENCE_SECONDS = 0.25
"""From a look-up's start until old addresses are used meanwhile."""
LOOKUP_SECONDS_MAX = 4.0
"""The same without any: who waits hears which name it was before its own time, 5 s, is up."""
ADDRESS_SECONDS = 1.0
"""For a connection to an address where there are others: one that drops everything, as IPv6 often
does, must leave them their share of the caller's 5 s."""
SILENT_SECONDS = 60.0
"""So long an address that took more is tried after the others."""
NAMES_MAX = 2048
"""Twice the longest list of replicas: all of them may change at once."""


class ResolveError(OSError):
    """A name without addresses, at least for now."""


def look_up(name: str) -> Sequence[str]:
    """Asks the system. Blocks for as long as that takes."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


@lru_cache(NAMES_MAX)
def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(slots=True)
class _Name:
    addresses: tuple[str, ...] = ()
    """The last good ones."""
    found_at: float = 0.0
    quiet_until: float = float("-inf")
    """No look-up before."""
    trouble: str = ""
    began_at: float = 0.0
    silent_until: dict[str, float] = field(default_factory=dict)
    """Addresses that did not answer in time."""
    pending: asyncio.Future[None] | None = None
    """The look-up under way; done when it has ended, however."""


class Resolver:
    """See the module."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        look_up: Callable[[str], Sequence[str]] = look_up,
    ) -> None:
        self._now = now
        self._look_up = look_up
        self._names: dict[str, _Name] = {}
        """Least recently used first."""

    @property
    def names(self) -> int:
        """How many are known."""
        return len(self._names)

    async def connected(self, host: str, connect: Callable[[str], Awaitable[T]]) -> T:
        """What `connect` makes of the first of a host's addresses that takes it. OSError where
        none does. A peer that fails at TLS is there: no other is tried. One that says nothing for
        `ADDRESS_SECONDS` is left for the next."""
        if is_address(host):
            return await connect(host)
        troubles = []
        addresses = await self.addresses(host)
        silent, now = self._known(host).silent_until, self._now()
        order = sorted(addresses, key=lambda address: silent.get(address, now) > now)
        for address in order:
            try:
                async with asyncio.timeout(None if address == order[-1] else ADDRESS_SECONDS):
                    return await connect(address)
            except ssl.SSLError:
                raise
            except TimeoutError:
                # Not `silent`: a look-up that ended meanwhile has put another in its place.
                self._known(host).silent_until[address] = self._now() + SILENT_SECONDS
                troubles.append(f"{address} does not answer")
            except OSError as error:
                troubles.append(str(error))
        raise OSError("; ".join(dict.fromkeys(troubles)))

    async def addresses(self, name: str) -> tuple[str, ...]:
        """At least one; ResolveError where there is none. However many ask, and whoever of them
        leaves meanwhile, the name is looked up once."""
        known = self._known(name)
        now = self._now()
        if now - known.found_at > STALE_SECONDS_MAX:
            known.addresses = ()
        if known.pending is None and now >= known.quiet_until:
            self._begin(name, known)
        if known.pending is not None:
            patience = PATIENCE_SECONDS if known.addresses else LOOKUP_SECONDS_MAX
            left = known.began_at + patience - now
            if left > 0:
                await asyncio.wait([known.pending], timeout=left)
        if known.addresses:
            return known.addresses
        trouble = known.trouble if known.pending is None else "its look-up takes long"
        raise ResolveError(f"cannot resolve {name}: {trouble}")

    def _known(self, name: str) -> _Name:
        known = self._names.pop(name, None)
        if known is None and len(self._names) >= NAMES_MAX:
            resting = (old for old, each in self._names.items() if each.pending is None)
            if (oldest := next(resting, None)) is None:
                raise ResolveError(f"cannot resolve {name}: too many look-ups are under way")
            del self._names[oldest]
        self._names[name] = known = known or _Name()
        return known

    def _begin(self, name: str, known: _Name) -> None:
        loop = asyncio.get_running_loop()
        known.pending = loop.create_future()
        known.began_at = self._now()

        def run() -> None:
            found: Sequence[str] = ()
            trouble = "it has no address"
            try:
                found = self._look_up(name)
            except Exception as error:  # ValueError too: a name that cannot be one
                trouble = str(error) or type(error).__name__
            with suppress(RuntimeError):  # the loop has ended, and with it whoever asked
                loop.call_soon_threadsafe(self._ended, known, tuple(found), trouble)

        try:
            threading.Thread(target=run, name=f"look-up of {name}", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._ended(known, (), str(error))

    def _ended(self, known: _Name, found: tuple[str, ...], trouble: str) -> None:
        now = self._now()
        if found:
            known.addresses, known.found_at = found, now
            silent = known.silent_until
            known.silent_until = {each: silent[each] for each in found if each in silent}
        known.trouble = trouble
        known.quiet_until = now + (FRESH_SECONDS if found else PAUSE_SECONDS)
        assert known.pending is not None
        known.pending.set_result(None)
        known.pending = None
