"""A second process for the store tests: loads what the first stored, and says how it went.

    python -m tests.bench.throttle.reader ROOT PROFILE COUNT BYTES SEED

Prints one JSON line once everything has been loaded: chunks found, loaded and wrong, and how many
loads it took. Chunks follow from the seed, so both processes know what is right.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from sharedfs_backend.layout import LayoutDescriptor
from sharedfs_backend.settings import Settings
from sharedfs_backend.store import Store
from tests.store.inline import chunks_of, layout_of, settings_for

PATIENCE_SECONDS = 60.0


def store_settings(root: Path, profile: str, **changes: object) -> Settings:
    """Production's proportions, seconds instead of minutes."""
    quick = {
        "profile": profile,
        "lease_seconds": 20.0,
        "buffer_ttl_seconds": 10.0,
        "load_deadline_seconds": 5.0,
        "refresh_seconds": 0.05,
        "drop_delay_seconds": 6.0,
    }
    return settings_for(root, **quick | changes)


def load_all(
    store: Store, chunks: dict[bytes, bytes], layout: LayoutDescriptor
) -> tuple[int, list[bytes], int]:
    """Loads until every chunk was loaded once: (loaded, wrong ones, number of loads)."""
    left, wrong, loads = dict(chunks), [], 0
    end = time.monotonic() + PATIENCE_SECONDS
    while left and time.monotonic() < end:
        buffers = [bytearray(len(data)) for data in left.values()]
        results = store.load(list(left), buffers, layout=layout)
        loads += 1
        got = [
            (key, bytes(buffer))
            for key, good, buffer in zip(left, results, buffers, strict=True)
            if good
        ]
        wrong += [key for key, data in got if chunks[key] != data]
        for key, _ in got:
            del left[key]
        if left:
            time.sleep(0.05)  # what failed is tried again after a back-off
    return len(chunks) - len(left), wrong, loads


def main() -> int:
    root, profile, count, size, seed = sys.argv[1:]
    chunks = chunks_of(int(count), int(size), seed=int(seed))
    layout = layout_of(chunks)
    with Store(settings=store_settings(Path(root), profile)) as store:
        end = time.monotonic() + PATIENCE_SECONDS
        while not all(store.lookup(list(chunks), layouts=layout)) and time.monotonic() < end:
            store.wait_current(1.0)
        found = sum(store.lookup(list(chunks), layouts=layout))
        loaded, wrong, loads = load_all(store, chunks, layout)
    print(json.dumps({"found": found, "loaded": loaded, "wrong": len(wrong), "loads": loads}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
