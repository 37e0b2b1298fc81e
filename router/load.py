"""Load: what one replica has to do, as far as this router knows. State of one event loop.

Prefills are taken to be done one after the other in the order sent, each when its loads are there;
a first token says that the next can begin. What other processes on the port tell of their requests
counts like ours. Those of other routers show in the replica's own metrics: what it says is waiting
beyond ours counts as so many average prefills. Nothing here is reset by health. It must not know
prefixes, policies or what a choice costs.
"""

from __future__ import annotations

from math import exp

from router.estimate import Pressure
from router.outcome import Observation
from router.tickets import Ticket

USUAL_MEMORY = 0.95
FOREIGN_SECONDS = 30.0
"""After this long without a scrape, what was said of others' requests no longer counts."""

BUSY_SECONDS = 30.0
"""How far back "lately" goes: some answers' time, so that it says what the next one will meet."""


class Load:
    """Open tickets of one replica, and what is inferred from them."""

    def __init__(self) -> None:
        self.pending: dict[Ticket, None] = {}
        """Without a first token, in the order sent."""
        self.decoding: set[Ticket] = set()
        self.io_free_at = 0.0
        self.kv_usage = 0.0
        self.last_first_at = float("-inf")
        self.usual_s = 0.0
        """A mean prefill, slowed by decodes."""
        self._busy = 0.0
        self._busy_at = 0.0
        self._head_ends_at = 0.0
        self._free_at = 0.0
        self._foreign_waiting = 0
        self._foreign_decodes = 0
        self._foreign_until = float("-inf")

    @property
    def in_flight(self) -> int:
        """One's own, and those one was told of."""
        return len(self.pending) + len(self.decoding)

    def ours_pending(self) -> int:
        return sum(ticket.is_ours for ticket in self.pending)

    def ours(self) -> int:
        """Of `in_flight`."""
        return self.ours_pending() + sum(ticket.is_ours for ticket in self.decoding)

    def waiting(self, now: float) -> int:
        """Prefills not done, others' included."""
        foreign = self._foreign_waiting if now < self._foreign_until else 0
        return len(self.pending) + foreign

    def decodes(self, now: float) -> int:
        """Running decodes, others' included."""
        foreign = self._foreign_decodes if now < self._foreign_until else 0
        return len(self.decoding) + foreign

    def queue_s(self, now: float) -> float:
        """W: seconds until a request sent now could begin. A late head counts as due now."""
        seconds = 0.0
        if self.pending:
            seconds = self._free_at - self._head_ends_at + max(0.0, self._head_ends_at - now)
        if self._foreign_waiting and now < self._foreign_until:
            seconds += self._foreign_waiting * self.usual_s
        return seconds

    def io_wait_s(self, now: float) -> float:
        """Until loads sent earlier are done."""
        return max(0.0, self.io_free_at - now)

    def busy(self, now: float) -> float:
        """Share of its time it has been prefilling lately; what it was just sent counts in full."""
        share = self._busy
        if share:
            share *= exp((self._busy_at - now) / BUSY_SECONDS)
        return share if share < 1.0 else 1.0

    def settle(self, now: float) -> None:
        """Takes answers that are not streamed to be past their prefill when that is due: nothing
        else will tell."""
        while self.pending and now >= self._head_ends_at:
            head = next(iter(self.pending))
            if head.is_streamed:
                return
            self.first(head, self._head_ends_at)

    def pressure(self, now: float) -> Pressure:
        """All of the above at once."""
        return Pressure(*self.figures(now))

    def figures(self, now: float) -> tuple[float, int, float, int, float, float]:
        """The same, in the order of `Pressure`'s fields: every choice asks every replica."""
        queue_s = 0.0
        if self.pending:
            if now >= self._head_ends_at:
                self.settle(now)
            if self.pending:
                head_s = self._head_ends_at - now
                queue_s = self._free_at - self._head_ends_at + (head_s if head_s > 0.0 else 0.0)
        waiting, decodes = len(self.pending), len(self.decoding)
        if now < self._foreign_until:
            if self._foreign_waiting:
                waiting += self._foreign_waiting
                queue_s += self._foreign_waiting * self.usual_s
            decodes += self._foreign_decodes
        wait_s = self.io_free_at - now
        wait_s = wait_s if wait_s > 0.0 else 0.0
        return queue_s, waiting, wait_s, decodes, self.kv_usage, self.busy(now)

    def add(self, ticket: Ticket, now: float) -> None:
        """Reserves."""
        self._busy = self.busy(now) + ticket.compute_s / BUSY_SECONDS
        self._busy_at = now
        ticket.ready_at = now + ticket.io_s
        if ticket.shared_tokens:
            self.io_free_at = max(now, self.io_free_at) + ticket.load_s
        starts_at = ticket.ready_at
        if self.pending:
            free_at = now + self.queue_s(now)
            starts_at = free_at if free_at > starts_at else starts_at
        self._free_at = starts_at + ticket.compute_s
        if not self.pending:
            self._head_ends_at = self._free_at
            ticket.decodes = self.decodes(now)
        self.pending[ticket] = None
        if self.usual_s == 0.0:
            self.usual_s = ticket.compute_s

    def first(self, ticket: Ticket, now: float) -> None:
        """Its first token is here."""
        if ticket not in self.pending:
            return
        dispatched = ticket.chosen_at if ticket.sent_at is None else ticket.sent_at
        ticket.began_at = max(dispatched + ticket.io_s, self.last_first_at)
        ticket.was_idle = self.last_first_at <= dispatched
        self.last_first_at = max(now, self.last_first_at)
        del self.pending[ticket]
        self.decoding.add(ticket)
        self.usual_s += (1 - USUAL_MEMORY) * (ticket.compute_s - self.usual_s)
        self._reschedule(now)

    def drop(self, ticket: Ticket, now: float) -> None:
        """It is over, whatever it was doing."""
        self.decoding.discard(ticket)
        if ticket in self.pending:
            was_head = next(iter(self.pending)) is ticket
            del self.pending[ticket]
            if was_head:
                self.last_first_at = max(now, self.last_first_at)
            self._reschedule(now)

    def _reschedule(self, now: float) -> None:
        ends_at, is_head = self.last_first_at, True
        for ticket in self.pending:
            ready_at = ticket.ready_at
            ends_at = (ready_at if ready_at > ends_at else ends_at) + ticket.compute_s
            if is_head:
                self._head_ends_at, is_head = ends_at, False
                ticket.decodes = self.decodes(now)
        self._free_at = ends_at

    def observe(self, seen: Observation, now: float) -> None:
        """What the replica's metrics said just now."""
        if seen.kv_usage is not None:
            self.kv_usage = min(1.0, max(0.0, seen.kv_usage))
        ours = len(self.pending)
        if seen.waiting is not None:
            self._foreign_waiting = max(0, seen.waiting - ours)
            self._foreign_until = now + FOREIGN_SECONDS
        if seen.running is not None:
            running = seen.running + (seen.waiting or 0)
            others = running - self._foreign_waiting - self.in_flight
            self._foreign_decodes = max(0, others)
            self._foreign_until = now + FOREIGN_SECONDS
