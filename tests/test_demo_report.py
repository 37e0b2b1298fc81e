"""The demo's table and exit code: what failed is named, and shown."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from rich.console import Console

from bench.demo.__main__ import conclude
from bench.demo.conversations import Decided
from bench.demo.expect import Expected
from bench.demo.namespace import Contents
from bench.demo.scenario import Row

CONTENTS = Contents(24, 158, 662_900_000, 114_000, 0)


def row(*failures: str) -> Row:
    return Row(
        label="A then B",
        replica="B",
        prompt_tokens=4000,
        ttft_cold_seconds=4.86,
        ttft_seconds=0.86,
        reloaded_tokens=3840,
        expected=Expected(0, 3840, 160, chunks_loaded=15, chunks_new=0),
        tokens_equal=not failures,
        operations=Counter(open=2, read=15),
        operations_allowed=Counter(open=2, read=15),
        failures=failures,
    )


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=140)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_shows_what_was_measured_and_the_code_is_0(console: Console) -> None:
    assert conclude(console, [row()], CONTENTS, 60.0) == 0
    line = next(x for x in text(console).splitlines() if "A then B" in x)
    assert "24 packs with 158 chunks in 662.9 MB" in text(console)
    for cell in ("4000", "4.86 s", "0.86 s", "3840/3840", "equal", "open 2/2, read 15/15"):
        assert cell in line


DECIDED = Decided("conversation 1, turn 2", 2616, "B", "queue 3.0, total 9.5", 1, 0.5, True, ())


def test_what_the_router_decided_is_shown_and_judged(console: Console) -> None:
    assert conclude(console, [row()], None, 60.0, [DECIDED]) == 0
    line = next(x for x in text(console).splitlines() if "conversation 1, turn 2" in x)
    assert [cell.strip() for cell in line.split("│")[1:-1]] == [
        "conversation 1, turn 2", "2616", "B", "1", "0.50 s", "equal", "queue 3.0, total 9.5"
    ]  # fmt: skip
    assert "all 2 lines" in text(console)
    assert conclude(console, [row()], None, 60.0, [DECIDED], ["it went wrong"]) == 1
    assert "FAILED: it went wrong" in text(console)


def test_a_failing_line_is_named_and_the_code_is_1(console: Console) -> None:
    assert conclude(console, [row(), row("0 tokens reloaded, 3840 expected")], CONTENTS, 60.0) == 1
    assert "FAILED: A then B: 0 tokens reloaded, 3840 expected" in text(console)


def test_a_run_without_a_single_line_is_no_success(console: Console) -> None:
    assert conclude(console, [], CONTENTS, 60.0) == 1
