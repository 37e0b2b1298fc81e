"""fio is given what ours used; an hour's growth is judged by its second half."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.cases.ceiling import BATCH, used
from bench.cases.resource_says import BATCH as RESOURCE_BATCH
from bench.cases.resource_says import (
    COUNTED,
    FILES_LEFT,
    HOUR,
    HOUR_BATCH,
    HOUR_OPTIONS,
    figures,
    verdicts,
)
from bench.core.case import Outcome, Parameter, Row
from bench.core.fio import Plan
from sharedfs_backend.settings import Settings


def test_fio_gets_the_threads_and_the_size_of_the_calls_that_ours_made() -> None:
    before = {"bytes_read": 1e9, "reads": 7.0}
    after = {
        "depth": 27.0,
        "bytes_read": 1e9 + BATCH.total,
        "reads": 7.0 + BATCH.total / (4 << 20),
        "bytes_stored": float(BATCH.total),
        "pack_operations_write": BATCH.total / (6.7 * (1 << 20)),
        "pack_operations_create": 4.0,
    }
    assert used(before, after, 8) == {
        "load": Plan(27, 4 << 20, BATCH.total),
        "store": Plan(4, 8 << 20, BATCH.total),
    }
    assert used(before, after, 2)["store"].threads == 2


Growth = Callable[[float], float]


def nothing(chunks: float) -> float:
    return 0.0 * chunks


def hour(
    grows: str = "", by: Growth = nothing, *, minutes: float = 60.0, until: float = 1800.0
) -> list[Row]:
    """Rows of an hour in which a million chunks were stored. Every metric is 1000; one grows by
    what `by` makes of the chunks stored after `until` seconds."""
    rows = []
    for second in range(0, int(60 * minutes), 10):
        chunks = second / 3600 * 1e6
        late_chunks = max(0.0, second - until) / 3600 * 1e6
        where: dict[str, Parameter] = {"cell": HOUR, "side": "ours", "seconds": float(second)}
        rows.append(Row("resource", "chunks_at", chunks, "", 0, where))
        for metric in ("rss", "fds", "threads", *COUNTED):
            value = 1000.0 + (by(late_chunks) if metric == grows else 0.0)
            rows.append(Row("resource", f"{metric}_at", value, "", 0, where))
    return rows


def outcomes(rows: list[Row]) -> dict[str, Outcome]:
    return {
        verdict.name.removeprefix("over an hour: "): verdict.outcome for verdict in verdicts(rows)
    }


NAMES = {
    "rss": "resident memory",
    "fds": "descriptors",
    "threads": "threads",
    "catalog_rows": "chunks in the catalog",
    "packs_known": "packs known, also those gone",
    "writers_known": "writers known",
}
KEY_AND_POINTER = 49 + 8
"""Bytes of the smallest thing that can be left behind for each chunk."""


def test_a_process_that_has_stopped_growing_meets_everything() -> None:
    grew_before = hour("rss", lambda chunks: 1.7e-3 * min(chunks, 450_000), until=0.0)
    assert set(outcomes(grew_before).values()) == {Outcome.MET}
    assert set(outcomes(grew_before)) == set(NAMES.values())


@pytest.mark.parametrize(
    ("metric", "grows_by"),
    [
        ("rss", lambda chunks: chunks * KEY_AND_POINTER / 1e6),
        ("fds", lambda chunks: chunks / 1e4),
        ("threads", lambda chunks: chunks / 1e4),
        ("catalog_rows", lambda chunks: chunks),
        ("packs_known", lambda chunks: chunks / 64),
        ("writers_known", lambda chunks: chunks / 1e3),
    ],
)
def test_what_grows_on_in_the_second_half_of_an_hour_is_seen(metric: str, grows_by: Growth) -> None:
    found = outcomes(hour(metric, grows_by))
    assert {name for name, one in found.items() if one is Outcome.MISSED} == {NAMES[metric]}


def test_counts_that_rise_and_fall_are_judged_by_their_highest() -> None:
    saw = hour("packs_known", lambda chunks: chunks % 130_000 / 100, until=0.0)
    assert outcomes(saw)[NAMES["packs_known"]] is Outcome.MET


@pytest.mark.parametrize("rows", [hour(minutes=40.0), []])
def test_less_than_an_hour_says_nothing(rows: list[Row]) -> None:
    assert set(outcomes(rows).values()) == {Outcome.NOT_MEASURED}


def test_the_growth_of_each_side_and_every_bound_are_told() -> None:
    rows = hour("rss", lambda chunks: chunks * 20 / 1e6)
    fixed: dict[str, Parameter] = {"cell": HOUR, "side": "ours"}
    rows.append(Row("resource", "catalog_rows_limit", 4e6, "", 0, fixed))
    time, remembered = (figure.table for figure in figures(rows))
    assert time is not None and remembered is not None
    (line,) = time.lines
    assert (line[0], line[1], line[-1]) == ("ours", "1000", "20.0")
    assert remembered.lines[0] == ("chunks in the catalog", "1,000", "1,000", "4,000,000")
    assert remembered.lines[1][-1] == FILES_LEFT


def test_an_hour_moves_as_many_bytes_as_the_other_batches_in_a_million_chunks() -> None:
    assert HOUR_BATCH.total == RESOURCE_BATCH.total
    settings = Settings(root="/x", **HOUR_OPTIONS)  # type: ignore[arg-type] # by name
    assert settings.cap_bytes is not None
    chunks_at_cap = settings.cap_bytes * settings.high_watermark_ratio / HOUR_BATCH.size
    batches_a_minute = 25  # more is seen where nothing else runs
    assert chunks_at_cap < 5 * batches_a_minute * HOUR_BATCH.count
    assert settings.keys_memo_max < 30 * batches_a_minute * HOUR_BATCH.count
