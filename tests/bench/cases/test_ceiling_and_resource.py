"""fio is given what ours used; an hour's growth is judged by its last part."""

from __future__ import annotations

import pytest

from bench.cases.ceiling import BATCH, used
from bench.cases.resource import CASE, HOUR
from bench.core.case import Outcome, Parameter, Row
from bench.core.fio import Plan


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


def hour(grows_to: float, minutes: float = 60.0) -> list[Row]:
    rows = []
    for second in range(0, int(60 * minutes), 10):
        value = 100.0 if second < 1800 else grows_to
        for metric in ("rss", "fds", "threads"):
            where: dict[str, Parameter] = {"cell": HOUR, "side": "ours", "seconds": float(second)}
            rows.append(Row("resource", f"{metric}_at", value, "", 0, where))
    return rows


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        (hour(101.0), Outcome.MET),
        (hour(103.0), Outcome.MISSED),
        (hour(101.0, minutes=40.0), Outcome.NOT_MEASURED),
        ([], Outcome.NOT_MEASURED),
    ],
)
def test_growth_over_an_hour_is_that_after_the_first_minutes(
    rows: list[Row], outcome: Outcome
) -> None:
    assert {verdict.outcome for verdict in CASE.verdicts(rows)} == {outcome}
