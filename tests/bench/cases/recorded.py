"""A context for cases under test: rows are kept in a list, progress says nothing."""

from __future__ import annotations

from pathlib import Path

from bench.core.case import QUICK, Context, Parameter, Row


class Recorded:
    """Recorder, progress and cells in one."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.cells: set[str] = set()

    def context(self, folder: Path, *, only: tuple[str, ...] = (), rounds: int = 2) -> Context:
        return Context(folder, QUICK, self, self, rounds, 1, self, only)

    def __call__(
        self,
        metric: str,
        value: float | None,
        unit: str,
        *,
        repeat: int | None = None,
        note: str = "",
        **params: Parameter,
    ) -> None:
        self.rows.append(Row("case", metric, value, unit, repeat or 0, params, note))

    def total(self, steps: int) -> None:
        return

    def step(self, text: str) -> None:
        return

    def finished(self, cell: str) -> bool:
        return cell in self.cells

    def finish(self, cell: str) -> None:
        self.cells.add(cell)

    def values(self, metric: str, **where: Parameter) -> list[float]:
        return [
            row.value
            for row in self.rows
            if row.metric == metric and row.value is not None and row.has(**where)
        ]
