"""How much may be stored before hearing from the others again, so that the cap is never overrun.

Between two complete passes over all writers' journals a writer stores at most
(cap - reserve - usage) / (2 x writers), counting what it has in flight. Two, because between two
of my passes every other writer may use one credit granted before mine and one after. The reserve
is one in-flight maximum for each writer that is not known to have settled: a slow write may land
after everybody else has filled what it was granted from; and as much as all journals and snapshots
hold, since those are written without credit. The cap may be approached slowly; it is never overrun.
When a store finds no credit it waits, or is dropped, counted, and asks for a sweep whatever the
watermark says: without this, writers just below the watermark starve each other.

`share` and `low_watermark_bytes` are pure; `Credits` is a lock around two numbers.
"""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass

IN_FLIGHT_SHARE_OF_CAP = 64
"""In-flight maximum of a writer: at most this fraction of the cap, so that the reserve of twenty
writers leaves two thirds of it usable."""
IN_FLIGHT_BYTES = 1 << 30
"""In-flight maximum where the cap is large: four packs of 256 MiB at once."""
PACKS_IN_FLIGHT = 4
"""Packs are cut so that this many fit into what may be in flight."""
FULL_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Waits after the 1st, 2nd, ... write in a row that found the file system full."""
CREDIT_PASSES = 2.5
"""A credit older than this many passes is void: usage may have moved on without us."""


def in_flight_bytes_max(cap_bytes: int) -> int:
    """What one writer may have written and not yet published, in bytes."""
    return max(1, min(IN_FLIGHT_BYTES, cap_bytes // IN_FLIGHT_SHARE_OF_CAP))


def pack_bytes_max(cap_bytes: int) -> int:
    """Payload of a pack such that several fit into what may be in flight, headers included."""
    return max(1, in_flight_bytes_max(cap_bytes) // PACKS_IN_FLIGHT)


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who has to share. `unsettled` writers may have bytes in flight that nobody has counted:
    the live ones, and dead ones whose leftovers have not been looked for."""

    live: int
    unsettled: int


def share(cap_bytes: int, usage_bytes: int, crowd: Crowd) -> int:
    """Bytes one live writer may newly put in flight until its next pass."""
    flight = in_flight_bytes_max(cap_bytes)
    free = cap_bytes - crowd.unsettled * flight - usage_bytes
    return min(flight, max(0, free // (2 * max(1, crowd.live))))


def low_watermark_bytes(cap_bytes: int, ratio: float, crowd: Crowd, merge_bytes: int = 0) -> int:
    """Where a sweep stops: low enough that every writer's share then holds a full in-flight.

    `merge_bytes`: room that is kept for one more snapshot."""
    reserve = (crowd.unsettled + 2 * crowd.live) * in_flight_bytes_max(cap_bytes) + merge_bytes
    return max(0, min(int(cap_bytes * ratio), cap_bytes - reserve))


class Refusal(enum.Enum):
    """Why a reservation was refused."""

    STALE = "no complete pass over the journals lately"
    UNREAD = (
        "a journal or snapshot cannot be read, so nobody knows how much is stored: "
        "the log names it and what to do"
    )
    SPENT = "this pass's credit is spent"
    FULL = "no room below the cap"
    NO_SPACE = "the file system was full a moment ago"
    DISK_FULL = "the file system is full"
    TOO_LARGE = "its pack is larger than 1/64 of the cap, so it never fits: raise the cap"


class SpaceBackoff:
    """When to write again after ENOSPC or EDQUOT: longer with each time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times = 0
        self._until = float("-inf")

    def failed(self, now: float) -> None:
        """The file system was full. Failures of packs written side by side count once."""
        with self._lock:
            if now >= self._until:
                self._until = now + FULL_SECONDS[min(self._times, len(FULL_SECONDS) - 1)]
                self._times += 1

    def worked(self) -> None:
        """Something was written whole."""
        if self._times:
            with self._lock:
                self._times = 0

    def is_waiting(self, now: float) -> bool:
        return now < self._until


class Credits:
    """What this process may still store. Thread-safe. Without a cap everything is granted."""

    def __init__(self, pass_seconds: float, in_flight_counts: bool = True) -> None:
        self._lock = threading.Lock()
        self._valid_seconds = CREDIT_PASSES * pass_seconds
        self._in_flight_counts = in_flight_counts
        self._capped = False
        self._is_unread = False
        self._pack_limit_bytes = 0
        self._credit_bytes = 0
        self._granted_bytes = 0
        self._valid_until = float("-inf")
        self._in_flight_bytes = 0

    @property
    def in_flight_bytes(self) -> int:
        return self._in_flight_bytes

    def cap(self, cap_bytes: int | None) -> None:
        """From now on; None: everything is granted."""
        with self._lock:
            self._capped = cap_bytes is not None
            self._pack_limit_bytes = in_flight_bytes_max(cap_bytes or 0)

    def unread(self, is_unread: bool) -> None:
        """Whether a journal keeps all passes from being complete, so that waiting is in vain."""
        self._is_unread = is_unread

    def grant(self, share_bytes: int, now: float, pass_seconds: float) -> None:
        """A pass is complete: a new share, less what is already in flight."""
        with self._lock:
            held = self._in_flight_bytes if self._in_flight_counts else 0
            self._granted_bytes = share_bytes
            self._credit_bytes = max(0, share_bytes - held)
            self._valid_until = now + max(self._valid_seconds, CREDIT_PASSES * pass_seconds)

    def reserve(self, nbytes: int, now: float) -> Refusal | None:
        """Take `nbytes` of credit into flight, or say why not."""
        with self._lock:
            if self._capped:
                if nbytes > self._pack_limit_bytes:
                    return Refusal.TOO_LARGE
                if now > self._valid_until:
                    return Refusal.UNREAD if self._is_unread else Refusal.STALE
                if nbytes > self._credit_bytes:
                    return Refusal.SPENT if nbytes <= self._granted_bytes else Refusal.FULL
                self._credit_bytes -= nbytes
            self._in_flight_bytes += nbytes
            return None

    def settle(self, nbytes: int) -> None:
        """The bytes are published, or were never written, or are counted as an orphan."""
        with self._lock:
            self._in_flight_bytes -= nbytes
