"""Buffers lent to the store and taken back, the way LMCache does it, watched for late touches (I7).

A buffer given back is reused at once: what is in it then is remembered, and any later change by
the store is a violation. A buffer lent for storing is void when its time to live is over on the
lender's clock, done or not; it is overwritten then, so that whoever still reads it stores rubbish.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sim.disk import Disk
from tests.sim.world import Client

POISON = b"\xa5"


@dataclass(slots=True)
class Lent:
    """One reused buffer and what it must go on holding."""

    client: Client
    what: str
    buffer: bytearray
    expected: bytes


@dataclass(slots=True)
class Lender:
    """All buffers of one fleet."""

    disk: Disk
    returned: list[Lent] = field(default_factory=list)

    def take_back(self, client: Client, what: str, buffer: bytearray, *, reuse: bool) -> None:
        """`buffer` is the lender's again; with `reuse` something else is written into it."""
        if reuse:
            buffer[:] = POISON * len(buffer)
        self.returned.append(Lent(client, what, buffer, bytes(buffer)))

    def check(self) -> None:
        """Nobody has touched a returned buffer."""
        for lent in self.returned:
            if lent.buffer != lent.expected:
                self.disk.violate(f"a buffer of {lent.what} was written to after its return (I7)")
                return
