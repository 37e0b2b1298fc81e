"""A process that moves bytes through one adapter and tells what that took of the machine.

    python -m bench.core.mover {"adapter": "ours", "root": ..., "seconds": 10, "pause": 0, ...}

Stores a batch, loads it, removes it behind the mount, again and again; after each, one line with
processor seconds of each operation, resident memory, descriptors, threads, and, of our own adapter,
what it remembers. The first line is the state with everything imported and the buffers touched,
before the adapter is made: what came later is the adapter's, its catalog included. The second has
the limits of what it remembers. Nothing is kept here from one batch to the next.
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


REMEMBERED = (
    "catalog_rows",
    "packs_known",
    "writers_known",
    "keys_remembered",
    "adapter_keys_known",
    "audit_chunks",
    "adapter_locks",
    "open_packs",
    "buffer_bytes",
)
"""Of our own gauges, those of what grows with what is stored, looked up or loaded."""


def limits(driver: Driver) -> dict[str, float]:
    """The most there can be of what is remembered, where one number says it."""
    if driver.name != OURS:
        return {}
    from sharedfs_backend.auditor import OWN_KEYS_MAX
    from sharedfs_backend.finding import LOCKS_MAX
    from sharedfs_backend.mp.known import KNOWN_MAX

    settings = driver.store_object.settings
    return {
        "catalog_rows": settings.chunks_max,
        "keys_remembered": settings.keys_memo_max,
        "adapter_keys_known": KNOWN_MAX,
        "audit_chunks": OWN_KEYS_MAX,
        "adapter_locks": LOCKS_MAX,
        "open_packs": settings.open_files_max,
        "buffer_bytes": settings.buffer_bytes_max,
    }


def remembered(driver: Driver) -> dict[str, float]:
    gauges = driver.gauges()
    return {name: gauges[name] for name in REMEMBERED if name in gauges}


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
    options = given.get("options", {})
    with Driver(name, Path(given["root"]), source, options=options) as driver:
        if given.get("wait_chunks"):
            wait_for_catalog(driver, given["wait_chunks"])
        say({"ready": state(), "limits": limits(driver)})
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
                 "load_cpu": loaded.cpu_seconds, "state": state(),
                 "remembered": remembered(driver)})  # fmt: skip
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
