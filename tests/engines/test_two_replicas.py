"""`make demo` as a test: the same scenario, smaller, on two real engines (I2, I4, I8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.demo.conversations import Conversations, Talk, judge
from bench.demo.fleet import Replica
from bench.demo.front import Front
from bench.demo.prompts import tokens
from bench.demo.scenario import Plan, Row, Scenario

PLAN = Plan(
    one_way_tokens=(1100,),
    other_way_tokens=(1025,),
    turns=3,
    first_turn_tokens=800,
    later_turn_tokens=300,
    half_tokens=1200,
    seed="test",
)


@pytest.fixture(scope="module")
def scenario(pair: tuple[Replica, Replica], front: Front) -> Scenario:
    done = Scenario(*pair, PLAN, print, front)
    done.run()
    return done


@pytest.fixture(scope="module")
def rows(scenario: Scenario) -> dict[str, Row]:
    return {row.label: row for row in scenario.rows}


def test_nothing_differs_from_what_had_to_happen(scenario: Scenario) -> None:
    assert [(row.label, row.failures) for row in scenario.rows if row.failures] == []
    assert len(scenario.rows) == 6


def test_a_prefix_stored_by_one_is_reloaded_by_the_other_both_ways(rows: dict[str, Row]) -> None:
    assert rows["A then B"].reloaded_tokens == 1024
    assert rows["B then A"].reloaded_tokens == 1024


def test_greedy_tokens_are_those_of_a_run_that_shared_nothing(rows: dict[str, Row]) -> None:
    assert all(row.tokens_equal for row in rows.values())


def test_a_load_costs_an_open_for_each_pack_and_a_read_for_each_piece(
    rows: dict[str, Row],
) -> None:
    used, allowed = rows["A then B"].operations, rows["A then B"].operations_allowed
    assert used is not None
    assert used["read"] == allowed["read"] in (4, 16)  # 4 chunks of 4 MiB, pieces of 4 or 1 MiB
    assert 1 <= used["open"] <= 2
    assert set(used) <= {"open", "read", "close"}


def test_each_turn_reloads_what_the_other_replica_answered(rows: dict[str, Row]) -> None:
    assert [rows[f"turn {n} on {r}"].reloaded_tokens for n, r in ((1, "A"), (2, "B"))] == [0, 768]
    assert rows["turn 3 on A"].reloaded_tokens > 0


def test_half_a_prefix_is_worth_its_whole_chunks(rows: dict[str, Row]) -> None:
    assert rows["first half, from A"].reloaded_tokens == 512


def test_a_prompt_of_whole_chunks_reloads_all_but_its_last_token(scenario: Scenario) -> None:
    prompt = tokens("test/whole chunks", 1024)
    cold = scenario.ask(scenario.first, prompt)
    scenario.wait_visible(scenario.first, scenario.second)
    warm = scenario.ask(scenario.second, prompt)
    assert warm.reloaded_tokens == 1023
    assert warm.completion.tokens == cold.completion.tokens


def test_another_cache_salt_reloads_nothing(scenario: Scenario) -> None:
    prompt = tokens("test/salt", 600)
    scenario.ask(scenario.first, prompt, salt="one")
    scenario.wait_visible(scenario.first, scenario.second)
    assert scenario.ask(scenario.second, prompt, salt="two").reloaded_tokens == 0
    assert scenario.ask(scenario.second, prompt, salt="one").reloaded_tokens == 512


def test_the_namespace_holds_packs_and_one_journal_for_each_replica(
    scenario: Scenario, root: Path
) -> None:
    assert scenario.rows
    assert len(list((root / "packs").glob("*/*"))) >= 8
    assert len(list((root / "journals").iterdir())) == 2


def test_a_replica_killed_in_mid_conversation_loses_no_request(
    scenario: Scenario, front: Front
) -> None:
    """The last one here: one of the pair is dead afterwards."""
    assert scenario.rows
    talk = Conversations(front, Talk(), "test", print)
    rows = talk.run()
    assert judge(rows, talk.killed) == []
    assert len(rows) == 12
    assert all(row.tokens_equal for row in rows if row.replica != "-")
    assert {row.replica for row in rows[:4]} == {"A", "B"}  # both before, the survivor after
    assert len({row.replica for row in rows[8:]} - {"-"}) == 1
