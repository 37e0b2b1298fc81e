"""What the rows of `engines` say: ratios of times to first token, and of gaps while decoding. Pure.

Contenders ran one after the other, so a ratio between two of them carries the machine's drift; its
interval shows the spread within each, no more. A reload that did not bring the tokens it should
have is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bench.core.case import Figure, Outcome, Row, Table, Verdict
from bench.core.select import by_param, values, where
from bench.core.statistics import (
    Interval,
    at_most,
    median,
    quantile,
    ratio_interval,
    slope_interval,
    slope_ratio_interval,
)
from bench.report.plots import bars

OURS, FS_NATIVE, PRIVATE, NONE = "ours", "fs_native", "private", "none"
CONTENDERS = (OURS, FS_NATIVE, PRIVATE, NONE)
KINDS = {
    "cold": "first on A",
    "other": "then on B",
    "own": "again on A",
}
PROMPT_TOKENS, CHUNK_TOKENS = 4000, 256
DRIFT = "one after the other, not interleaved: the machine's drift is in it"


def reloads(rows: Sequence[Row]) -> list[Row]:
    """Rows of TTFT but those of reloads that brought less than was to be had."""
    loaded = {_request(row): row.value for row in rows if row.metric == "loaded_tokens"}
    return [
        row
        for row in rows
        if row.metric != "ttft" or (loaded.get(_request(row), math.inf) or 0.0) >= _due(row)
    ]


def _request(row: Row) -> tuple[object, ...]:
    return (*(row.params.get(name) for name in ("cell", "latency_ms", "kind")), row.repeat)


def _due(row: Row) -> int:
    return due_tokens(str(row.params.get("adapter")), str(row.params.get("kind")))


def due_tokens(contender: str, kind: str) -> int:
    """What a request has to load. On the other replica all whole chunks; on its own at least
    something, since its caches may still hold a part."""
    if kind == "other" and contender in (OURS, FS_NATIVE):
        return PROMPT_TOKENS // CHUNK_TOKENS * CHUNK_TOKENS
    return 1 if kind == "own" and contender != NONE else 0


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    kept = reloads(rows)
    local: dict[str, Any] = {"place": "local", "latency_ms": 0.0}
    made = [
        _verdict(
            "reload on the other replica, local disk",
            "at most 1.0x fs_native's TTFT",
            1.0,
            _ratio(kept, OURS, FS_NATIVE, kind="other", **local),
        ),
        _verdict(
            "one replica, shared namespace",
            "at most 1.05x a private one's TTFT",
            1.05,
            _ratio(kept, OURS, PRIVATE, kind="own", **local),
        ),
        _verdict(
            "storing while computing",
            "at most 1.05x the TTFT without a tier",
            1.05,
            _ratio(kept, OURS, NONE, kind="cold", **local),
        ),
        _penalty(kept),
    ]
    for share in (0.5, 0.99):
        for place, latency in (("local", 0.0), ("mount", 10.0)):
            made.append(_decoding(rows, share, place, latency))
    return made


def _ratio(rows: Sequence[Row], over: str, under: str, **params: Any) -> Interval | None:
    def side(adapter: str) -> dict[int, float]:
        found = where(rows, "ttft", adapter=adapter, **params)
        return {row.repeat: row.value for row in found if row.value is not None}

    return ratio_interval(side(over), side(under))


def _penalty(rows: Sequence[Row]) -> Verdict:
    """By the slopes over the added latency: a single millisecond drowns in a prefill's noise. Ours
    over theirs: ours may be no more than noise around 0, and nothing can be divided by that."""

    def side(adapter: str) -> dict[float, list[float]]:
        found = by_param(rows, "ttft", "latency_ms", adapter=adapter, kind="other", place="mount")
        return {float(latency): repeats for latency, repeats in found.items()}

    ours, native = side(OURS), side(FS_NATIVE)
    found = None
    name, target = "reload penalty for each ms of latency", "at most a third of fs_native's"
    if len(ours) > 1 and ours.keys() == native.keys():
        under = slope_interval(native)
        if under is None or not under.low > 0:
            note = "fs_native's own penalty cannot be told from noise"
            return Verdict(name, target, Outcome.NOT_MEASURED, note=note)
        found = slope_ratio_interval(ours, native)
    outcome = at_most(found, 1 / 3)
    note = "fitted over 0, 1 and 10 ms; " + DRIFT
    return _made(name, target, outcome, found, "of fs_native's", note)


def _decoding(rows: Sequence[Row], share: float, place: str, latency: float) -> Verdict:
    """Quantiles round by round, so that the interval is over rounds."""

    def side(adapter: str, **params: Any) -> dict[int, float]:
        found = where(rows, "gap", adapter=adapter, **params)
        rounds = {row.repeat for row in found}
        return {
            number: quantile(
                [row.value for row in found if row.repeat == number and row.value is not None],
                share,
            )
            for number in rounds
        }

    name = f"gap between tokens, p{100 * share:g}, {place}, {latency:g} ms"
    found = ratio_interval(
        side(OURS, place=place, latency_ms=latency), side(NONE, place="local", latency_ms=0.0)
    )
    return _verdict(name, "at most 1.03x that without a tier", 1.03, found)


def _verdict(name: str, target: str, times: float, found: Interval | None) -> Verdict:
    return _made(name, target, at_most(found, times), found, "x", DRIFT)


def _made(
    name: str, target: str, outcome: Outcome, found: Interval | None, unit: str, note: str
) -> Verdict:
    if found is None or outcome is Outcome.NOT_MEASURED:
        rounds = found.rounds if found else 0
        return Verdict(name, target, Outcome.NOT_MEASURED, unit=unit, note=f"{rounds} rounds")
    return Verdict(name, target, outcome, found.estimate, found.low, found.high, unit, note)


def figures(rows: Sequence[Row]) -> list[Figure]:
    kept = reloads(rows)
    return [_ttft(kept), _latency(kept), _gaps(rows)] if where(kept, "ttft") else []


def _ttft(rows: Sequence[Row]) -> Figure:
    data = {
        name: {
            text: values(rows, "ttft", adapter=name, kind=kind, place="local")
            for kind, text in KINDS.items()
        }
        for name in CONTENDERS
    }
    return Figure(
        "engines-ttft",
        "Two real engines on a local disk",
        "Time to first token of prompts of 4,000 tokens, the small model of the demo on one core "
        "each: first computed and stored, then asked of the other replica, then of the first once "
        "more when its own caches have let it go. Contenders ran one after the other; bars are "
        "medians with 95 % intervals of few rounds.",
        draw=lambda canvas: bars(
            canvas.subplots(), list(KINDS.values()), data, y="time to first token, ms"
        ),
        table=_table(rows, "local"),
    )


def _latency(rows: Sequence[Row]) -> Figure:
    latencies = sorted(by_param(rows, "ttft", "latency_ms", place="mount"), key=float)
    groups = {f"{latency:g} ms": latency for latency in latencies}
    data = {
        name: {
            text: values(
                rows, "ttft", adapter=name, kind="other", place="mount", latency_ms=latency
            )
            for text, latency in groups.items()
        }
        for name in (OURS, FS_NATIVE)
    }
    return Figure(
        "engines-latency",
        "Reload on the other replica, by the latency of an operation",
        "The same on the throttled mount. A prefill on one core scatters by tens of milliseconds, "
        "so only differences beyond that mean anything.",
        draw=lambda canvas: bars(
            canvas.subplots(), list(groups), data, y="time to first token, ms"
        ),
    )


def _gaps(rows: Sequence[Row]) -> Figure:
    head = ("contender", "place", "latency, ms", "gaps", "p50, ms", "p99, ms")
    cells = sorted(
        {
            (str(r.params["adapter"]), str(r.params["place"]), float(r.params["latency_ms"]))
            for r in rows
            if r.metric == "gap"
        }
    )
    lines = []
    for adapter, place, latency in cells:
        found = values(rows, "gap", adapter=adapter, place=place, latency_ms=latency)
        lines.append(
            (
                *(adapter, place, f"{latency:g}", f"{len(found)}"),
                *(f"{quantile(found, share):.2f}" for share in (0.5, 0.99)),
            )
        )
    return Figure(
        "engines-gaps",
        "Decoding while the neighbour stores and loads",
        "Gaps between generated tokens on A while B is busy with new prompts, each sent twice. "
        "Both engines, both servers and the client share the machine's cores, so p99 shows their "
        "scheduling as much as anything else.",
        table=Table(head, tuple(lines)),
    )


def _table(rows: Sequence[Row], place: str) -> Table:
    def cell(adapter: str, kind: str) -> str:
        found = values(rows, "ttft", adapter=adapter, kind=kind, place=place)
        return f"{median(found):.0f}" if found else "not measured"

    lines = tuple((name, *(cell(name, kind) for kind in KINDS)) for name in CONTENDERS)
    return Table(("contender", *(f"{text}, ms" for text in KINDS.values())), lines)
