"""What goes wrong, and when: freezes, kills, errors, hangs; at a seeded rate or a chosen operation.

`Chaos` is asked before every file operation of a client. It may kill or freeze the client there,
or return a `Fault` that the operation then suffers. Rates are per operation.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from sharedfs_backend.files.failure import FailureKind
from tests.sim.world import Client, World


class When(enum.Enum):
    """Where inside an operation a fault strikes."""

    BEFORE = "before"  # the effect does not happen
    AFTER = "after"  # the effect happens, and still an error is returned


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind` None: only slow, by `seconds`."""

    kind: FailureKind | None
    when: When = When.BEFORE
    seconds: float = 0.0
    short: bool = False


@dataclass(slots=True)
class Rates:
    """Per operation, for clients that are not exempt."""

    kill: float = 0.0
    freeze: float = 0.0
    freeze_seconds: tuple[float, float] = (0.5, 5000.0)
    fail: float = 0.0
    hang: float = 0.0
    hang_seconds: tuple[float, float] = (1.0, 2000.0)
    short_read: float = 0.0
    at: tuple[tuple[str, str], ...] = ()  # (operation, start of a path): only there; () anywhere
    kinds: tuple[FailureKind, ...] = (
        FailureKind.IO,
        FailureKind.STALE,
        FailureKind.NO_SPACE,
        FailureKind.TIMEOUT,
    )


@dataclass
class Chaos:
    """The seeded source of trouble of one world."""

    world: World
    rates: Rates = field(default_factory=Rates)
    exempt: set[str] = field(default_factory=set)  # operations, e.g. while a namespace is made
    kills_left: int = 1_000_000
    spared: Callable[[Client], bool] = lambda _client: False
    """Clients that may be killed or frozen, but whose operations do not fail."""
    disturbed: dict[str, float] = field(default_factory=dict)
    """Until when (world time) a client was last frozen, or an operation of it went wrong."""
    on_operation: list[Callable[[Client, str, str], Fault | None]] = field(default_factory=list)
    quiet: bool = False

    def before(self, client: Client, op: str, path: str) -> Fault | None:
        """Called as an operation starts; may raise SimKilled."""
        for call in self.on_operation:
            chosen = call(client, op, path)
            if chosen is not None:
                return chosen
        if self.quiet:
            return None
        rates, choice = self.rates, self.world.random
        if rates.at and not any(op == o and path.startswith(start) for o, start in rates.at):
            return None
        dice = choice.random()
        for rate, strike in (
            (rates.kill, self._kill),
            (rates.freeze, self._freeze),
            (rates.fail, self._fail),
            (rates.hang, self._hang),
            (rates.short_read, self._short),
        ):
            if dice < rate:
                return strike(client, op)
            dice -= rate
        return None

    def _disturb(self, client: Client, seconds: float = 0.0) -> None:
        until = self.world.time + seconds
        self.disturbed[client.name] = max(until, self.disturbed.get(client.name, 0.0))

    def _kill(self, client: Client, _op: str) -> None:
        if self.kills_left > 0:
            self.kills_left -= 1
            # Half of the kills come while the operation is inside the kernel.
            if self.world.random.random() < 0.5:
                self.world.kill(client)
            soon = self.world.time + self.world.random.random() * 0.002
            self.world.at(soon, lambda: self.world.kill(client))

    def _freeze(self, client: Client, _op: str) -> None:
        seconds = log_uniform(self.world, *self.rates.freeze_seconds)
        self._disturb(client, seconds)
        self.world.freeze(client, seconds, machine=self.world.random.random() < 0.5)

    def _fail(self, client: Client, op: str) -> Fault | None:
        if op in self.exempt or self.spared(client):
            return None
        self._disturb(client)
        kind = self.world.random.choice(self.rates.kinds)
        return Fault(kind, self.world.random.choice(list(When)))

    def _hang(self, client: Client, _op: str) -> Fault | None:
        if self.spared(client):
            return None
        seconds = log_uniform(self.world, *self.rates.hang_seconds)
        self._disturb(client, seconds)
        return Fault(None, seconds=seconds)

    def _short(self, client: Client, op: str) -> Fault | None:
        if op != "read" or self.spared(client):
            return None
        self._disturb(client)
        return Fault(None, short=True)


def log_uniform(world: World, low: float, high: float) -> float:
    """Every order of magnitude between `low` and `high` is as likely as any other."""
    return math.exp(world.random.uniform(math.log(low), math.log(high)))
