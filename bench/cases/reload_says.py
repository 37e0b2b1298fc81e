"""What the rows of `reload` say: the acceptance ratios, the slopes, and the plots. Pure.

Ratios are medians over rounds of contender over ours, above 1 where we are faster; a target counts
as missed only if the whole 95 % interval lies below it. Where a target is not reached the profile
of our own threads stands under the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.core.adapters import CONTENDERS, FS, FS_NATIVE, OURS
from bench.core.case import Figure, Outcome, Row, Table, Verdict
from bench.core.select import by_param, choices, interval, ratio, texts, values, where
from bench.core.statistics import (
    Interval,
    at_least,
    at_most,
    median,
    slope_interval,
    slope_ratio_interval,
)
from bench.core.turns import Batch
from bench.report.plots import bars, curves

SMALL, LARGE = Batch(256, 512 << 10), Batch(64, 4 << 20)
ACCEPTED = (SMALL, LARGE)
ROUNDS_MIN = 7
DISTINCT = 16
"""Different chunks of a long prefix, so that it fits a small machine."""
SLOPE_LATENCIES = (0.0, 1.0, 3.0, 10.0)
OPERATION_NAMES = {
    "lookup_load": "lookup + load",
    "store": "store",
    "load": "load",
    "lookup": "lookup",
}


@dataclass(frozen=True, slots=True)
class Target:
    """Ours at least `times` as fast as `rival` in this operation."""

    batch: Batch
    latency_ms: float
    operation: str
    rival: str
    times: float


TARGETS = (
    Target(SMALL, 1.0, "lookup_load", FS_NATIVE, 8.5),
    Target(SMALL, 1.0, "lookup_load", FS, 40.0),
    Target(SMALL, 1.0, "store", FS_NATIVE, 15.0),
    Target(SMALL, 1.0, "store", FS, 35.0),
    Target(LARGE, 1.0, "lookup_load", FS_NATIVE, 2.3),
    Target(LARGE, 1.0, "lookup_load", FS, 9.0),
    Target(LARGE, 1.0, "store", FS_NATIVE, 2.8),
    Target(LARGE, 1.0, "store", FS, 9.0),
    *(Target(batch, 0.0, "load", FS_NATIVE, 0.95) for batch in ACCEPTED),
    *(Target(batch, 0.0, "store", FS_NATIVE, 1.5) for batch in ACCEPTED),
    *(Target(batch, 0.0, "lookup", FS_NATIVE, 10.0) for batch in ACCEPTED),
)
SLOPE_SHARE = 0.1
"""Of fs_native's slope, at most."""


# -- verdicts --------------------------------------------------------------------------------


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    return [*(_accepted(rows, target) for target in TARGETS), *_slope_verdicts(rows)]


def _accepted(rows: Sequence[Row], target: Target) -> Verdict:
    found = ratio(
        rows,
        target.operation,
        "adapter",
        target.rival,
        OURS,
        part="batch",
        batch=str(target.batch),
        latency_ms=target.latency_ms,
    )
    outcome = at_least(found, target.times, ROUNDS_MIN)
    note = ""
    if outcome is Outcome.NOT_MEASURED:
        rounds = found.rounds if found else 0
        note = f"{rounds} rounds of both, {ROUNDS_MIN} are needed"
    return _verdict(
        f"{target.batch}, {target.latency_ms:g} ms, {OPERATION_NAMES[target.operation]}",
        f"at least {target.times:g}x {target.rival}",
        outcome,
        found,
        "x",
        note,
    )


def _slope_verdicts(rows: Sequence[Row]) -> list[Verdict]:
    made = []
    for tokens in (4096, 16384, 65536):
        ours, rival = (_by_latency(rows, name, tokens) for name in (OURS, FS_NATIVE))
        found = slope_interval(ours) if len(ours) == len(SLOPE_LATENCIES) else None
        bound = slope_bound(rows, tokens)
        name = f"slope, {tokens} tokens of 8B"
        target = "opens + ceil(reads / depth) + 1"
        if bound is not None:
            target += f" = {bound.limit:.0f}"
        outcome = at_most(found, bound.limit) if bound else Outcome.NOT_MEASURED
        note = bound.text() if bound else ""
        made.append(_verdict(name, f"at most {target}", outcome, found, "ms per ms", note))
        share = None
        if len(ours) == len(rival) == len(SLOPE_LATENCIES):
            share = slope_ratio_interval(ours, rival)
        outcome = at_most(share, SLOPE_SHARE)
        made.append(
            _verdict(name, "at most a tenth of fs_native's", outcome, share, "of fs_native's", "")
        )
    return made


@dataclass(frozen=True, slots=True)
class Bound:
    """What the mount counted for one load: the operations, and the depth the product chose."""

    opens: float
    reads: float
    depth: float
    calls: float
    """Reads as the product issued them: the kernel cuts large ones into several."""

    @property
    def limit(self) -> float:
        return self.opens + math.ceil(self.reads / max(1.0, self.depth)) + 1

    def text(self) -> str:
        return (
            f"{self.opens:.0f} opens, {self.reads:.0f} reads ({self.calls:.0f} calls of ours), "
            f"depth {self.depth:.0f}"
        )


