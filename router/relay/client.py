"""Client: one client's connection. Keeps the order of its requests, notices when it is gone.

Requests of one connection are answered one after the other, however many came at once; what came
before a refused one is still answered first. While a client does not take its answers its next
request waits. It reads on while an answer is awaited, for that is how a client's leaving is
noticed. It must not know replicas, decisions or how requests are parsed.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final, cast

from router.relay.common import Common, Incoming
from router.relay.exchange import Reply, Where
from router.relay.heads import CONTINUE, refusal, reply_bytes
from router.relay.pool import KEEPALIVE_OPTIONS
from router.relay.reader import Reader
from router.relay.transfer import Transfer


class Phase:
    """What the connection waits for. Plain integers: compared several times for each request."""

    IDLE: Final = 0  # the next request
    HEAD: Final = 1  # the rest of a head
    BODY: Final = 2  # the rest of a body
    BUSY: Final = 3  # an answer, or its turn
    LEAVING: Final = 4  # what is left to write, or to be thrown away


class Client:
    """Speaks HTTP/1.1 to one client. An `asyncio.Protocol`, but not by descent: see `compiling`."""

    def __init__(self, common: Common) -> None:
        self._common = common
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set by connection_made
        self.is_paused = False
        self._paused_since = 0.0
        self._phase: int = Phase.IDLE
        self._since = 0.0
        self._transfer: Transfer | None = None
        self._is_deaf = False
        self._is_starting = False
        self._is_reading = True

    # -- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses.
        self._since = self._common.now()
        common = self._common
        common.clients.add(self)
        peer = transport.get_extra_info("peername")
        self._reader = Reader(common, str(peer[0]) if peer else "")
        self._ready = self._reader.ready
        sock = transport.get_extra_info("socket")
        for level, option, value in KEEPALIVE_OPTIONS:
            sock.setsockopt(level, option, value)
        excess = len(common.clients) - common.limits.connections_max
        if excess > common.limits.refused_max:
            self._reset()
        elif excess > 0 or common.is_draining:
            self._is_deaf = True
            self._say_and_leave(refusal(503, "too many connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        common = self._common
        common.clients.discard(self)
        self._is_deaf = True
        self._reader.close()
        if self._transfer is not None:
            transfer, self._transfer = self._transfer, None
            transfer.client_gone()
        if not common.clients:
            common.nobody_left.set()

    def eof_received(self) -> None:
        """An end of sending is an end of interest: a half-closed client looks like a dead one."""
        if self._transfer is not None:
            self.transport.abort()

    def pause_writing(self) -> None:
        self.is_paused = True
        self._paused_since = self._common.now()
        if self._transfer is not None and self._transfer.upstream is not None:
            self._transfer.upstream.pause()

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._transfer is None:
            self._next()
        elif self._transfer.upstream is not None:
            self._transfer.upstream.resume()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        reader = self._reader
        reader.feed(data)
        if reader.is_refused:
            self._is_deaf = True
        if self._transfer is None:
            self._next()
        elif self._ready:
            self._pace()

    # -- requests -------------------------------------------------------------------------------

    def _next(self) -> None:
        """Starts what is ready, in order, until something has to be waited for."""
        if self._is_starting:  # The loop below goes on.
            return
        self._is_starting = True
        try:
            while (
                self._ready
                and self._transfer is None
                and not self.is_paused
                and self._phase != Phase.LEAVING
            ):
                item = self._ready.popleft()
                if isinstance(item, Reply):
                    self._say_and_leave(item)
                    break
                self._phase = Phase.BUSY
                self._transfer = Transfer(self._common, self, item)
                self._transfer.start()
        finally:
            self._is_starting = False
        self._await_more()
        if self._ready or not self._is_reading:
            self._pace()

    def _pace(self) -> None:
        """A client with too much waiting, or whose next request waits for it to take its answers,
        is not read on. Only then its leaving goes unnoticed."""
        if self.transport.is_closing():
            return
        limits, waiting = self._common.limits, len(self._ready)
        is_held_up = waiting > 0 and self.is_paused and self._transfer is None
        if not self._is_reading:
            if waiting <= limits.pipelined_max // 2 and not is_held_up:
                self._is_reading = True
                self.transport.resume_reading()
            return
        held = sum(item.request.body_bytes for item in self._ready if isinstance(item, Incoming))
        if is_held_up or waiting > limits.pipelined_max or held > limits.body_bytes_max:
            self._is_reading = False
            self.transport.pause_reading()

    def _await_more(self) -> None:
        """Notes what is waited for now, and says so to a client that waits to be told."""
        if self._transfer is not None or self._phase == Phase.LEAVING:
            return
        phase, incoming = Phase.IDLE, self._reader.incoming
        if self._ready:
            phase = Phase.BUSY
        elif incoming is not None:
            phase = Phase.BODY
            if incoming.expects_continue:
                incoming.expects_continue = False
                self.transport.write(CONTINUE)
        elif self._reader.is_in_head:
            phase = Phase.HEAD
        if phase != self._phase:
            self._phase = phase
            self._since = self._common.now()

    # -- answers --------------------------------------------------------------------------------

    def answer(self, reply: Reply, incoming: Incoming, *, keeps_alive: bool) -> None:
        """The request ends in an answer of the router's own."""
        keeps_alive = keeps_alive and not self._common.is_draining
        method = incoming.request.method
        self.transport.write(reply_bytes(reply, method, is_closing=not keeps_alive))
        self.finished(keeps_alive=keeps_alive)

    def finished(self, *, keeps_alive: bool) -> None:
        """The answer is complete: the next request, or the end."""
        self._transfer = None
        if not keeps_alive or self.transport.is_closing():
            self._leave()
            return
        if self._common.is_draining and not self._ready and self._reader.incoming is None:
            self._leave()
            return
        self._next()

    def cut(self, *, with_reset: bool) -> None:
        """The answer broke off. What was relayed still goes out, unless the end of the connection
        would look like the end of the answer."""
        self._transfer = None
        if with_reset:
            self._reset()
        else:
            self._leave()

    def _reset(self) -> None:
        """Closes with a RST: without lingering the kernel sends that instead of a proper end."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None and not self.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._is_deaf = True
        self._phase = Phase.LEAVING
        self.transport.abort()

    def _say_and_leave(self, reply: Reply) -> None:
        """A refusal. The client may still be sending: what comes is thrown away for a while, since
        closing now would reset the connection before the refusal is read."""
        self.transport.write(reply_bytes(reply, self._reader.method, is_closing=True))
        self._is_deaf = True
        self._phase = Phase.LEAVING
        self._since = self._common.now()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _leave(self) -> None:
        self._is_deaf = True
        self._phase = Phase.LEAVING
        self._since = self._common.now()
        self.transport.close()

    def waits(self, where: Where) -> bool:
        """Whether its request waits for an answer from there."""
        return self._transfer is not None and self._transfer.waits(where)

    def give_up(self, where: Where, detail: str) -> bool:
        """Whether its request waited for an answer from there, and now waits no more."""
        return self._transfer is not None and self._transfer.give_up(where, detail)

    # -- deadlines ------------------------------------------------------------------------------

    def close_if_idle(self) -> None:
        """For draining: a connection between two requests has nothing to lose."""
        if self._phase == Phase.IDLE and not self._ready:
            self._leave()

    def sweep(self, now: float) -> None:
        """Ends what has waited longer than its limit."""
        limits = self._common.limits
        phase, waited = self._phase, now - self._since
        if self.is_paused and now - self._paused_since >= limits.stall_seconds:
            self.transport.abort()
        elif phase == Phase.BUSY and self._transfer is not None:
            self._transfer.sweep(now)
        elif phase == Phase.IDLE and waited >= limits.idle_seconds:
            self._leave()
        elif phase == Phase.HEAD and waited >= limits.head_seconds:
            self._say_and_leave(refusal(408, "the head took too long"))
        elif phase == Phase.BODY and self._reader.incoming is not None:
            received = self._reader.incoming.request.body_bytes
            if waited >= limits.body_seconds + received / limits.body_bytes_per_second_min:
                self._say_and_leave(refusal(408, "the body took too long"))
                self._reader.forget_body()
        elif phase == Phase.LEAVING:
            is_writing = self.transport.get_write_buffer_size() > 0
            if waited >= (limits.stall_seconds if is_writing else limits.linger_seconds):
                self.transport.abort()
