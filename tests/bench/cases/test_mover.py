"""A process that moves bytes tells what it remembers of them, and the most of it there can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.cases import resource_says
from bench.cases.resource import keep
from bench.cases.resource_says import BATCHES, HOUR
from bench.core.mover import REMEMBERED, move
from tests.bench.cases.recorded import Recorded


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    root = str(tmp_path / "ns")
    given = {"adapter": "ours", "root": root, "backing": root, "seconds": 0.0, "pause": 0.0}
    options = {"cap_bytes": 1 << 30, "lease_seconds": 120.0, "buffer_ttl_seconds": 60.0}
    move({**given, "count": 4, "size": 8192, "first": 0, "options": options})
    lines = capsys.readouterr().out.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_every_batch_tells_what_is_remembered_and_the_limits_come_first(
    told: list[dict[str, Any]],
) -> None:
    before, ready, *batches, done = told
    assert (list(before), list(done)) == (["before"], ["done"])
    assert all(one["whole"] for one in batches)
    assert [one["remembered"]["catalog_rows"] for one in batches] == [4, 8]
    assert [one["remembered"]["adapter_keys_known"] for one in batches] == [4, 8]
    for one in batches:
        assert tuple(one["remembered"]) == REMEMBERED
        for name, most in ready["limits"].items():
            assert one["remembered"][name] <= most


def test_what_is_told_has_a_label_in_the_report(told: list[dict[str, Any]]) -> None:
    labels = dict(resource_says.REMEMBERED)
    assert set(told[2]["remembered"]) == set(labels)
    unlimited = set(labels) - set(told[1]["limits"])
    assert unlimited <= set(resource_says.COUNTED)


def batches(count: int, torn: int) -> list[dict[str, Any]]:
    state = {"rss": 1e9, "fds": 9, "threads": 9, "cpu": 1.0, "at": 1.0}
    one = {"store_cpu": 0.1, "load_cpu": 0.1, "state": state, "remembered": {}}
    return [{**one, "batch": n, "whole": n >= torn} for n in range(count)]


@pytest.mark.parametrize(
    ("cell", "torn", "kept"),
    [(BATCHES, 0, True), (BATCHES, 1, False), (HOUR, 2, True), (HOUR, 3, False)],
)
def test_a_batch_in_part_costs_the_others_but_not_an_hour(
    cell: str, torn: int, kept: bool, recorded: Recorded, tmp_path: Path
) -> None:
    samples = batches(200, torn)
    before = samples[0]["state"]
    ready = {"ready": before, "limits": {}}
    keep(recorded.context(tmp_path), "ours", 0, before, ready, samples, {"cell": cell})
    assert bool(recorded.values("rss_at")) is kept
    assert recorded.values("batches_torn") == ([torn] if kept else [])
