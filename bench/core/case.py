"""Case: one question asked of the system, and the values it deals in.

A case records rows while it runs; figures and verdicts are made from rows alone, later and perhaps
elsewhere. A row is one repeat of one metric under stated parameters. What could not be measured is
a row too: its value is None and its note says why. Nothing here measures, draws or writes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

QUICK, FULL = "quick", "full"
LEFT_OUT = "left out"
"""The metric of rows that say what a profile does not measure; their parameter `what` names it."""
Parameter = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Row:
    """One repeat. `value` is None where it was not measured (`note` says why) or where the row
    carries text (`unit` is "text": a profile, a warning)."""

    case: str
    metric: str
    value: float | None
    unit: str
    repeat: int = 0
    params: Mapping[str, Parameter] = field(default_factory=dict)
    note: str = ""

    def has(self, **wanted: Parameter) -> bool:
        """Whether it was taken under these parameters."""
        return all(self.params.get(name) == value for name, value in wanted.items())


class Recorder(Protocol):
    """Keeps one row. `repeat` counts up by itself for equal metric and parameters, unless given:
    give the round wherever contenders take turns, so that a failed turn cannot shift the pairs."""

    def __call__(
        self,
        metric: str,
        value: float | None,
        unit: str,
        *,
        repeat: int | None = None,
        note: str = "",
        **params: Parameter,
    ) -> None: ...


class Progress(Protocol):
    """What a person sees while a case runs."""

    def total(self, steps: int) -> None:
        """How many steps there will be in all."""

    def step(self, text: str) -> None:
        """Another step is done; `text` says what comes next."""


class Cells(Protocol):
    """Parts of a case that are saved as they finish, so that an interrupted run can go on.

    Rows that belong to a cell carry its name as their parameter `cell`; when a run goes on, rows of
    finished cells are kept and all others are measured again."""

    def finished(self, cell: str) -> bool:
        """Whether an earlier part of this run measured this cell to its end: leave it out then."""

    def finish(self, cell: str) -> None:
        """Everything recorded so far is saved and this cell will not be measured again."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Context:
    """What a case is given. `folder` is scratch of its own, on the directory the user named."""

    folder: Path
    profile: str
    progress: Progress
    record: Recorder
    rounds: int
    seed: int
    cells: Cells
    only: tuple[str, ...] = ()
    """Names of contenders or cells to confine the case to; empty: all of them."""
    trace: Path | None = None
    """A file of requests to measure, for cases that take one (`takes_trace`)."""
    is_late: Callable[[], bool] = _never
    """Whether the case has taken so long that what is optional is to be left out."""

    @property
    def quick(self) -> bool:
        return self.profile == QUICK

    def wants(self, name: str) -> bool:
        return not self.only or name in self.only

    def missing(self, metric: str, unit: str, why: str, **params: Parameter) -> None:
        """Record that a value was not measured, and why."""
        self.record(metric, None, unit, repeat=None, note=why, **params)

    def left_out(self, what: str, why: str = "") -> None:
        """Record that this profile does not measure something that the full one does."""
        self.record(
            LEFT_OUT, None, "", repeat=0, note=why or "not part of the quick profile", what=what
        )

    def affords(self, what: str) -> bool:
        """Whether there is time for something optional; where there is not, that is recorded."""
        if not self.is_late():
            return True
        self.left_out(what, "the case had taken too long already for a quick run on this machine")
        return False

    def text(self, metric: str, content: str, **params: Parameter) -> None:
        """Record a text as evidence: a profile, a warning, the output of a tool."""
        self.record(metric, None, "text", repeat=None, note=content, **params)


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are to be read."""

    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot, a table or both, under one sentence: what it shows, and where its precision ends.

    `draw` is given an empty matplotlib figure; bench/report/plots.py has what most of them need.
    """

    name: str
    title: str
    sentence: str
    draw: Callable[[Any], None] | None = None
    table: Table | None = None
    text: str = ""
    inches: tuple[float, float] = (8.0, 4.5)


class Outcome(enum.Enum):
    """MET: the estimate reaches the target. WITHIN: it does not, but the interval does, so the run
    cannot call it missed. MISSED: the whole interval falls short."""

    MET = "met"
    WITHIN = "met within the interval"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what came of it. `measured`, `low`, `high` in the target's unit."""

    name: str
    target: str
    outcome: Outcome
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    note: str = ""


class Case(Protocol):
    """One question. Implementations are stateless; `minutes` has what each profile takes on a quiet
    machine with two cores: shown before a run, never in a result. `needs` names tools
    (bench/core/needs.py): where one is missing the case is not run, and what would install it is
    said and recorded. A case may also have `random_by_nature`: metrics whose spread is a result and
    no noise; `selectable`: what `--only` may name; and `takes_trace`: it can measure the requests
    of a file in place of generated ones."""

    name: str
    question: str
    minutes: Mapping[str, float]
    needs: tuple[str, ...]

    def run(self, context: Context) -> None: ...

    def figures(self, rows: Sequence[Row]) -> list[Figure]: ...

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]: ...
