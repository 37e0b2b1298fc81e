"""Constants: the numbers of the cost model, one table, each with unit and source.

They are where learning starts, not what it ends with: `learning` moves the four that a proxy can
measure (fixed time, time per token, bandwidth, latency) and the quadratic term from what each
replica does. The others are weights of the decision or properties no router can see.

The figures are those of a 70B-class model on four GPUs (140 GB of weights, 134 GB of KV; 1.4
PFLOP/s give 0.1 ms a token); 320 KiB of KV per token is 80 layers, 8 KV heads of 128, keys and
values in two bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True, slots=True)
class Constants:
    """All in seconds, bytes and tokens. A replica's own are learned from these."""

    fixed_seconds: float = 10e-3
    """c0: what a prefill costs beside its tokens."""
    token_seconds: float = 0.1e-3
    """c1: one prompt token through all weights (2 * parameters / FLOP/s)."""
    pair_seconds: float = 2e-9
    """c2: attention between a computed token and one before it."""
    decode_slowdown: float = 0.01
    """g: share of GPU time each running decode takes from a prefill."""
    kv_bytes_per_token: float = 320.0 * KIB
    """k: see `sharedfs_backend.economics.kv_bytes_per_token`."""
    host_bytes_per_second: float = 200e9
    """B_pcie: from the host's memory; four GPUs, each its share over its own PCIe 5 link."""
    shared_bytes_per_second: float = 5e9
    """B_w: what one replica reads from the shared tier."""
    shared_latency_seconds: float = 10e-3
    """l: from asking the shared tier to its first byte."""
    visibility_seconds: float = 2.0
    """From a prefill until other replicas can load what it made."""
    gpu_tokens: int = 800 * 512
    """KV a replica's GPU holds, until its metrics tell."""
    host_tokens: int = 1600 * 512
    """KV a replica's host memory holds; 0: it keeps none there."""
    shared_blocks: int = 1 << 17
    """Blocks remembered to be in the shared tier, where no catalog tells: 9 MB at most."""

    throughput_weight: float = 0.3
    """theta: how much a second of GPU or of loading counts for each request that waits for it."""
    answer_weight: float = 0.2
    """chi: how far a replica's share of prefilling, lately, tells what an answer there will slow.
    From 0.3 on nothing more is gained (`bench.routing`), and short prompts crowd on one replica."""
    pressure_seconds: float = 10.0
    """phi: cost of a full KV cache (preemption), in seconds per share above 0.9."""
    retain_weight: float = 0.25
    """psi: credit for a prefix only this replica holds, per second of computing it again."""
    has_shared_tier: bool = True
    """Every replica can load what any of them prefilled."""
    is_load_gated: bool = True
    """Load from the shared tier only where that beats computing (if the engine can be told)."""
