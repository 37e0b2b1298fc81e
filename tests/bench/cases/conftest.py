"""Fixtures of the cases' tests. LMCache's own imports warn; that is not ours to change."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lmcache.v1.distributed.storage_manager  # noqa: F401
    from lmcache.v1.distributed.l2_adapters.factory import load_all_adapters

    load_all_adapters()

from tests.bench.cases.recorded import Recorded


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()
