"""History: the last minutes, for the page: load, hits and TTFT by time, and the last decisions.

A ring of buckets of `BUCKET_SECONDS` and a ring of decisions, both of fixed length. Plain values
throughout, so that several processes' can be laid over each other. Times are of the wall clock,
rounded down to a bucket: processes agree on them. Of the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from router.tally import Histogram, quantile

BUCKET_SECONDS = 5
BUCKETS_MAX = 180  # a quarter of an hour
DECISIONS_MAX = 50
MODEL_CHARACTERS_MAX = 80  # clients may send any name
SOURCES = ("local", "dram", "shared", "computed")


class Row:
    """A decision, and what came of it. Written as the page reads it only when somebody asks."""

    __slots__ = (
        "at", "cached_tokens", "kind", "model", "outcome", "prompt_tokens", "reason", "replica",
        "reported_tokens", "ttft_seconds",
    )  # fmt: skip

    def __init__(
        self,
        at: float,
        kind: str,
        model: str,
        prompt_tokens: int,
        cached_tokens: int,
        replica: str,
        reason: bytes,
    ) -> None:
        self.at = at
        self.kind = kind
        self.model = model[:MODEL_CHARACTERS_MAX]
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        self.replica = replica
        self.reason = reason
        self.outcome = "under way"
        self.ttft_seconds: float | None = None
        self.reported_tokens: int | None = None

    def dump(self) -> dict[str, Any]:
        ttft = self.ttft_seconds
        return {
            "at": self.at,
            "kind": self.kind,
            "model": self.model,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "reported_tokens": self.reported_tokens,
            "replica": self.replica,
            "reason": self.reason.decode(),
            "outcome": self.outcome,
            "ttft_ms": None if ttft is None else round(1e3 * ttft, 1),
        }


class Bucket:
    """What happened in a few seconds."""

    __slots__ = ("in_flight", "pending_s", "refused", "requests", "start", "tokens", "ttft")

    def __init__(self, start: int) -> None:
        self.start = start
        self.requests = 0
        self.refused = 0
        self.tokens = [0, 0, 0, 0]
        """Prompt tokens by where they were expected to come from: `SOURCES`."""
        self.ttft = Histogram()
        self.in_flight: dict[str, int] = {}
        """By replica, as last seen within the bucket."""
        self.pending_s: dict[str, float] = {}

    def dump(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "requests": self.requests,
            "refused": self.refused,
            "tokens": self.tokens,
            "ttft": self.ttft.counts,
            "in_flight": self.in_flight,
            "pending_s": self.pending_s,
        }


class History:
    """Of one process."""

    def __init__(self) -> None:
        self._buckets: deque[Bucket] = deque(maxlen=BUCKETS_MAX)
        self._decisions: deque[Row] = deque(maxlen=DECISIONS_MAX)
        self._newest = Bucket(-1)
        self._ends_at = float("-inf")

    def at(self, wall: float) -> Bucket:
        """The bucket of a time; times that went back count in the newest."""
        if wall >= self._ends_at:
            start = int(wall) // BUCKET_SECONDS * BUCKET_SECONDS
            self._newest = Bucket(start)
            self._ends_at = float(start + BUCKET_SECONDS)
            self._buckets.append(self._newest)
        return self._newest

    def decided(self, row: Row) -> None:
        """A decision; what comes of it may be added to its row later."""
        self._decisions.append(row)

    def dump(self) -> dict[str, Any]:
        return {
            "buckets": [bucket.dump() for bucket in self._buckets],
            "decisions": [row.dump() for row in self._decisions],
        }


def shown(dumps: list[dict[str, Any]]) -> dict[str, Any]:
    """What the page gets: several processes' histories as one, oldest bucket first, newest
    decision first, TTFT as median and 95th percentile in milliseconds."""
    buckets: dict[int, dict[str, Any]] = {}
    for dump in dumps:
        for bucket in dump["buckets"]:
            known = buckets.get(bucket["start"])
            buckets[bucket["start"]] = _added(known, bucket) if known else dict(bucket)
    decisions = [decision for dump in dumps for decision in dump["decisions"]]
    decisions.sort(key=lambda decision: -float(decision["at"]))
    newest = [_with_quantiles(buckets[start]) for start in sorted(buckets)][-BUCKETS_MAX:]
    return {
        "bucket_seconds": BUCKET_SECONDS,
        "sources": list(SOURCES),
        "buckets": newest,
        "decisions": decisions[:DECISIONS_MAX],
    }


def _added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {
        "start": one["start"],
        "requests": one["requests"] + other["requests"],
        "refused": one["refused"] + other["refused"],
        "tokens": [a + b for a, b in zip(one["tokens"], other["tokens"], strict=True)],
        "ttft": [a + b for a, b in zip(one["ttft"], other["ttft"], strict=True)],
        "in_flight": _by_replica(one["in_flight"], other["in_flight"], sum),
        # Each process infers what the others' requests make it wait for: not to be added up.
        "pending_s": _by_replica(one["pending_s"], other["pending_s"], max),
    }


def _by_replica(
    one: dict[str, Any], other: dict[str, Any], joined: Callable[[list[float]], float]
) -> dict[str, Any]:
    return {name: joined([one.get(name, 0), other.get(name, 0)]) for name in {**one, **other}}


def _with_quantiles(bucket: dict[str, Any]) -> dict[str, Any]:
    counts = bucket["ttft"]

    def milliseconds(share: float) -> float | None:
        seconds = quantile(counts, share)
        return None if seconds is None else round(1000 * seconds, 1)

    rest = {name: value for name, value in bucket.items() if name != "ttft"}
    return {
        **rest,
        "answered": sum(counts),
        "p50_ms": milliseconds(0.5),
        "p95_ms": milliseconds(0.95),
    }
