"""Tidings: what the processes on one port tell each other of their requests, as bytes. No sockets.

`Teller` writes down that a request was placed, had its first token, and is over; `Heard` reads
another's and keeps its open tickets in the fleet, beside one's own: each process then knows every
prefix and every reservation. What an answer teaches is not told: each learns from its own.

A message is a msgpack array of events; an event is an array that begins with its kind. A ticket's
number is its teller's; times are of the clock all processes of a machine share. What cannot be read
raises ValueError, and whoever sent it is not listened
to any more. One's tidings end with the connection: what was open is taken to have failed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final

import msgspec

from router.fleet import Fleet
from router.tickets import Ticket

PLACED: Final = 0
FIRST: Final = 1
OVER: Final = 2
"""Without a FIRST before: it failed, and what was to be computed may not have been."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Teller:
    """Of one process, for all others. `wake` is called when there is something to `take`."""

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self._wake = wake
        self._events: list[Any] = []
        self._last = 0

    def __len__(self) -> int:
        return len(self._events)

    def placed(self, ticket: Ticket) -> None:
        """It is reserved, and from now on told of."""
        self._last += 1
        ticket.number = self._last
        blocks = array("Q", ticket.blocks).tobytes()
        self._happened(
            (
                PLACED, self._last, ticket.chosen_at, ticket.replica, ticket.block_tokens,
                ticket.prompt_tokens, ticket.local_tokens, ticket.host_tokens,
                ticket.shared_tokens, ticket.compute_s, ticket.io_s, ticket.load_s,
                ticket.local_s, ticket.is_streamed, ticket.io_waited_s, blocks,
            )
        )  # fmt: skip

    def first(self, ticket: Ticket) -> None:
        if ticket.number:
            self._happened((FIRST, ticket.number, ticket.first_at))

    def closed(self, ticket: Ticket, now: float) -> None:
        if ticket.number:
            self._happened((OVER, ticket.number, now))

    def _happened(self, event: Any) -> None:
        if not self._events and self._wake is not None:
            self._wake()
        self._events.append(event)

    def take(self) -> bytes:
        """All there is to tell since the last time."""
        events, self._events = self._events, []
        return _encode(events)


class Heard:
    """What one other process told: its open tickets, by number."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._open: dict[int, Ticket] = {}

    def __len__(self) -> int:
        return len(self._open)

    def hear(self, message: bytes, now: float) -> None:
        """ValueError for what nobody of this version says."""
        try:
            for event in _decode(message):
                self._happened(event, now)
        except (msgspec.MsgspecError, TypeError, LookupError) as error:
            raise ValueError(f"tidings that cannot be read: {error}") from error

    def _happened(self, event: Any, now: float) -> None:
        kind, number, at = event[0], event[1], min(float(event[2]), now)
        if kind == PLACED:
            ticket = _ticket(event, at)
            if self._fleet.heard(ticket, at):
                self._open[number] = ticket
        elif kind == FIRST:
            known = self._open.get(number)
            if known is not None:
                self._fleet.first_byte(known, at)
        elif kind == OVER:
            known = self._open.pop(number, None)
            if known is not None:
                self._fleet.released(known, at)
        else:
            raise ValueError(f"no such event: {kind!r}")

    def gone(self, now: float) -> None:
        """It tells nothing any more, and its requests ended with it."""
        while self._open:
            self._fleet.released(self._open.popitem()[1], now)


def _ticket(event: Any, at: float) -> Ticket:
    (
        _, _, _, replica, block_tokens, prompt_tokens, local_tokens, host_tokens, shared_tokens,
        compute_s, io_s, load_s, local_s, is_streamed, io_waited_s, packed,
    ) = event  # fmt: skip
    blocks = array("Q")
    blocks.frombytes(packed)
    ticket = Ticket(
        replica,
        blocks,
        float(block_tokens),
        prompt_tokens,
        float(local_tokens),
        float(host_tokens),
        float(shared_tokens),
        float(compute_s),
        float(io_s),
        float(load_s),
        float(local_s),
        at,
        0,  # what this one thinks the replica held is known when it is placed
        is_streamed,
        float(io_waited_s),
    )
    ticket.is_ours = False
    return ticket
