"""Workloads are functions of their seed, have the statistics they state, share what they say."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from bench.workloads.__main__ import as_trace, main
from bench.workloads.documents import Documents, generate
from bench.workloads.files import burstgpt, hash_ids, sharegpt
from bench.workloads.mlperf import KINDS, QUALITIES, quality_of
from bench.workloads.registry import WORKLOADS, from_file, make
from bench.workloads.workload import gamma_arrivals, lognormal_tokens, zipf_weights


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_gives_the_same_workload_and_another_seed_another(name: str) -> None:
    first = make(name, 1, scale=0.2)
    assert first == make(name, 1, scale=0.2)
    if not name.startswith("documents"):
        assert first.requests != make(name, 2, scale=0.2).requests


@pytest.mark.parametrize("name", WORKLOADS)
def test_requests_are_in_order_and_their_blocks_are_whole(name: str) -> None:
    workload = make(name, 1, scale=0.2, block_tokens=256)
    times = [request.at for request in workload.requests]
    assert times == sorted(times) and len(times) > 5
    for request in workload.requests:
        whole = request.prompt_tokens // 256
        assert whole - 1 <= len(request.blocks) <= whole
        assert len(set(request.blocks)) == len(request.blocks)
        assert request.output_tokens >= 1


@pytest.mark.parametrize("name", WORKLOADS)
def test_equal_numbers_mean_equal_prefixes(name: str) -> None:
    """A block has one predecessor, always at the same place."""
    before: dict[int, tuple[int, int]] = {}
    for request in make(name, 1, scale=0.3).requests:
        for place, block in enumerate(request.blocks):
            here = (place, request.blocks[place - 1] if place else -1)
            assert before.setdefault(block, here) == here


def test_documents_are_read_in_the_order_asked_for() -> None:
    rng = random.Random(1)
    first = generate("d", Documents(documents=3, order="reverse", passes=2), rng).requests
    heads = [request.blocks[0] for request in first]
    assert heads[:3] == heads[3:][::-1]
    same = generate("d", Documents(documents=3, order="same", passes=2), rng).requests
    assert [r.blocks for r in same[:3]] == [r.blocks for r in same[3:]]


def test_a_popular_document_is_read_more_often() -> None:
    reads = Counter(request.blocks[0] for request in make("documents-zipf", 1, scale=5).requests)
    ranked = reads.most_common()
    assert ranked[0][1] > 5 * ranked[20][1]


def test_one_shot_prompts_share_nothing_and_agents_nearly_all() -> None:
    assert make("one-shot", 1).reuse == 0.0
    assert make("agents", 1).reuse > 0.7


def test_sorting_what_was_found_makes_prefixes_meet() -> None:
    assert make("rag", 1).reuse > make("rag-unsorted", 1).reuse


def test_a_lognormal_has_its_mean() -> None:
    rng = random.Random(3)
    drawn = [lognormal_tokens(161, 1.3, rng) for _ in range(40_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(161, rel=0.1)


def test_arrivals_have_their_rate_and_burstiness() -> None:
    times = list(gamma_arrivals(2.0, 2.0, 20_000, random.Random(5)))
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.5, rel=0.1) and deviation / mean == pytest.approx(2.0, rel=0.1)


def test_zipf_is_harmonic_for_one() -> None:
    assert zipf_weights(3, 1.0) == [1.0, 1 / 2, 1 / 3]


def test_the_mix_has_users_of_each_kind_within_its_ranges_and_shares_of_service() -> None:
    most = max(kind.context_tokens[1] for kind in KINDS)
    workload = make("mlperf-mix", 1)
    assert all(512 <= request.prompt_tokens <= most for request in workload.requests)
    shares = Counter(quality_of(number).name for number in range(1000))
    assert {q.name: shares[q.name] / 1000 for q in QUALITIES} == {
        "interactive": 0.15,
        "responsive": 0.35,
        "batch": 0.5,
    }


def test_a_workload_written_as_a_trace_reads_back_as_itself(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    assert main(["write", "chat", str(file), "--scale", "0.1"]) == 0
    made, found = make("chat", 1, scale=0.1), hash_ids(file)
    assert [r.blocks for r in found.requests] == [r.blocks for r in made.requests]
    assert as_trace(found) == file.read_text()


def test_a_trace_is_cut_where_asked(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(as_trace(make("agents", 1)))
    assert len(from_file(file, requests_max=7).requests) == 7


def test_sharegpt_conversations_grow_turn_by_turn(tmp_path: Path) -> None:
    file = tmp_path / "sharegpt.json"
    said = [
        {"from": "human", "value": "a" * 4000},
        {"from": "gpt", "value": "b" * 400},
        {"from": "human", "value": "c" * 4000},
        {"from": "gpt", "value": "d" * 40},
        {"from": "human", "value": "never answered"},
    ]
    file.write_text(json.dumps([{"conversations": said}] * 3))
    found = sharegpt(file, iter([0.0, 5.0]), block_tokens=256)
    assert [(r.prompt_tokens, r.output_tokens) for r in found.requests] == [
        (2024, 100),
        (2024, 100),
        (3124, 10),
        (3124, 10),
    ]
    assert found.requests[2].blocks[:7] == found.requests[0].blocks


def test_burstgpt_gives_arrivals_and_lengths_without_failed_requests(tmp_path: Path) -> None:
    file = tmp_path / "burst.csv"
    file.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,600,18,618,Conversation log\n6,GPT-4,100,0,100,API log\n"
        "45,ChatGPT,1087,230,1317,Conversation log\n"
    )
    found = burstgpt(file)
    assert [(r.at, r.prompt_tokens, len(r.blocks)) for r in found.requests] == [
        (0.0, 600, 1),
        (40.0, 1087, 2),
    ]
    assert found.reuse == 0.0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", "{}\n"),
        ("a.jsonl", ""),
        ("a.json", '[{"no": 1}]'),
        ("a.json", "[]"),
        ("a.json", '[{"conversations": ["x"]}]'),
        ("a.json", '[{"conversations": [{"from": "human", "value": 1}]}]'),
        ("a.csv", "x,y\n1,2\n"),
        ("a.csv", "Timestamp,Request tokens,Response tokens\nnan,600,10\n"),
        ("a.csv", "Timestamp,Request tokens,Response tokens\n1,600,0\n"),
        ("a.txt", ""),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=name):
        from_file(tmp_path / name)


def test_a_name_that_is_none_is_told_the_names() -> None:
    with pytest.raises(ValueError, match="one-shot"):
        make("two-shot", 1)
