"""A process that writes for another to see: N stores on one namespace, or one adapter.

    python -m bench.core.writers {"adapter": "ours", "root": ..., "count": 16, "bytes": 65536}

"ours" are stores, "ours adapter" and "fs_native" what LMCache makes of them.
Each of the N stores commits once at the start, so that each has a journal. Then for every line
{"chunk": n} on standard input the next store in turn commits chunk n, and one line tells when:
`committed` is an instant of `time.monotonic`, taken when the store says it is done.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.core.children import arguments, say


def chunk_key(number: int) -> bytes:
    """Both sides know it by the number alone."""
    return number.to_bytes(16, "big")


def commands() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def write_stores(given: dict[str, Any]) -> None:
    from sharedfs_backend.settings import Settings
    from sharedfs_backend.store import DIRECT_LAYOUT, PutItem, Store

    settings = Settings(
        root=given["root"],
        linger_seconds=0.0,
        refresh_seconds=300.0,  # writers do not read: what is counted is the reader's work
        drop_delay_seconds=600.0,
        read_threads_max=1,
        write_threads_max=1,
        audit=False,
    )
    data = memoryview(bytes(given["bytes"]))

    def put(store: Store, number: int) -> float:
        task = store.put([PutItem(chunk_key(number), data, DIRECT_LAYOUT)])
        if task.failed:
            raise RuntimeError(task.failed)
        return time.monotonic()

    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(Store(settings=settings)) for _ in range(given["count"])]
        for at, store in enumerate(stores):
            put(store, (1 << 100) + at)
        say({"ready": True})
        for turn, command in enumerate(commands()):
            say({"committed": put(stores[turn % len(stores)], command["chunk"])})


def write_adapter(given: dict[str, Any]) -> None:
    from bench.core.adapters import OURS, Arena, Driver, object_keys

    arena = Arena(1, given["bytes"])
    name = OURS if given["adapter"] == "ours adapter" else given["adapter"]
    with Driver(name, Path(given["root"]), arena) as driver:
        say({"ready": True})
        for command in commands():
            driver.store(object_keys(command["chunk"], 1), arena.objects)
            say({"committed": time.monotonic()})


def main() -> int:
    given = arguments()
    (write_stores if given["adapter"] == "ours" else write_adapter)(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
