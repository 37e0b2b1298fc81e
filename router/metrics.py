"""Metrics: the names, meanings and text of everything the router counts.

`counts` are series of a `Tally`, `gauges` come from the replicas' rows (`sight`). Both may be of
several processes added up: the page of one process covers all of them. Returns the text Prometheus
reads. Labels have few values: a replica's id, a path of the API, a status, a cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from router.tally import BOUNDS_SECONDS, Tally

PREFIX = "sharedfs_router_"

COUNTERS = {
    # Name in the tally: help text, labels.
    "requests_total": ("Answers to requests, by path and status.", ("path", "status")),
    "retries_total": ("Requests moved on, by the replica they left.", ("replica", "cause")),
    "cut_total": ("Requests that ended early: the replica's stream broke, or the client left.",
                  ("replica", "outcome")),
    "refused_total": ("Requests the router refused.", ("cause",)),
    "prompt_tokens_total": ("Prompt tokens by where the decision expected them.", ("source",)),
    "usage_prompt_tokens_total": ("Prompt tokens the replicas reported.", ()),
    "usage_completion_tokens_total": ("Completion tokens the replicas reported.", ()),
    "list_errors_total": ("Times the list of replicas could not be read; the last good one stays.",
                          ()),
}  # fmt: skip
HISTOGRAMS = {
    "estimate_seconds": ("Estimated time to first token of the chosen replica, by part.",
                         ("part",)),
    "ttft_seconds": ("Measured time to first token of streams, from the whole request's arrival.",
                     ("replica",)),
    "estimate_error_seconds": ("How far the estimate was from what the replica then took.", ()),
}  # fmt: skip
REPLICA_GAUGES = {
    # Field of a replica's row: help text.
    "in_flight": "Requests of this router on the replica.",
    "pending": "Of them, those whose first token has not come.",
    "pending_s": "Seconds of prefill waiting there.",
    "decodes": "Requests that are generating.",
    "fixed_s": "Learned: seconds of a prefill beside its tokens (c0).",
    "token_s": "Learned: seconds for each prompt token computed (c1).",
    "pair_s": "Learned: seconds for each pair of tokens attended (c2).",
    "shared_bytes_per_s": "Learned: bandwidth from the shared tier, lately (B_w).",
    "shared_latency_s": "Learned: latency of the shared tier (l).",
    "trust": "Reported cached tokens for each predicted one, lately.",
    "has_alarm": "1: prediction and report of cached tokens have disagreed for long.",
    "shadow_blocks": "Prefix blocks thought to be on the replica.",
    "kv_usage": "Share of the replica's KV blocks in use.",
}
GAUGES = {
    "connections": "Clients' connections that are open.",
    "upstream_connections": "Connections to replicas that are open.",
    "reservations": "Requests between decision and end.",
    "common_tokens": "The prefix most recent requests share, in tokens.",
    "tree_blocks": "Prefix blocks remembered in all.",
    "tokens_per_byte": "Learned: prompt tokens for each byte of text.",
    "workers": "Processes this page covers.",
    "heard": "Requests under way that other processes on the port told of.",
}
TOTALS = {
    "regret_seconds": "What the best choice in hindsight would have saved, summed.",
    "regrets": "Requests that sum covers.",
    "predicted_tokens": "Cached tokens predicted, of requests that reported theirs.",
    "reported_tokens": "Cached tokens those requests reported.",
    "overloads": "Decisions that found every replica beyond the objective.",
}
STATES = ("ready", "draining", "down", "half-open")


class _Once(Collector):
    """Families that are there already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def page(tally: Tally, sight: dict[str, Any]) -> bytes:
    """The text of /metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once([*_of_tally(tally), *_of_sight(sight)]))
    return generate_latest(registry)


def _of_tally(tally: Tally) -> Iterator[Metric]:
    for name, (text, labels) in COUNTERS.items():
        counter = CounterMetricFamily(PREFIX + name, text, labels=labels)
        if not labels and (name,) not in tally.counters:
            counter.add_metric((), 0.0)
        for series, value in tally.counters.items():
            if series[0] == name:
                counter.add_metric(series[1:], value)
        yield counter
    for name, (text, labels) in HISTOGRAMS.items():
        histogram = HistogramMetricFamily(PREFIX + name, text, labels=labels)
        for series, known in tally.histograms.items():
            if series[0] == name:
                histogram.add_metric(series[1:], _buckets(known.counts), sum_value=known.total)
        yield histogram


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    seen, buckets = 0, []
    for bound, count in zip((*BOUNDS_SECONDS, None), counts, strict=True):
        seen += count
        buckets.append(("+Inf" if bound is None else repr(bound), float(seen)))
    return buckets


def _of_sight(sight: dict[str, Any]) -> Iterator[Metric]:
    decisions = CounterMetricFamily(
        f"{PREFIX}decisions_total", "Decisions for a replica.", labels=("replica", "policy")
    )
    for replica, policy, count in sight["decisions"]:
        decisions.add_metric((replica, policy), count)
    yield decisions
    state = GaugeMetricFamily(
        f"{PREFIX}replica_state", "1 for the state it is in.", labels=("replica", "state")
    )
    for row in sight["replicas"]:
        for known in STATES:
            state.add_metric((row["id"], known), float(row["state"] == known))
    yield state
    for name, text in REPLICA_GAUGES.items():
        gauge = GaugeMetricFamily(f"{PREFIX}replica_{name}", text, labels=("replica",))
        for row in sight["replicas"]:
            gauge.add_metric((row["id"],), float(row[name]))
        yield gauge
    for name, text in GAUGES.items():
        yield GaugeMetricFamily(PREFIX + name, text, value=float(sight[name]))
    replaced = CounterMetricFamily(
        f"{PREFIX}workers_replaced_total", "Processes the supervisor replaced.", labels=("cause",)
    )
    for cause, count in sight["replaced"].items():
        replaced.add_metric((cause,), count)
    yield replaced
    for name, text in TOTALS.items():
        yield CounterMetricFamily(f"{PREFIX}{name}_total", text, value=float(sight[name]))
