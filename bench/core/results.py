"""Results of one case in one run: rows and where they come from, as one Parquet file.

Columns: case, metric, value, unit, repeat, note, then one for each parameter any row has (null
where a row lacks it). The schema's metadata hold the origin (machine, commit, command, dates, load)
and which cells are finished, so a file says everything about itself. Files are replaced whole, by
rename: an interrupted run leaves the last complete state.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.core.case import Parameter, Row

RESERVED = ("case", "metric", "value", "unit", "repeat", "note")
SUFFIX = ".parquet"
_META = b"bench"


class UnreadableResults(Exception):
    """A file that is no results of a case, or not whole; the text names it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the rows of a file come from. Loads are of the last minute, which what ran before the
    case is part of; `busy_start` are the cores that worked for others just before it."""

    case: str
    profile: str
    machine: str
    commit: str
    versions: str
    command: str
    directory: str
    started: str
    ended: str = ""
    rounds: int = 0
    seed: int = 0
    busy_start: float = 0.0
    load_start: float = 0.0
    load_end: float = 0.0
    stolen_share: float = 0.0
    complete: bool = False
    failure: str = ""
    warnings: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    trace: str = ""
    """A file measured in place of generated requests: its name and the begin of its digest."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A file's content."""

    origin: Origin
    rows: list[Row]
    cells: frozenset[str] = field(default_factory=frozenset)


def save(path: Path, saved: Saved) -> None:
    """Replace `path` by these rows. ValueError for a parameter named like a column, or one whose
    values are of several kinds."""
    meta = {"origin": dataclasses.asdict(saved.origin), "cells": sorted(saved.cells)}
    table = _table(saved.rows).replace_schema_metadata({_META: json.dumps(meta).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(table, beside)
    beside.replace(path)


def load(path: Path) -> Saved:
    """What `save` wrote. Raises UnreadableResults."""
    try:
        table = pq.read_table(path)
        meta = json.loads((table.schema.metadata or {})[_META])
        known = {item.name for item in dataclasses.fields(Origin)}
        fields = {name: value for name, value in meta["origin"].items() if name in known}
        for name in ("warnings", "only"):
            fields[name] = tuple(fields.get(name, ()))
        return Saved(Origin(**fields), list(_rows(table)), frozenset(meta["cells"]))
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        first = str(error).partition("\n")[0]
        why = f"{type(error).__name__}: {first}"
        raise UnreadableResults(f"{path}: no results of a case ({why})") from error


def load_run(folder: Path, unreadable: Callable[[str], None] | None = None) -> dict[str, Saved]:
    """Every case saved in a run's folder, by name. What cannot be read is told to `unreadable`, or
    raised where nobody wants to hear it."""
    found: dict[str, Saved] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            found[path.stem] = load(path)
        except UnreadableResults as error:
            if unreadable is None:
                raise
            unreadable(str(error))
    return found


def load_runs(
    folders: Sequence[Path], unreadable: Callable[[str], None] | None = None
) -> dict[str, Saved]:
    """The cases of several runs; one that an earlier folder has too is told apart by its profile,
    and by its folder where that is the same."""
    found: dict[str, Saved] = {}
    for folder in folders:
        for name, saved in load_run(folder, unreadable).items():
            names = (name, f"{name}, {saved.origin.profile}", f"{name}, {folder.name}")
            found[next((one for one in names if one not in found), names[-1])] = saved
    return found


def _table(rows: Sequence[Row]) -> Any:
    names = sorted({name for row in rows for name in row.params})
    clash = [name for name in names if name in RESERVED]
    if clash:
        raise ValueError(f"a parameter may not be called {clash[0]!r}: that is a column")
    columns: dict[str, Any] = {
        "case": pa.array([row.case for row in rows], pa.string()),
        "metric": pa.array([row.metric for row in rows], pa.string()),
        "value": pa.array([_finite(row) for row in rows], pa.float64()),
        "unit": pa.array([row.unit for row in rows], pa.string()),
        "repeat": pa.array([row.repeat for row in rows], pa.int32()),
        "note": pa.array([row.note for row in rows], pa.string()),
    }
    for name in names:
        columns[name] = _column(name, [row.params.get(name) for row in rows])
    return pa.table(columns)


def _finite(row: Row) -> float | None:
    if row.value is None:
        return None
    if not math.isfinite(row.value):
        raise ValueError(f"{row.metric}: {row.value} is no measurement; record None and a note")
    return float(row.value)


def _column(name: str, values: list[Parameter | None]) -> Any:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        kinds, values = {float}, [None if value is None else float(value) for value in values]
    if len(kinds) != 1:
        raise ValueError(f"parameter {name!r} has values of several kinds: {kinds}")
    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    return pa.array(values, types[kinds.pop()])


def _rows(table: Any) -> Iterable[Row]:
    for line in table.to_pylist():
        params = {
            name: value
            for name, value in line.items()
            if name not in RESERVED and value is not None
        }
        yield Row(
            case=line["case"],
            metric=line["metric"],
            value=line["value"],
            unit=line["unit"],
            repeat=line["repeat"],
            params=params,
            note=line["note"],
        )