def slope_bound(rows: Sequence[Row], tokens: int) -> Bound | None:
    """Medians over the latencies above 0; reads as the mount saw them, which splits large ones."""
    picked = [row for row in rows if row.params.get("latency_ms", 0) != 0]
    fixed: dict[str, Any] = {"part": "slope", "adapter": OURS, "prefix_tokens": tokens}
    opens = values(picked, "operations", kind="open", **fixed) or values(
        picked, "own_opens", **fixed
    )
    reads = values(picked, "operations", kind="read", **fixed) or values(
        picked, "own_reads", **fixed
    )
    depth = values(picked, "own_depth", **fixed)
    if not (opens and reads and depth):
        return None
    calls = values(picked, "own_reads", **fixed)
    return Bound(median(opens), median(reads), median(depth), median(calls))


def _by_latency(rows: Sequence[Row], name: str, tokens: int) -> dict[float, list[float]]:
    found = by_param(rows, "reload", "latency_ms", part="slope", adapter=name, prefix_tokens=tokens)
    return {float(latency): repeats for latency, repeats in found.items()}


def _verdict(
    name: str, target: str, outcome: Outcome, found: Interval | None, unit: str, note: str
) -> Verdict:
    if found is None or outcome is Outcome.NOT_MEASURED:
        return Verdict(name, target, Outcome.NOT_MEASURED, unit=unit, note=note)
    return Verdict(name, target, outcome, found.estimate, found.low, found.high, unit, note)


# -- figures ---------------------------------------------------------------------------------


def figures(rows: Sequence[Row]) -> list[Figure]:
    return [
        *_headline(rows),
        *_batches(rows),
        *_profiles(rows),
        *_sweep(rows),
        *_lengths(rows),
    ]


def _headline(rows: Sequence[Row]) -> list[Figure]:
    lengths = [int(one) for one in choices(where(rows, "reload", part="slope"), "prefix_tokens")]
    if not lengths:
        return []
    lines = []
    for tokens in lengths:
        for name in (OURS, FS_NATIVE):
            points = _by_latency(rows, name, tokens)
            found = slope_interval(points)
            bound = slope_bound(rows, tokens) if name == OURS else None
            lines.append(
                (
                    f"{tokens}",
                    name,
                    found.text(1) if found else "not measured",
                    f"{bound.limit:.0f} ({bound.text()})" if bound else "",
                    *(_cell(points.get(latency, [])) for latency in SLOPE_LATENCIES),
                )
            )
    head = ("tokens", "adapter", "slope, ms per ms", "at most")
    return [
        Figure(
            "slope",
            "Milliseconds of reload for each millisecond an operation takes",
            "Lookup and load of one prefix (Llama 3.1 8B in bf16, chunks of 256 tokens) against "
            "the latency added to every operation; the slope is fitted over 0, 1, 3 and 10 ms. "
            f"Ours opens every pack anew; chunks past the first {DISTINCT} repeat the content of "
            "those, under keys of their own. Points are medians, bars 95 % intervals over rounds; "
            "at 0 ms this machine's memory and cores are the limit, so only differences between "
            "latencies carry over to another machine.",
            draw=partial(_draw_slope, list(rows), lengths),
            table=Table((*head, *(f"at {ms:g} ms, ms" for ms in SLOPE_LATENCIES)), tuple(lines)),
            inches=(9.0, 3.8),
        )
    ]


def _draw_slope(rows: Sequence[Row], lengths: Sequence[int], canvas: Any) -> None:
    plots = canvas.subplots(1, len(lengths), squeeze=False)[0]
    for axes, tokens in zip(plots, lengths, strict=True):
        data = {name: _by_latency(rows, name, tokens) for name in (OURS, FS_NATIVE)}
        curves(
            axes,
            data,
            x="latency of an operation, ms",
            y="lookup + load, ms",
            title=f"{tokens} tokens",
        )


def _batches(rows: Sequence[Row]) -> list[Figure]:
    made = []
    for latency in (1.0, 0.0):
        picked = where_part(rows, "batch", latency_ms=latency)
        if not picked:
            continue
        lines = []
        for batch in ACCEPTED:
            for operation in ("lookup", "load", "lookup_load", "store"):
                fixed: dict[str, Any] = {"part": "batch", "batch": str(batch)}
                cells = [_cell(values(picked, operation, adapter=n, **fixed)) for n in CONTENDERS]
                ratios = [
                    ratio(picked, operation, "adapter", rival, OURS, **fixed)
                    for rival in (FS_NATIVE, FS)
                ]
                texts_ = [one.text() if one else "not measured" for one in ratios]
                lines.append((str(batch), OPERATION_NAMES[operation], *cells, *texts_))
        head = ("batch", "operation", *(f"{name}, ms" for name in CONTENDERS))
        made.append(
            Figure(
                f"batches-{latency:g}ms",
                f"One batch stored, looked up and loaded at {latency:g} ms per operation",
                "Medians over rounds in which the contenders took turns on one mount, page cache "
                "bypassed, every loaded byte compared; ratios are contender over ours with 95 % "
                "intervals, above 1 where ours is faster. Ours verifies checksums, the others "
                "check nothing. Single times carry this machine's noise; ratios within a round do "
                "not.",
                draw=partial(_draw_batches, picked),
                table=Table((*head, "fs_native / ours", "fs / ours"), tuple(lines)),
            )
        )
    return made


