"""A case is run, saved as it goes, resumed, and its failures kept; the case is made for this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.core.case import LEFT_OUT, QUICK, Context, Figure, Row, Verdict
from bench.core.progress import Silent
from bench.core.registry import registry
from bench.core.results import load, save
from bench.core.runner import (
    Order,
    Recording,
    is_complete,
    new_run,
    newest_run,
    run_case,
    summary,
)
from tests.bench.core.test_bench_results import ORIGIN


class Toy:
    """Measures two cells; what happens in the second is up to the test."""

    name = "toy"
    question = "Does it run?"
    minutes: Mapping[str, float] = {"quick": 0.1, "full": 0.1}

    def __init__(self, second: Callable[[], float], needs: tuple[str, ...] = ()) -> None:
        self.second, self.needs = second, needs
        self.measured: list[str] = []

    def run(self, context: Context) -> None:
        measures: dict[str, Callable[[], float]] = {"first": lambda: 1.0, "second": self.second}
        for cell, measure in measures.items():
            if context.cells.finished(cell):
                continue
            self.measured.append(cell)
            for _ in range(context.rounds):
                context.record("load", measure(), "ms", cell=cell)
            context.cells.finish(cell)

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        return []

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        return []


@pytest.fixture
def order(tmp_path: Path) -> Order:
    return Order(profile=QUICK, directory=tmp_path, rounds=3)


def fails() -> float:
    raise OSError("the disk is on fire")


def interrupts() -> float:
    raise KeyboardInterrupt


def test_every_repeat_is_a_row_numbered_by_itself(tmp_path: Path, order: Order) -> None:
    saved = run_case(Toy(lambda: 2.0), order, tmp_path / "run", Silent())
    assert [(row.params["cell"], row.repeat) for row in saved.rows] == [
        *(("first", number) for number in range(3)),
        *(("second", number) for number in range(3)),
    ]
    assert saved.origin.complete
    assert load(tmp_path / "run" / "toy.parquet") == saved


def test_a_failing_case_keeps_what_it_measured_and_says_why(tmp_path: Path, order: Order) -> None:
    saved = run_case(Toy(fails), order, tmp_path / "run", Silent())
    assert saved.cells == {"first"}
    assert "the disk is on fire" in saved.origin.failure
    assert summary([saved]) == 1


def test_a_run_goes_on_with_the_cells_it_had_not_finished(tmp_path: Path, order: Order) -> None:
    run_case(Toy(fails), order, tmp_path / "run", Silent())
    toy = Toy(lambda: 2.0)
    saved = run_case(toy, order, tmp_path / "run", Silent())
    assert toy.measured == ["second"]
    assert [row.value for row in saved.rows] == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(("rounds", "seed", "named"), [(5, 1, "--rounds 3"), (3, 9, "--seed 1")])
def test_a_run_goes_on_only_with_what_it_was_measured_with(
    tmp_path: Path, order: Order, rounds: int, seed: int, named: str
) -> None:
    run_case(Toy(fails), order, tmp_path / "run", Silent())
    with pytest.raises(SystemExit, match=named):
        other = replace(order, rounds=rounds, seed=seed)
        run_case(Toy(lambda: 2.0), other, tmp_path / "run", Silent())


def test_a_run_goes_on_only_with_the_trace_it_began_with(tmp_path: Path, order: Order) -> None:
    (trace := tmp_path / "t.jsonl").write_text("one")
    begun = replace(order, trace=trace)
    run_case(Toy(fails), begun, tmp_path / "run", Silent())
    with pytest.raises(SystemExit, match="--trace t"):
        run_case(Toy(lambda: 2.0), order, tmp_path / "run", Silent())
    trace.write_text("another")
    with pytest.raises(SystemExit, match="--trace t"):
        run_case(Toy(lambda: 2.0), begun, tmp_path / "run", Silent())


def test_results_do_not_mix_two_kinds_of_directory(
    tmp_path: Path, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.core.machine.file_system", lambda _path: "tmpfs")
    run_case(Toy(fails), order, tmp_path / "run", Silent())
    monkeypatch.setattr("bench.core.machine.file_system", lambda _path: "nfs4")
    with pytest.raises(SystemExit, match="--dir on tmpfs"):
        run_case(Toy(lambda: 2.0), order, tmp_path / "run", Silent())


def test_what_parts_of_a_run_differ_in_is_named(
    tmp_path: Path, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_case(Toy(fails), order, tmp_path / "run", Silent()).origin
    monkeypatch.setattr("bench.core.machine.commit", lambda: "0123456789ab")
    again = run_case(Toy(lambda: 2.0), order, tmp_path / "run", Silent()).origin
    assert again.commit == f"{first.commit} and 0123456789ab"
    assert (again.command, again.started) == (first.command, first.started)


def test_rows_of_an_unfinished_cell_are_not_kept(tmp_path: Path, order: Order) -> None:
    path = tmp_path / "run" / "toy.parquet"
    saved = run_case(Toy(fails), order, tmp_path / "run", Silent())
    saved.rows.append(Row("toy", "load", 9.0, "ms", 0, {"cell": "second"}))
    save(path, saved)
    again = run_case(Toy(lambda: 2.0), order, tmp_path / "run", Silent())
    assert 9.0 not in [row.value for row in again.rows]


def test_a_row_that_names_no_cell_stays_with_the_one_that_finishes_next(
    tmp_path: Path, order: Order
) -> None:
    class Nameless(Toy):
        def run(self, context: Context) -> None:
            for cell, value in (("first", 1.0), ("second", self.second)):
                if not context.cells.finished(cell):
                    context.record("load", value() if callable(value) else value, "ms")
                    context.cells.finish(cell)

    run_case(Nameless(fails), order, tmp_path / "run", Silent())
    saved = run_case(Nameless(lambda: 2.0), order, tmp_path / "run", Silent())
    assert [(row.value, row.params) for row in saved.rows] == [
        (1.0, {"cell": "first"}),
        (2.0, {"cell": "second"}),
    ]


def test_a_case_that_takes_too_long_leaves_out_what_is_optional(
    tmp_path: Path, order: Order
) -> None:
    class Slow(Toy):
        minutes: Mapping[str, float] = {"quick": -1.0, "full": -1.0}

        def run(self, context: Context) -> None:
            if context.affords("the second half"):
                context.record("load", 1.0, "ms")

    saved = run_case(Slow(lambda: 2.0), order, tmp_path / "run", Silent())
    assert [(row.metric, row.params) for row in saved.rows] == [
        (LEFT_OUT, {"what": "the second half"})
    ]
    full = Order("full", tmp_path)
    assert run_case(Slow(lambda: 2.0), full, tmp_path / "full", Silent()).rows[0].value == 1.0


def test_a_case_whose_process_died_is_seen_in_the_results(tmp_path: Path, order: Order) -> None:
    def looks() -> float:
        saved = load(tmp_path / "run" / "toy.parquet")
        assert not saved.origin.complete
        assert len(saved.rows) == 3
        return 2.0

    assert run_case(Toy(looks), order, tmp_path / "run", Silent()).origin.complete


def test_an_interrupted_case_is_saved_before_the_interrupt_goes_on(
    tmp_path: Path, order: Order
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_case(Toy(interrupts), order, tmp_path / "run", Silent())
    saved = load(tmp_path / "run" / "toy.parquet")
    assert saved.cells == {"first"}
    assert saved.origin.failure == "interrupted"


def test_a_complete_case_is_not_run_again(tmp_path: Path, order: Order) -> None:
    run_case(Toy(lambda: 2.0), order, tmp_path / "run", Silent())
    toy = Toy(fails)
    assert run_case(toy, order, tmp_path / "run", Silent()).origin.complete
    assert toy.measured == []


def test_a_missing_tool_is_named_and_recorded_as_not_measured(tmp_path: Path, order: Order) -> None:
    toy = Toy(lambda: 2.0, needs=("no-such-tool",))
    saved = run_case(toy, order, tmp_path / "run", Silent())
    assert toy.measured == []
    assert saved.rows[0].value is None
    assert "install no-such-tool" in saved.rows[0].note
    assert summary([saved]) == 0


def test_a_run_is_not_continued_in_another_profile(tmp_path: Path, order: Order) -> None:
    run_case(Toy(fails), order, tmp_path / "run", Silent())
    with pytest.raises(SystemExit, match="quick run"):
        run_case(Toy(fails), Order("full", tmp_path), tmp_path / "run", Silent())


def test_scratch_is_removed_also_after_a_failure(tmp_path: Path, order: Order) -> None:
    run_case(Toy(fails), order, tmp_path / "run", Silent())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_newest_run_is_the_last_begun_that_has_results(tmp_path: Path, order: Order) -> None:
    for when in ("2026-01-02T10:00:00+00:00", "2026-01-02T09:00:00+00:00"):
        run_case(Toy(lambda: 2.0), order, new_run(tmp_path / "runs", QUICK, when), Silent())
    (tmp_path / "runs" / "20270101T000000Z-quick").mkdir()
    newest = newest_run(tmp_path / "runs")
    assert newest is not None
    assert newest.name == "20260102T100000Z-quick"


def test_a_part_of_a_case_is_not_taken_for_all_of_it(tmp_path: Path, order: Order) -> None:
    run_case(Toy(lambda: 2.0), replace(order, only=("ours",)), tmp_path / "run", Silent())
    with pytest.raises(SystemExit, match="--only ours"):
        run_case(Toy(lambda: 2.0), order, tmp_path / "run", Silent())


def test_a_damaged_file_is_named_and_not_overwritten(tmp_path: Path, order: Order) -> None:
    (tmp_path / "toy.parquet").write_bytes(b"garbage")
    assert not is_complete("toy", tmp_path)
    with pytest.raises(SystemExit, match=r"toy\.parquet"):
        run_case(Toy(lambda: 2.0), order, tmp_path, Silent())
    assert (tmp_path / "toy.parquet").read_bytes() == b"garbage"


class Turns(Exception):
    """The case has said how many rounds it will take."""


@pytest.mark.parametrize("name", ["catalog", "resource", "crosscheck"])
def test_no_case_takes_more_rounds_than_were_asked_for(name: str, tmp_path: Path) -> None:
    class Counting(Silent):
        def total(self, steps: int) -> None:
            found.append(steps)
            raise Turns

    found: list[int] = []
    for rounds in (1, 2):
        silent, cells = Counting(), Recording(tmp_path / "x", ORIGIN)
        context = Context(tmp_path, QUICK, silent, cells, rounds, 1, cells)
        with pytest.raises(Turns):
            registry().cases[name].run(context)
    assert found[0] < found[1]
