"""Both verifiers against plain hashing: units over several steps, padding, parts left out."""

from __future__ import annotations

import random

import numpy as np
import pytest
import xxhash

from sharedfs_backend.buffers import PrivateBuffer
from sharedfs_backend.layout.seal import Seal
from sharedfs_backend.readplan import Span
from sharedfs_backend.readstep import Verifier, parts_of, verifiers
from tests.datapath.support import compiled

STEP_BYTES = 1 << 16


@pytest.fixture(params=["python", "compiled"])
def verifier(request: pytest.FixtureRequest) -> Verifier:
    return verifiers(Seal(None), compiled() if request.param == "compiled" else None)()


@pytest.mark.parametrize("seed", range(8))
def test_every_unit_that_is_wanted_is_copied_and_hashed(verifier: Verifier, seed: int) -> None:
    """One chunk for each unit; some are given up before or between two steps, as by a cancel."""
    rng = random.Random(seed)
    spans: list[Span] = []
    at = 0
    for chunk in range(12):
        length = rng.choice([1, 4095, 20_000, STEP_BYTES, 3 * STEP_BYTES + 7])
        spans.append(Span(chunk, 0, at, length))
        at += length + rng.choice([0, 100])
    piece = rng.randbytes(at)
    given_up = {chunk: rng.randrange(0, at, STEP_BYTES) for chunk in rng.sample(range(12), 4)}
    destinations = [np.zeros(span.length, np.uint8) for span in spans]
    buffer = PrivateBuffer(STEP_BYTES)
    found: dict[int, bytes] = {}
    number = 0
    for start in range(0, at, STEP_BYTES):
        end = min(start + STEP_BYTES, at)
        buffer.view[: end - start] = piece[start:end]
        parts = parts_of(spans, number, start, end)
        number += sum(part.ends for part in parts)
        wanted = [part for part in parts if start < given_up.get(part.span.chunk, at)]
        digests = verifier.move([(part, destinations[part.span.chunk]) for part in wanted], buffer)
        ended = [part.span.chunk for part in wanted if part.ends]
        found.update(zip(ended, digests, strict=True))
    assert len(found) >= 8
    for span in spans:
        content = piece[span.piece_offset : span.piece_offset + span.length]
        if span.chunk in found:
            assert found[span.chunk] == xxhash.xxh3_128_digest(content)
            assert destinations[span.chunk].tobytes() == content
        else:
            assert span.chunk in given_up