def where_part(rows: Sequence[Row], part: str, **params: Any) -> list[Row]:
    return [row for row in rows if row.has(part=part, **params)]


def _draw_batches(rows: Sequence[Row], canvas: Any) -> None:
    plots = canvas.subplots(1, len(ACCEPTED))
    operations = ("lookup", "load", "store")
    for axes, batch in zip(plots, ACCEPTED, strict=True):
        data = {
            name: {
                operation: values(rows, operation, adapter=name, batch=str(batch))
                for operation in operations
            }
            for name in CONTENDERS
        }
        bars(axes, operations, data, y="ms", log_y=True, title=str(batch))


def _profiles(rows: Sequence[Row]) -> list[Figure]:
    """Of each batch in which a target was not reached."""
    short = {
        (str(target.batch), target.latency_ms, "store" if target.operation == "store" else "load")
        for target in TARGETS
        if _accepted(rows, target).outcome in (Outcome.MISSED, Outcome.WITHIN)
    }
    made = []
    for batch, latency, operation in sorted(short):
        found = texts(rows, "profile", batch=batch, latency_ms=latency, operation=operation)
        if found:
            made.append(
                Figure(
                    f"profile-{operation}-{batch}-{latency:g}ms".replace(" ", ""),
                    f"Where our time goes: {operation} of {batch} at {latency:g} ms",
                    "A target above was not reached. Samples of our threads' innermost Python line "
                    "in rounds of their own, C code counted for the line that called it; a "
                    "line that calls the file system counts while it waits for it. The sampler "
                    "itself takes a share of the time.",
                    text=found[-1],
                )
            )
    return made


def _sweep(rows: Sequence[Row]) -> list[Figure]:
    picked = where_part(rows, "sweep")
    shares = [float(one) for one in choices(where(picked, "load"), "bandwidth_share")][::-1]
    if not shares:
        return []
    bandwidth = interval(rows, "mount_bandwidth")
    full = f"{bandwidth.estimate:.0f} MB/s" if bandwidth else "not measured"
    return [
        Figure(
            "sweep",
            "Latency against bandwidth",
            "Lookup and load of 4,096 tokens of Qwen2.5-1.5B (16 chunks of 7 MiB) against latency, "
            "with the whole bandwidth of the mount, half and a quarter of it "
            f"(whole: {full}, plain readers in 4 MiB blocks, measured in this run). Few rounds: "
            "read the order and the factors, not the digits.",
            draw=partial(_draw_sweep, picked, shares),
            inches=(9.0, 3.8),
        )
    ]


def _draw_sweep(rows: Sequence[Row], shares: Sequence[float], canvas: Any) -> None:
    plots = canvas.subplots(1, len(shares), squeeze=False, sharey=True)[0]
    for axes, share in zip(plots, shares, strict=True):
        data = {
            name: by_param(rows, "lookup_load", "latency_ms", adapter=name, bandwidth_share=share)
            for name in CONTENDERS
        }
        title = "bandwidth: " + {1.0: "full", 0.5: "half", 0.25: "a quarter"}.get(share, str(share))
        curves(axes, data, x="latency, ms", y="ms", log_x=True, log_y=True, title=title)


def _lengths(rows: Sequence[Row]) -> list[Figure]:
    picked = where_part(rows, "length")
    chunks = [int(one) for one in choices(where(picked, "load"), "chunk_tokens")]
    return [
        Figure(
            f"lengths-{operation}",
            f"{OPERATION_NAMES[operation]} by prefix length and chunk size",
            "Qwen2.5-1.5B at 1 ms per operation, one panel for each chunk size in tokens. Medians "
            "and 95 % intervals of few rounds: read the order and the factors, not the digits.",
            draw=partial(_draw_lengths, picked, chunks, operation),
            inches=(9.0, 3.8),
        )
        for operation in ("lookup_load", "store")
        if chunks
    ]


def _draw_lengths(rows: Sequence[Row], chunks: Sequence[int], operation: str, canvas: Any) -> None:
    plots = canvas.subplots(1, len(chunks), squeeze=False, sharey=True)[0]
    for axes, chunk in zip(plots, chunks, strict=True):
        data = {
            name: by_param(
                rows, operation, "prefix_tokens", adapter=name, chunk_tokens=chunk, latency_ms=1.0
            )
            for name in CONTENDERS
        }
        title = f"chunks of {chunk} tokens"
        curves(axes, data, x="tokens", y="ms", log_x=True, log_y=True, title=title)


def _cell(repeats: Sequence[float]) -> str:
    return f"{median(repeats):.2f}" if repeats else "not measured"
