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
SOURCES = ("local", "dram", "shared", "computed")


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
        self._decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS_MAX)

    def at(self, wall: float) -> Bucket:
        """The bucket of a time; times that went back count in the newest."""
        start = int(wall) // BUCKET_SECONDS * BUCKET_SECONDS
        if not self._buckets or self._buckets[-1].start < start:
            self._buckets.append(Bucket(start))
        return self._buckets[-1]

    def decided(self, decision: dict[str, Any]) -> None:
        """A decision as the page shows it; its `ttft_ms` may be filled in later."""
        self._decisions.append(decision)

    def dump(self) -> dict[str, Any]:
        return {
            "buckets": [bucket.dump() for bucket in self._buckets],
            "decisions": list(self._decisions),
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
