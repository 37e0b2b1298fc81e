"""Imports LMCache before any test: what its own imports warn about is not ours to change."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lmcache.v1.distributed.storage_manager  # noqa: F401
    from lmcache.v1.distributed.l2_adapters.factory import load_all_adapters

    load_all_adapters()
