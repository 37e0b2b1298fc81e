"""A run stopped anywhere, on any file system, leaves every chunk whole or absent (I2, I5)."""

from __future__ import annotations

import os

import pytest

from tests.protocol.stop_anywhere import reopened, stops
from tests.sim.quirks import names

# Every operation in the nightly run; a different share of them on each file system otherwise.
STRIDE = int(os.environ.get("SHAREDFS_STOP_STRIDE", "31"))


@pytest.mark.slow
@pytest.mark.parametrize("fs", names())
def test_a_run_stopped_anywhere_leaves_every_chunk_whole_or_absent(fs: str) -> None:
    found, fleet = stops(fs, seed=3, stride=STRIDE)
    assert fleet.disk.violations == []
    did = {name for name, count in fleet.did().items() if count}
    assert {"packs_stored", "packs_dropped", "packs_unlinked", "snapshots_written"} <= did
    problems = [line for stop in found for line in reopened(stop, fs, seed=stop.number)]
    assert problems == []
