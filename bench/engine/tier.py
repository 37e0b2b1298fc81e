"""What this directory's operations and bytes cost, measured as `sharedfs fit` does it.

Cases that cannot move full-size KV (hours of traffic, eight replicas on two cores) take the time of
a reload from this measurement of the directory they run on, and say so.
"""

from __future__ import annotations

from pathlib import Path

from sharedfs_backend.cli.fitting import probe_tier
from sharedfs_backend.economics import Loading
from sharedfs_backend.economics.judging import LONG_TOKENS, Tier, pack_size

__all__ = ["Tier", "loading_of", "measured_tier"]


def measured_tier(folder: Path, seconds_max: float = 10.0) -> Tier:
    """Probes a scratch directory below `folder`."""
    return probe_tier(folder, lambda done, total: None, seconds_max)


def loading_of(tier: Tier, kv_bytes_per_token: int) -> Loading:
    """The tier in the router's terms: one latency and one bandwidth."""
    pack_bytes = pack_size(tier, LONG_TOKENS * kv_bytes_per_token)
    latency = tier.reload_seconds(1, pack_bytes)
    return Loading(latency, tier.read_bytes_per_second, float(kv_bytes_per_token))
