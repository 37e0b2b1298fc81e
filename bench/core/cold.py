"""A process that starts and looks up: one line with the instants of its milestones.

    python -m bench.core.cold {"adapter": "store" | "ours" | "fs_native", "root": ..., "chunk": ...}

"store" asks our Store for chunk number `chunk` of a made-up namespace (namespaces.py); the others
ask the adapter for a batch that was stored before. Every instant is of `time.monotonic`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from bench.core.children import arguments, say

ASK_SECONDS = 0.0005
GIVE_UP_SECONDS = 240.0


def ask_store(given: dict[str, Any]) -> dict[str, float]:
    from bench.catalog.data import LAYOUT, REALM, SEAL, identifiers
    from sharedfs_backend.layout import chunk_key
    from sharedfs_backend.settings import Settings
    from sharedfs_backend.store import DIRECT_USE, Realm, Store

    (one,) = identifiers(given["chunk"], 1)
    key = chunk_key(SEAL, one.chunk_hash, one.kv_rank, one.object_group_id, one.cache_salt)
    realm = Realm(REALM, DIRECT_USE)
    imported = time.monotonic()
    with Store(settings=Settings(root=given["root"])) as store:
        opened = time.monotonic()
        while not store.lookup([key], realm=realm, layouts=LAYOUT)[0]:
            if time.monotonic() - opened > GIVE_UP_SECONDS:
                raise TimeoutError("the chunk was not found")
            time.sleep(ASK_SECONDS)
        found = time.monotonic()
        chunks = store.usage().chunk_count
    return {"imported": imported, "opened": opened, "found": found, "chunks": chunks}


def ask_adapter(given: dict[str, Any]) -> dict[str, float]:
    from bench.core.adapters import Arena, Driver, object_keys

    keys = object_keys(given["chunk"], given["count"])
    arena = Arena(1, given["size"])
    import lmcache.v1.distributed.storage_manager  # noqa: F401  # breaks an import circle
    from lmcache.v1.distributed.l2_adapters.factory import load_all_adapters

    import sharedfs_backend.mp  # noqa: F401

    load_all_adapters()
    imported = time.monotonic()
    with Driver(given["adapter"], Path(given["root"]), arena) as driver:
        opened = time.monotonic()
        while not driver.lookup(keys).complete:
            if time.monotonic() - opened > GIVE_UP_SECONDS:
                raise TimeoutError("the batch was not found")
            time.sleep(ASK_SECONDS)
        found = time.monotonic()
    return {"imported": imported, "opened": opened, "found": found, "chunks": given["count"]}


def main() -> int:
    given = arguments()
    say(ask_store(given) if given["adapter"] == "store" else ask_adapter(given))
    return 0


if __name__ == "__main__":
    sys.exit(main())
