"""What the ceiling case puts in the place of checksums: nothing is hashed within, all after it."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from bench.cases.ceiling import compiled_nothing, unchecked, updates
from sharedfs_backend.buffers import address_of
from sharedfs_backend.layout.seal import Seal
from sharedfs_backend.native import UNIT_ENDS, Loops
from tests.datapath.support import compiled

DATA = np.arange(4096, dtype=np.uint8)


def by_loops(loops: Loops) -> bytes:
    target = np.zeros(len(DATA), np.uint8)
    (digest,) = loops.copy(address_of(DATA), [(address_of(target), len(DATA), UNIT_ENDS)])
    assert (target == DATA).all()
    return digest


def by_seal() -> bytes:
    hasher = Seal().hasher()
    hasher.update(DATA.data)
    return hasher.digest()


def test_checksums_are_out_and_in_again() -> None:
    loops, right = compiled(), xxhash.xxh3_128_digest(DATA.tobytes())
    if compiled_nothing() is None:
        pytest.skip("no C compiler: apt install gcc")
    before = updates()
    with unchecked():
        assert by_loops(loops) == by_seal() == bytes(16)
    assert updates() == before + 2
    assert by_loops(loops) == by_seal() == right
    assert updates() == before + 2
