"""Sight: what one process sees of the fleet, as plain values, and several processes' as one.

Processes on one port each count their own requests only; whoever is asked for /metrics or /replicas
asks the others for theirs and lays them over each other: own counts are added, what each infers or
learns about a replica is averaged (weighed by how much it learned from) or the larger one taken,
and a replica's state is the worst any process sees. Pure.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from router.members import Members
from router.outcome import FleetView

ADDED = ("in_flight", "pending", "samples", "predicted_tokens", "reported_tokens")
LARGEST = (
    "pending_s", "decodes", "shadow_blocks", "kv_usage", "has_alarm", "has_exact_residency",
)  # fmt: skip
AVERAGED = ("fixed_s", "token_s", "pair_s", "shared_bytes_per_s", "shared_latency_s", "trust")
TOTALS = (
    "reservations", "overloads", "regret_seconds", "regrets", "predicted_tokens",
    "reported_tokens", "tree_blocks", "connections", "upstream_connections", "heard",
)  # fmt: skip
BETTER = ("ready", "half-open", "draining", "down")
"""States, best first."""


def sight_of(view: FleetView, members: Members, extra: dict[str, float]) -> dict[str, Any]:
    """One process's."""
    rows = []
    for seen in view.replicas:
        member = members.get(seen.replica)
        if member is None:
            continue
        row = asdict(seen)
        del row["replica"], row["external_hit_rate"]
        rows.append(
            {
                "id": seen.replica,
                "url": member.replica.url,
                **row,
                "state": seen.state.value,
                "breaker": member.breaker.position.value,
                "trouble": member.trouble,
                "models": sorted(str(entry.get("id")) for entry in member.models or ()),
            }
        )
    return {
        "policy": view.policy,
        "replicas": rows,
        "decisions": [[*known, count] for known, count in view.decisions.items()],
        "reservations": view.reservations,
        "overloads": view.overloads,
        "regret_seconds": view.regret_seconds,
        "regrets": view.regrets,
        "predicted_tokens": view.predicted_tokens,
        "reported_tokens": view.reported_tokens,
        "tree_blocks": view.tree_blocks,
        "common_tokens": view.common_tokens,
        "workers": 1,
        **extra,
    }


def merged(sights: list[dict[str, Any]]) -> dict[str, Any]:
    """Several processes' as one; the first is the one that was asked."""
    whole = dict(sights[0])
    for name in TOTALS:
        whole[name] = sum(sight.get(name, 0) for sight in sights)
    whole["workers"] = len(sights)
    decisions: dict[tuple[str, str], int] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    for sight in sights:
        for replica, policy, count in sight["decisions"]:
            decisions[replica, policy] = decisions.get((replica, policy), 0) + count
        for row in sight["replicas"]:
            rows.setdefault(row["id"], []).append(row)
    whole["decisions"] = [[*known, count] for known, count in decisions.items()]
    whole["replicas"] = [_merged_rows(known) for known in rows.values()]
    return whole


def _merged_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    if len(rows) == 1:
        return rows[0]
    whole = dict(max(rows, key=lambda row: BETTER.index(row["state"])))
    for name in ADDED:
        whole[name] = sum(row[name] for row in rows)
    for name in LARGEST:
        whole[name] = max(row[name] for row in rows)
    weights = [1 + row["samples"] for row in rows]
    for name in AVERAGED:
        known = sum(weight * row[name] for weight, row in zip(weights, rows, strict=True))
        whole[name] = known / sum(weights)
    return whole
