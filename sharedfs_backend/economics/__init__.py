"""Economics: when loading KV beats computing it. Once, for the command line, the router, the bench.

    costs.py      seconds to compute and to load, break-even points, fits. Pure
    models.py     what a model's config says: bytes of KV, weights passed, a prefill's cost. Pure
    judging.py    a measured tier against a model: does it pay, from which length, why not. Pure
    probing.py    measures a mounted directory in under a minute

Only `probing` touches a file system, through `files`; it is imported by who needs it, not here.
"""

from sharedfs_backend.economics.costs import (
    Loading,
    Prefill,
    break_even_bandwidth,
    break_even_hit_rate,
    fit,
    is_worth_loading,
    load_or_recompute,
    prefill_of_hardware,
    saved_seconds,
)
from sharedfs_backend.economics.models import (
    kv_bytes_per_token,
    kv_bytes_per_token_of_rank,
    parameters_passed,
    prefill_of_speed,
)

__all__ = [
    "Loading",
    "Prefill",
    "break_even_bandwidth",
    "break_even_hit_rate",
    "fit",
    "is_worth_loading",
    "kv_bytes_per_token",
    "kv_bytes_per_token_of_rank",
    "load_or_recompute",
    "parameters_passed",
    "prefill_of_hardware",
    "prefill_of_speed",
    "saved_seconds",
]
