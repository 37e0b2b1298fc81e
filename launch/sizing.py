"""Sizing: how many tokens a shared tier holds, and what a reload takes beside computing.

    python -m launch.sizing                          the tables of docs/CLUSTER.md
    python -m launch.sizing --model /models/x --gpu A100 --gpus 4 --tier 20TiB

Bytes follow from the model's config, seconds from published peaks and the formulas of
`sharedfs_backend.economics`; nothing is measured here. `sharedfs fit` measures a mount, and a
replica's own prefill speed is better than any peak. Must not know: files other than a config.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.engine.hardware import EFFICIENCY, FIXED_SECONDS, GPUS
from bench.engine.models import CONFIGS
from sharedfs_backend.cli.sizes import parse_size, show_size
from sharedfs_backend.economics import (
    Loading,
    Prefill,
    kv_bytes_per_token,
    parameters_passed,
    prefill_of_hardware,
)
from sharedfs_backend.economics.models import attention
from sharedfs_backend.exceptions import ConfigError

TIB = 1 << 40
TIERS = (TIB, 10 * TIB, 100 * TIB)
LENGTHS = (8192, 32768)
LENGTH_MAX = 131_072
CHUNK_TOKENS = 256
DTYPE_BYTES = {"bf16": 2, "fp8": 1}
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3.5-35b-a3b", "deepseek-v3")
REPLICAS = (
    # Family, dtype of the KV, GPU, GPUs of one replica: what fits on nodes of four.
    ("llama-3.1-8b", "bf16", "A40", 1),
    ("llama-3.1-8b", "bf16", "A100", 1),
    ("qwen3.5-35b-a3b", "bf16", "A100", 2),
    ("llama-3.1-70b", "bf16", "A40", 4),
    ("llama-3.1-70b", "bf16", "A100", 4),
)


@dataclass(frozen=True, slots=True)
class Mount:
    """What a node gets of a file system: one operation, and bytes with many in flight."""

    operation_seconds: float
    bytes_per_second: float

    def loading(self, bytes_per_token: float) -> Loading:
        """Opens go in parallel, and so do reads: two operations until the bytes flow."""
        return Loading(2 * self.operation_seconds, self.bytes_per_second, bytes_per_token)

    def __str__(self) -> str:
        return f"{self.operation_seconds * 1e3:g} ms, {self.bytes_per_second / 1e9:g} GB/s"


MOUNTS = (Mount(1e-3, 1e9), Mount(1e-3, 5e9), Mount(5e-3, 5e9))


def prefill(config: Mapping[str, object], gpu: str, gpus: int) -> Prefill:
    """Of one replica, at half of the published peak."""
    part = attention(config)
    return prefill_of_hardware(
        parameters_passed(config),
        part.layers,
        part.heads,
        part.head_dim,
        flops=GPUS[gpu].flops * gpus,
        efficiency=EFFICIENCY,
        fixed_seconds=FIXED_SECONDS,
    )


def capacity_table(
    models: Iterable[tuple[str, Mapping[str, object]]], tiers: Sequence[int]
) -> list[str]:
    """KV of one token, and how many tokens fit, for each model and KV dtype."""
    rows = [["model", "KV dtype", "KV per token", *(f"tokens in {show_size(t)}" for t in tiers)]]
    for name, config in models:
        for dtype, size in DTYPE_BYTES.items():
            each = kv_bytes_per_token(config, size)
            held = [f"{tier / each / 1e6:,.1f} million" for tier in tiers]
            rows.append([name, dtype, f"{each / 1024:,.1f} KiB", *held])
    return markdown(rows)


def time_table(
    replicas: Iterable[tuple[str, Mapping[str, object], str, str, int]],
    mounts: Sequence[Mount],
    lengths: Sequence[int] = LENGTHS,
) -> list[str]:
    """Computing a prefix beside reloading it, and from which length on a reload is quicker."""
    rows = [["model, GPUs of a replica", "prefix", "computed", *(f"reloaded: {m}" for m in mounts)]]
    for name, config, dtype, gpu, gpus in replicas:
        costs = prefill(config, gpu, gpus)
        loadings = [
            mount.loading(kv_bytes_per_token(config, DTYPE_BYTES[dtype])) for mount in mounts
        ]
        label = f"{name} {dtype}, {gpus} x {gpu}"
        for length in lengths:
            times = [_seconds(loading.seconds(length)) for loading in loadings]
            computed = _seconds(costs.seconds(length, length))
            rows.append([label, f"{length:,}", computed, *times])
            label = ""
        least = [_least(costs, loading) for loading in loadings]
        rows.append(["", "quicker from", "", *least])
    return markdown(rows)


def _least(costs: Prefill, loading: Loading) -> str:
    """The least prefix from which on each is reloaded more quickly than it is computed."""
    found = "never"
    for length in range(LENGTH_MAX, 0, -CHUNK_TOKENS):
        if loading.seconds(length) >= costs.seconds(length, length):
            break
        found = f"{length:,}"
    return found


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as a table; the first is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


def standard() -> list[str]:
    """The tables of docs/CLUSTER.md."""
    models = [(name, CONFIGS[name]) for name in MODELS]
    replicas = [(name, CONFIGS[name], dtype, gpu, gpus) for name, dtype, gpu, gpus in REPLICAS]
    return [*capacity_table(models, TIERS), "", *time_table(replicas, MOUNTS)]


def _config(text: str) -> Mapping[str, object]:
    if text in CONFIGS:
        return CONFIGS[text]
    path = Path(text)
    try:
        found = json.loads((path / "config.json" if path.is_dir() else path).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--model {text}: {error}; give a model's directory, its config.json, or one of "
            f"{', '.join(CONFIGS)}"
        ) from None
    if not isinstance(found, dict):
        raise ConfigError(f"--model {text}: must hold one JSON object")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m launch.sizing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="directory, config.json, or a name from the table")
    parser.add_argument("--kv-dtype", choices=DTYPE_BYTES, default="bf16")
    parser.add_argument("--gpu", choices=GPUS, default="A100")
    parser.add_argument("--gpus", type=int, default=1, help="of one replica")
    parser.add_argument("--tier", default="10TiB", help="what the namespace may hold")
    parser.add_argument("--operation-ms", type=float, help="one operation (see `sharedfs fit`)")
    parser.add_argument("--gb-per-second", type=float, help="read by one node (see `sharedfs fit`)")
    options = parser.parse_args(words)
    try:
        if options.model is None:
            print("\n".join(standard()))
            return 0
        config = _config(options.model)
        mounts: Sequence[Mount] = MOUNTS
        if options.operation_ms and options.gb_per_second:
            mounts = (Mount(options.operation_ms / 1e3, options.gb_per_second * 1e9),)
        name = Path(options.model).name
        replica = (name, config, options.kv_dtype, options.gpu, max(1, options.gpus))
        print("\n".join(capacity_table([(name, config)], [parse_size("--tier", options.tier)])))
        print()
        print("\n".join(time_table([replica], mounts)))
    except (ConfigError, ValueError) as error:
        print(f"sizing: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
