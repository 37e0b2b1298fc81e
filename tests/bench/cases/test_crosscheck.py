"""What the crosscheck says of its rows: the same order, another one, or not enough to tell."""

from __future__ import annotations

import pytest

from bench.cases.crosscheck import CASE, GLUSTERFS, PLACES, THROTTLE, contradictions, order
from bench.core.adapters import CONTENDERS, FS, FS_NATIVE, OURS
from bench.core.case import Outcome, Row


def rows(times: dict[str, dict[str, float]], spread: float = 0.01, rounds: int = 5) -> list[Row]:
    """Place -> contender -> milliseconds, a little different in each round."""
    return [
        Row(
            "crosscheck",
            metric,
            milliseconds * (1 + spread * ((number * 7 + len(name)) % 5 - 2)),
            "ms",
            number,
            {"place": place, "adapter": name},
        )
        for place, by_name in times.items()
        for name, milliseconds in by_name.items()
        for metric in ("store", "lookup_load")
        for number in range(rounds)
    ]


USUAL = {OURS: 10.0, FS_NATIVE: 50.0, FS: 200.0}


def test_the_same_order_is_met() -> None:
    found = rows({THROTTLE: USUAL, GLUSTERFS: {name: 7 * ms for name, ms in USUAL.items()}})
    assert [verdict.outcome for verdict in CASE.verdicts(found)] == [Outcome.MET] * 2
    assert order(found, "store", GLUSTERFS) == [OURS, FS_NATIVE, FS]


def test_another_order_is_missed_and_the_pair_is_named() -> None:
    found = rows({THROTTLE: USUAL, GLUSTERFS: {OURS: 10.0, FS_NATIVE: 200.0, FS: 50.0}})
    (verdict, _) = CASE.verdicts(found)
    assert verdict.outcome is Outcome.MISSED
    assert contradictions(found, "store") == [f"{FS_NATIVE} and {FS}"]


def test_an_order_that_differs_within_the_noise_cannot_be_called_missed() -> None:
    near = {OURS: 10.0, FS_NATIVE: 51.0, FS: 50.0}
    found = rows({THROTTLE: USUAL | {FS_NATIVE: 199.9}, GLUSTERFS: near}, spread=0.2)
    assert CASE.verdicts(found)[0].outcome is Outcome.WITHIN


@pytest.mark.parametrize("missing", PLACES)
def test_a_place_that_was_not_measured_is_said_so(missing: str) -> None:
    found = rows({place: USUAL for place in PLACES if place != missing})
    verdict = CASE.verdicts(found)[0]
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert f"{missing}: not measured" in verdict.note


def test_the_table_has_every_contender_and_place() -> None:
    (figure,) = CASE.figures(rows({THROTTLE: USUAL}))
    assert figure.table is not None
    assert len(figure.table.lines) == 2 * len(PLACES)
    assert figure.table.lines[1][2:] == ("not measured",) * len(CONTENDERS)
