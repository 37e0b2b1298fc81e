"""Counts, histories and sights: bounded, and of several processes as one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router import metrics, sight
from router.fleet import Fleet
from router.history import (
    BUCKET_SECONDS,
    BUCKETS_MAX,
    DECISIONS_MAX,
    MODEL_CHARACTERS_MAX,
    History,
    Row,
    shown,
)
from router.members import Members
from router.replicas import listed
from router.tally import BOUNDS_SECONDS, SERIES_MAX, WAITING_MAX, Tally, quantile


def test_series_are_bounded_and_the_rest_counts_under_other() -> None:
    tally = Tally()
    for number in range(SERIES_MAX + 50):
        tally.count(("requests_total", f"path-{number}", "200"))
        tally.observe(("ttft_seconds", f"replica-{number}"), 0.1)
    assert tally.counters["requests_total", "other", "other"] == 50
    assert len(tally.counters) == len(tally.histograms) == SERIES_MAX + 1


def test_a_replica_that_left_takes_its_series_along() -> None:
    tally = Tally()
    tally.count(("retries_total", "a:1", "closed"))
    tally.observe(("ttft_seconds", "a:1"), 0.1)
    tally.count(("retries_total", "b:2", "closed"))
    tally.forget({"a:1"})
    assert list(tally.counters) == [("retries_total", "b:2", "closed")]
    assert tally.histograms == {}


def test_tallies_of_two_processes_add_up() -> None:
    one, other, whole = Tally(), Tally(), Tally()
    for tally in (one, other):
        tally.count(("refused_total", "slo"), 2)
        tally.observe(("ttft_seconds", "a:1"), 0.1)
        whole.merge(tally.dump())
    assert whole.counters["refused_total", "slo"] == 4
    assert sum(whole.histograms["ttft_seconds", "a:1"].counts) == 2


def test_a_quantile_is_right_to_within_its_bucket() -> None:
    tally, rng = Tally(), random.Random(5)
    values = sorted(rng.uniform(0.01, 10.0) for _ in range(5000))
    for value in values:
        tally.observe(("x",), value)
    for share in (0.1, 0.5, 0.95):
        found = tally.histograms[("x",)].quantile(share)
        assert found is not None and 0.6 < found / values[int(share * 5000)] < 1.6


def test_values_that_wait_to_be_counted_are_seen_by_whoever_looks() -> None:
    values = [0.5, 0.001, 700.0, 0.0, 0.0011, 600.0] * (WAITING_MAX // 4)
    tally = Tally()
    for value in values:
        tally.observe(("x",), value)
    known = tally.histograms[("x",)]
    # As many, at or below each bound, as Prometheus has it; the last holds the rest.
    for upto, bound in enumerate(BOUNDS_SECONDS, start=1):
        assert sum(known.counts[:upto]) == sum(value <= bound for value in values)
    assert sum(known.counts) == len(values)
    assert known.total == pytest.approx(sum(values))


def test_no_values_have_no_quantile() -> None:
    assert quantile([0] * (len(BOUNDS_SECONDS) + 1), 0.5) is None


def row(at: float) -> Row:
    return Row(at, "completions", "m", 100, 50, "a:1", b"queue=0.0")


def test_history_is_bounded() -> None:
    history = History()
    for second in range(0, 3 * BUCKETS_MAX * BUCKET_SECONDS, BUCKET_SECONDS):
        history.at(float(second)).requests += 1
        history.decided(row(float(second)))
    dump = history.dump()
    assert len(dump["buckets"]) == BUCKETS_MAX and len(dump["decisions"]) == DECISIONS_MAX


def test_of_a_models_name_only_the_beginning_is_kept() -> None:
    model = "m" * 1_000_000
    made = Row(0.0, "completions", model, 100, 50, "a:1", b"queue=0.0")
    assert made.model == model[:MODEL_CHARACTERS_MAX] == made.dump()["model"]


def test_a_clock_that_went_back_counts_in_the_newest_bucket() -> None:
    history = History()
    history.at(100.0)
    assert history.at(50.0) is history.at(100.0)


def test_histories_of_two_processes_are_laid_over_each_other() -> None:
    dumps = []
    for at, requests in ((100.0, 2), (104.0, 3)):
        history = History()
        bucket = history.at(at)
        bucket.requests = requests
        bucket.in_flight["a:1"] = requests
        bucket.pending_s["a:1"] = 1.5
        bucket.ttft.add(0.2)
        history.decided(row(at))
        dumps.append(history.dump())
    whole = shown(dumps)
    (bucket_shown,) = whole["buckets"]
    assert bucket_shown["requests"] == 5 and bucket_shown["in_flight"] == {"a:1": 5}
    assert bucket_shown["pending_s"] == {"a:1": 1.5}  # both infer the same queue
    assert bucket_shown["answered"] == 2 and 150 < bucket_shown["p50_ms"] <= 200
    assert [shown_row["at"] for shown_row in whole["decisions"]] == [104.0, 100.0]


def seen(extra: dict[str, float] | None = None) -> dict[str, Any]:
    fleet = Fleet(rng=random.Random(1))
    members = Members(fleet)
    members.apply(listed(["a:1"]))
    numbers = {
        "connections": 1.0, "upstream_connections": 1.0, "tokens_per_byte": 0.25, "heard": 1.0
    }  # fmt: skip
    whole = sight.sight_of(fleet.view(0.0), members, extra or numbers)
    return {**whole, "replaced": {"died": 2, "silent": 1}}


def test_sights_of_two_processes_are_one() -> None:
    one, other = seen(), seen()
    one["replicas"][0].update(in_flight=2, samples=1, token_s=1.0, state="ready", pending_s=4.0)
    other["replicas"][0].update(in_flight=3, samples=5, token_s=2.0, state="down", pending_s=3.0)
    whole = sight.merged([one, other])
    (seen_row,) = whole["replicas"]
    assert seen_row["in_flight"] == 5 and seen_row["pending_s"] == 4.0
    assert seen_row["state"] == "down" and seen_row["token_s"] == (2 * 1.0 + 6 * 2.0) / 8
    assert whole["workers"] == 2 and whole["connections"] == 2


def test_every_metric_has_a_help_text_and_can_be_read_by_prometheus() -> None:
    tally = Tally()
    tally.count(("requests_total", "completions", "200"))
    tally.observe(("ttft_seconds", "a:1"), 1e9)
    families = list(text_string_to_metric_families(metrics.page(tally, seen()).decode()))
    names = {family.name for family in families}
    assert {family.name for family in families if not family.documentation} == set()
    wanted = [*metrics.COUNTERS, *metrics.HISTOGRAMS, *metrics.GAUGES]
    known = {f"{metrics.PREFIX}{name.removesuffix('_total')}" for name in wanted}
    assert known <= names
    (ttft,) = [family for family in families if family.name.endswith("ttft_seconds")]
    last = [sample for sample in ttft.samples if sample.labels.get("le") == "+Inf"]
    assert last[0].value == 1.0
