"""Rows on disk: what is saved comes back, and what cannot be a measurement is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.core.case import Row
from bench.core.results import Origin, Saved, UnreadableResults, load, load_run, save

ORIGIN = Origin(
    case="reload",
    profile="quick",
    machine="two cores",
    commit="0123456789ab",
    versions="lmcache 0.5.6",
    command="python -m bench run reload",
    directory="tmpfs",
    started="2026-01-01T00:00:00+00:00",
    warnings=("it was noisy: try more rounds",),
)
ROWS = [
    Row("reload", "load", 1.5, "ms", 0, {"adapter": "ours", "latency_ms": 1.0}),
    Row("reload", "load", None, "ms", 1, {"adapter": "fs", "latency_ms": 1.0}, "it failed"),
    Row("reload", "opens", 4.0, "", 0, {"adapter": "ours", "kind": "open"}),
]


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    saved = Saved(ORIGIN, ROWS, frozenset({"batch"}))
    save(tmp_path / "reload.parquet", saved)
    assert load(tmp_path / "reload.parquet") == saved
    assert load_run(tmp_path) == {"reload": saved}


def test_parameters_are_columns_and_a_row_is_a_repeat(tmp_path: Path) -> None:
    save(tmp_path / "reload.parquet", Saved(ORIGIN, ROWS))
    table = pq.read_table(tmp_path / "reload.parquet")
    assert table.column_names == [
        *("case", "metric", "value", "unit", "repeat", "note"),
        *("adapter", "kind", "latency_ms"),
    ]
    assert table["latency_ms"].to_pylist() == [1.0, 1.0, None]


def test_a_run_without_rows_can_be_saved(tmp_path: Path) -> None:
    save(tmp_path / "reload.parquet", Saved(ORIGIN, []))
    assert load(tmp_path / "reload.parquet").rows == []


def test_saving_leaves_nothing_but_the_file(tmp_path: Path) -> None:
    for _ in range(2):
        save(tmp_path / "reload.parquet", Saved(ORIGIN, ROWS))
    assert [path.name for path in tmp_path.iterdir()] == ["reload.parquet"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_is_refused(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="no measurement"):
        save(tmp_path / "x.parquet", Saved(ORIGIN, [Row("reload", "load", value, "ms")]))


def test_a_parameter_named_like_a_column_is_refused(tmp_path: Path) -> None:
    row = Row("reload", "load", 1.0, "ms", 0, {"unit": "MB"})
    with pytest.raises(ValueError, match="column"):
        save(tmp_path / "x.parquet", Saved(ORIGIN, [row]))


def test_values_of_two_kinds_under_one_name_are_refused(tmp_path: Path) -> None:
    rows = [dataclasses.replace(ROWS[0], params={"chunk": chunk}) for chunk in (256, "big")]
    with pytest.raises(ValueError, match="several kinds"):
        save(tmp_path / "x.parquet", Saved(ORIGIN, rows))


def test_whole_and_broken_numbers_share_a_column(tmp_path: Path) -> None:
    rows = [dataclasses.replace(ROWS[0], params={"share": share}) for share in (1, 0.5)]
    save(tmp_path / "x.parquet", Saved(ORIGIN, rows))
    assert [row.params["share"] for row in load(tmp_path / "x.parquet").rows] == [1.0, 0.5]


@pytest.mark.parametrize("damage", ["garbage", "truncated", "foreign", "no-machine"])
def test_what_is_no_whole_file_of_results_is_said_with_its_name(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "reload.parquet"
    save(path, Saved(ORIGIN, []))
    if damage == "garbage":
        path.write_bytes(b"garbage")
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:300])
    elif damage == "foreign":
        pq.write_table(pa.table({"a": [1]}), path)
    else:
        meta = json.dumps({"origin": {"case": "reload"}, "cells": []}).encode()
        pq.write_table(pq.read_table(path).replace_schema_metadata({b"bench": meta}), path)
    with pytest.raises(UnreadableResults, match=r"reload\.parquet"):
        load(path)


def test_other_cases_are_read_beside_a_damaged_one(tmp_path: Path) -> None:
    save(tmp_path / "reload.parquet", Saved(ORIGIN, []))
    (tmp_path / "catalog.parquet").write_bytes(b"garbage")
    told: list[str] = []
    assert list(load_run(tmp_path, told.append)) == ["reload"]
    assert "catalog.parquet" in told[0]
