"""What the rows of `cost` show: break-even hit rates and lengths, by model, tier and GPU. Pure.

Reloads of models that were not moved here are taken from those that were: one latency and one
bandwidth for each tier, fitted over all sizes (milliseconds over megabytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from bench.core.adapters import FS_NATIVE, OURS
from bench.core.case import Figure, Outcome, Row, Table, Verdict
from bench.core.statistics import median
from bench.engine.hardware import GPUS, prefill_on
from bench.engine.models import MODELS, Model
from bench.report.plots import curves
from sharedfs_backend.economics import Loading, Prefill, break_even_hit_rate, saved_seconds

CHUNK_TOKENS = 256
REFERENCE_TOKENS = 4096
SHOWN_GPUS = ("A40", "A100", "H100")
SHOWN_MODELS = (
    *("qwen2.5-1.5b-fp16", "qwen3.5-35b-a3b-bf16", "llama-3.1-8b-bf16", "llama-3.1-8b-fp8"),
    *("llama-3.1-70b-bf16-tp4", "llama-3.1-70b-bf16-tp8", "deepseek-v3-bf16-tp8"),
)
FIRST_TOUCH_SHARE = 0.05
"""Most that a miss may add to a prefill on the request's own path."""


def tier_of(rows: Sequence[Row], adapter: str, latency_ms: float) -> tuple[float, float] | None:
    """(seconds at once, bytes per second) of lookup and load, fitted over all sizes."""
    points: dict[float, list[float]] = {}
    for load in rows:
        if load.metric != "load" or load.value is None:
            continue
        if load.has(adapter=adapter, latency_ms=latency_ms):
            lookup = _paired(rows, load, "hit_lookup")
            points.setdefault(float(load.params["mb"]), []).append(load.value + lookup)
    if len(points) < 2:
        return None
    sizes = sorted(points)
    times = [median(points[size]) for size in sizes]
    slope, start = np.polyfit(sizes, times, 1, w=1 / np.asarray(times))
    return max(0.0, float(start)) / 1e3, 1e9 / max(float(slope), 1e-9)


