"""The plots and tables of `reload`, from its rows. Pure.

Each stands under one sentence on what it shows and where its precision ends. Where a target of
reload_says.py is not reached, the profile of our own threads stands below the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from bench.cases.reload_says import (
    ACCEPTED,
    BESIDE,
    DISTINCT,
    OPERATION_NAMES,
    SLOPE_LATENCIES,
    TARGETS,
    accepted,
    by_latency,
    slope_bound,
)
from bench.core.adapters import CONTENDERS, FS, FS_NATIVE, OURS, TUNED
from bench.core.case import Figure, Outcome, Row, Table
from bench.core.select import by_param, choices, interval, ratio, texts, values, where
from bench.core.statistics import digits_of, median, slope_interval
from bench.core.vllm_tier import VLLM_TIER
from bench.report.plots import bars, curves


def figures(rows: Sequence[Row]) -> list[Figure]:
    return [
        *_headline(rows),
        *_batches(rows),
        *_profiles(rows),
        *_sweep(rows),
        *_lengths(rows),
        *_tier(rows),
    ]


def _headline(rows: Sequence[Row]) -> list[Figure]:
    lengths = [int(one) for one in choices(where(rows, "reload", part="slope"), "prefix_tokens")]
    if not lengths:
        return []
    lines = []
    for tokens in lengths:
        for name in (OURS, FS_NATIVE, TUNED):
            points = by_latency(rows, name, tokens)
            if not points:
                continue
            found = slope_interval(points)
            bound = slope_bound(rows, tokens) if name == OURS else None
            lines.append(
                (
                    f"{tokens}",
                    name,
                    found.text() if found else "not measured",
                    f"{bound.limit('own calls'):.0f} ({bound.text()})" if bound else "",
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
            "Ours opens every pack anew, after a load at this latency that is not counted and lets "
            f"its depth settle; chunks past the first {DISTINCT} repeat the content of those, "
            "under keys of their own. Points are medians, bars 95 % intervals over rounds; "
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
        data = {name: by_latency(rows, name, tokens) for name in (OURS, FS_NATIVE, TUNED)}
        data = {name: points for name, points in data.items() if points}
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
                cells = [_cell(values(picked, operation, adapter=n, **fixed)) for n in BESIDE]
                ratios = [
                    ratio(picked, operation, "adapter", rival, OURS, **fixed)
                    for rival in (FS_NATIVE, TUNED, FS)
                ]
                texts_ = [one.text() if one else "not measured" for one in ratios]
                lines.append((str(batch), OPERATION_NAMES[operation], *cells, *texts_))
        head = ("batch", "operation", *(f"{name}, ms" for name in BESIDE))
        place = (texts(rows, "mount") or ["one mount"])[-1]
        made.append(
            Figure(
                f"batches-{latency:g}ms",
                f"One batch stored, looked up and loaded at {latency:g} ms per operation",
                f"Medians over rounds in which the contenders took turns on {place}, "
                "every loaded byte compared; ratios are contender over ours with 95 % "
                "intervals, above 1 where ours is faster. Ours verifies checksums, the others "
                "check nothing. fs_native is shown as LMCache ships it, with 4 workers, and with "
                "32. Single times carry this machine's noise, ratios within a round less of it.",
                draw=partial(_draw_batches, picked),
                table=Table((*head, *(f"{name} / ours" for name in BESIDE[1:])), tuple(lines)),
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
            for name in BESIDE
        }
        bars(axes, operations, data, y="ms", log_y=True, title=str(batch))


def _profiles(rows: Sequence[Row]) -> list[Figure]:
    """Of each batch in which a target was not reached."""
    short = {
        (str(target.batch), target.latency_ms, "store" if target.operation == "store" else "load")
        for target in TARGETS
        if accepted(rows, target).outcome in (Outcome.MISSED, Outcome.WITHIN)
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
        y = "lookup + load, ms"
        curves(axes, data, x="latency, ms", y=y, log_x=True, log_y=True, title=title)


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
        y = f"{OPERATION_NAMES[operation]}, ms"
        curves(axes, data, x="tokens", y=y, log_x=True, log_y=True, title=title)


def _tier(rows: Sequence[Row]) -> list[Figure]:
    """vLLM's own file tier beside ours."""
    picked = where_part(rows, "tier")
    lines = []
    for batch in choices(where(picked, "load"), "batch"):
        for latency in choices(where(picked, "load"), "latency_ms"):
            for operation in ("lookup", "load", "store"):
                fixed: dict[str, Any] = {"batch": batch, "latency_ms": latency}
                sides = (OURS, VLLM_TIER)
                cells = [_cell(values(picked, operation, adapter=n, **fixed)) for n in sides]
                found = ratio(picked, operation, "adapter", VLLM_TIER, OURS, **fixed)
                text = found.text() if found else "not measured"
                lines.append((str(batch), f"{latency:g}", operation, *cells, text))
    if not lines:
        return []
    head = ("batch", "latency, ms", "operation", "ours, ms", f"{VLLM_TIER}, ms", "ratio")
    return [
        Figure(
            "vllm-tier",
            "Beside vLLM's own file tier",
            "The tier's manager driven as vLLM drives it, one job for all chunks of a request, "
            "without an engine around it and without the copies and scheduler steps that adds. It "
            "verifies nothing and opens files with O_DIRECT. Medians of few rounds in turns; the "
            "ratio is its time over ours, above 1 where ours is faster.",
            table=Table(head, tuple(lines)),
        )
    ]


def _cell(repeats: Sequence[float]) -> str:
    middle = median(repeats)
    return f"{middle:.{digits_of(middle)}f}" if repeats else "not measured"
