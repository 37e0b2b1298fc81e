"""A process that moves bytes through one adapter and tells what that took of the machine.

    python -m bench.core.mover {"adapter": "ours", "root": ..., "seconds": 10, "pause": 0, ...}

Stores a batch, loads it, removes it behind the mount, again and again; after each, one line with
processor seconds of each operation, resident memory, descriptors and threads. The first line is the
state with everything imported and the buffers touched, before the adapter is made: what came later
is the adapter's, its catalog included.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from typing import Any

from bench.core.adapters import OURS, Arena, Driver, object_keys
from bench.core.children import arguments, say
from bench.core.profile import open_descriptors, resident_bytes, threads


def state() -> dict[str, float]:
    """Of this process, now."""
    return {
        "rss": resident_bytes(),
        "fds": open_descriptors(),
        "threads": threads(),
        "cpu": time.process_time(),
        "at": time.monotonic(),
    }


def remove_data(backing: Path, name: str) -> None:
    for path in backing.rglob("*"):
        if path.is_file() and (path.parent.parent.name == "packs" or name != OURS):
            path.unlink(missing_ok=True)


def move(given: dict[str, Any]) -> None:
    name, count = given["adapter"], given["count"]
    source, target = Arena(count, given["size"]), Arena(count, given["size"])
    source.fill(1)
    target.clear()
    import_everything()
    gc.collect()
    say({"before": state()})
    with Driver(name, Path(given["root"]), source) as driver:
        if given.get("wait_chunks"):
            wait_for_catalog(driver, given["wait_chunks"])
        say({"ready": state()})
        deadline = time.monotonic() + given["seconds"]
        number = 0
        while time.monotonic() < deadline or number < 2:
            keys = object_keys(given["first"] + number * count, count)
            stored = driver.store(keys, source.objects)
            driver.lookup(keys)
            loaded = driver.load(keys, target.objects)
            driver.unlock(keys)
            whole = stored.complete and loaded.complete
            # Idle processor time between batches (heartbeats, refresh) is part of the difference.
            say({"batch": number, "whole": whole, "store_cpu": stored.cpu_seconds,
                 "load_cpu": loaded.cpu_seconds, "state": state()})  # fmt: skip
            driver.close_files()
            remove_data(Path(given["backing"]), name)
            number += 1
            time.sleep(given["pause"])
        say({"done": number})


def import_everything() -> None:
    import lmcache.v1.distributed.storage_manager  # noqa: F401  # breaks an import circle
    from lmcache.v1.distributed.l2_adapters.factory import load_all_adapters

    import sharedfs_backend.mp  # noqa: F401

    load_all_adapters()


def wait_for_catalog(driver: Driver, chunks: int) -> None:
    store = driver.store_object
    deadline = time.monotonic() + 240.0
    while store.usage().chunk_count < chunks:
        if time.monotonic() > deadline:
            raise TimeoutError("the catalog was not read")
        time.sleep(0.05)


if __name__ == "__main__":
    move(arguments())
    sys.exit(0)