def break_even_tokens(prefill: Prefill, loading: Loading, tokens_max: int) -> int | None:
    """The least prefix, in whole chunks, from which every longer one reloads quicker."""
    found = None
    for tokens in range(tokens_max // CHUNK_TOKENS * CHUNK_TOKENS, 0, -CHUNK_TOKENS):
        if loading.seconds(tokens) >= saved_seconds(prefill, tokens, tokens + 1):
            break
        found = tokens
    return found


def figures(rows: Sequence[Row]) -> list[Figure]:
    latencies = _latencies(rows)
    if not latencies:
        return []
    return [
        Figure(
            name="cost-length",
            title="Length from which a reload is quicker than computing",
            sentence=(
                "Prefix tokens by model, GPU and latency added to each operation; a dash where "
                "computing always wins. Reload times are measured on this directory and carried "
                "over to other models by their bytes; prefill times are modelled (half the GPU's "
                "peak), so a length is good to a factor of two."
            ),
            table=_lengths(rows, latencies),
        ),
        Figure(
            name="cost-curve",
            title="Reloading beside computing, Llama 3.1 8B",
            sentence=(
                "Lookup and load as measured, with 95 % intervals over rounds, and the modelled "
                "prefill of three GPUs. Below a GPU's line a reload wins."
            ),
            draw=partial(_draw, rows=rows, latencies=latencies),
        ),
        Figure(
            name="cost-first-touch",
            title="What a first touch pays, and the hit rate that earns it back",
            sentence=(
                "Milliseconds a miss adds to the request itself (lookup and submit), until all is "
                "stored, and how much slower a single-threaded computation beside the store ran "
                "(on few cores the store competes with it; a GPU does not). p* is the share of "
                "requests that must hit: the lower bound charges the request's own path, the "
                "upper all of the store's time, as if nothing of it were hidden; A100."
            ),
            table=_first_touch(rows),
        ),
    ]


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    target = (
        f"lookup and submit at most {FIRST_TOUCH_SHARE:.0%} of the prefill (A100, modelled), "
        f"from {REFERENCE_TOKENS:,} tokens on"
    )
    worst, where = None, ""
    for key, (lookup, submit, *_) in _touches(rows).items():
        if key[0] != OURS or key[2] < REFERENCE_TOKENS:
            continue
        model, tokens = MODELS[key[1]], key[2]
        share = (lookup + submit) / 1e3 / prefill_on(GPUS["A100"], model).seconds(tokens, tokens)
        if worst is None or share > worst:
            worst, where = share, f"{key[1]}, {tokens:,} tokens, {key[3]:g} ms"
    name = "cost: a miss on the request's own path"
    if worst is None:
        return [Verdict(name, target, Outcome.NOT_MEASURED)]
    outcome = Outcome.MET if worst <= FIRST_TOUCH_SHARE else Outcome.MISSED
    return [Verdict(name, target, outcome, worst, note=f"the worst: {where}; medians")]


Key = tuple[str, str, int, float]
"""Adapter, model, tokens, latency."""


def _touches(rows: Sequence[Row]) -> dict[Key, tuple[float, ...]]:
    """Medians of (miss lookup, submit, store, work beside, hit lookup, load)."""
    metrics = ("miss_lookup", "submit", "store", "work_beside_store", "hit_lookup", "load")
    found: dict[Key, dict[str, list[float]]] = {}
    for row in rows:
        if row.metric in metrics and row.value is not None:
            where = row.params
            key = (
                str(where["adapter"]),
                str(where["model"]),
                int(where["tokens"]),
                float(where["latency_ms"]),
            )
            found.setdefault(key, {}).setdefault(row.metric, []).append(row.value)
    return {
        key: tuple(median(by_metric[metric]) for metric in metrics)
        for key, by_metric in found.items()
        if all(metric in by_metric for metric in metrics)
    }


def _paired(rows: Sequence[Row], load: Row, metric: str) -> float:
    """The same repeat's other metric."""
    for row in rows:
        if row.metric == metric and row.repeat == load.repeat and row.params == load.params:
            return row.value or 0.0
    return 0.0


def _latencies(rows: Sequence[Row]) -> list[float]:
    return sorted({float(r.params["latency_ms"]) for r in rows if r.metric == "store"})


def _lengths(rows: Sequence[Row], latencies: list[float]) -> Table:
    adapters = [name for name in (OURS, FS_NATIVE) if any(r.has(adapter=name) for r in rows)]
    columns = [(adapter, latency) for adapter in adapters for latency in latencies]
    lines = []
    for name in SHOWN_MODELS:
        for gpu in SHOWN_GPUS:
            model = MODELS[name]
            cells = [_length(rows, model, gpu, adapter, latency) for adapter, latency in columns]
            gpus = f"{model.tensor_parallel} x {gpu}" if model.tensor_parallel > 1 else gpu
            lines.append((name, gpus, *cells))
    heads = (f"{adapter}, {latency:g} ms" for adapter, latency in columns)
    return Table(("model", "GPUs", *heads), tuple(lines))


def _length(rows: Sequence[Row], model: Model, gpu: str, adapter: str, latency_ms: float) -> str:
    tier = tier_of(rows, adapter, latency_ms)
    if tier is None:
        return ""
    loading = Loading(tier[0], tier[1], float(model.rank_bytes_per_token * model.ranks))
    tokens_max = int(str(model.config["max_position_embeddings"]))
    tokens = break_even_tokens(prefill_on(GPUS[gpu], model), loading, tokens_max)
    return "-" if tokens is None else f"{tokens:,}"


def _first_touch(rows: Sequence[Row]) -> Table:
    lines = []
    for key, (lookup, submit, store, slowed, again, load) in sorted(_touches(rows).items()):
        adapter, name, tokens, latency = key
        prefill = prefill_on(GPUS["A100"], MODELS[name])
        gain = saved_seconds(prefill, tokens, tokens + 1) - (again + load) / 1e3
        low = break_even_hit_rate((lookup + submit) / 1e3, gain)
        high = break_even_hit_rate(store / 1e3, gain)
        never = gain <= 0
        lines.append(
            (
                adapter,
                name,
                f"{tokens:,}",
                f"{latency:g} ms",
                f"{lookup + submit:.2f}",
                f"{store:,.0f}",
                f"{slowed:.2f}x",
                f"{again + load:,.0f}",
                "-" if never else f"{gain * 1e3:,.0f}",
                "never" if never else f"{low:.2%} - {high:.0%}",
            )
        )
    head = ("adapter", "model", "tokens", "latency", "miss adds, ms", "stored after, ms")
    return Table((*head, "work beside", "reload, ms", "gain, ms", "p*"), tuple(lines))


def _draw(figure: Any, *, rows: Sequence[Row], latencies: list[float]) -> None:
    axes = figure.add_subplot(1, 1, 1)
    name = "llama-3.1-8b-bf16"
    data: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if row.metric == "load" and row.value is not None and row.has(adapter=OURS, model=name):
            label = f"reloading, {float(row.params['latency_ms']):g} ms"
            total = row.value + _paired(rows, row, "hit_lookup")
            data.setdefault(label, {}).setdefault(int(row.params["tokens"]), []).append(total)
    lengths = sorted({tokens for points in data.values() for tokens in points})
    for gpu in SHOWN_GPUS:
        prefill = prefill_on(GPUS[gpu], MODELS[name])
        modelled = [prefill.seconds(tokens, tokens) * 1e3 for tokens in lengths]
        axes.plot(lengths, modelled, "--", linewidth=1, label=f"computing, {gpu}")
    curves(axes, data, x="prefix, tokens", y="until the prefix is there, ms", log_y=True)
