"""One process of the crash test: stores and loads overlapping prefixes until told to stop.

Content is a function of the key, so every process can tell right bytes from wrong ones without
asking anybody. Prints one JSON line of counters about once a second and at the end; being killed
between two lines is part of the test.

    python -m tests.crash.work ROOT NUMBER MODE
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator

from sharedfs_backend.layout import LayoutDescriptor, PackName
from sharedfs_backend.settings import Settings
from sharedfs_backend.store import PutItem, Store

MIB = 1 << 20
CHUNK_BYTES = 256 << 10
DOCUMENTS = 60
CHUNKS = 16
CAP_BYTES = 160 * MIB
LAYOUT = LayoutDescriptor(("uint8",), ((CHUNK_BYTES,),), "RAW", 256)


def settings_for(root: str) -> Settings:
    """Everything that takes minutes in production takes seconds here, in the same proportions."""
    return Settings(
        root=root,
        cap_bytes=CAP_BYTES,
        lease_seconds=6.0,
        buffer_ttl_seconds=3.0,
        load_deadline_seconds=1.5,
        refresh_seconds=0.25,
        drop_delay_seconds=2.0,
        linger_seconds=0.005,
    )


def key_of(document: int, chunk: int) -> bytes:
    return document.to_bytes(8, "big") + chunk.to_bytes(8, "big")


def content_of(key: bytes) -> bytes:
    """Cheap, different for every key, and every 32-byte line of it different too."""
    line = random.Random(key).randbytes(4096)
    return b"".join(
        number.to_bytes(32, "big") + line[: 4096 - 32] for number in range(CHUNK_BYTES // 4096)
    )


def documents(seed: int, mode: str) -> Iterator[int]:
    """`shared`: everybody reads the same Zipf-like documents; `own`: each its own, never again."""
    source = random.Random(seed)
    number = 0
    while True:
        if mode == "own":
            yield (seed << 32) + number
            number += 1
        else:
            yield min(int(source.paretovariate(0.7)) - 1, DOCUMENTS - 1)


def turn(store: Store, document: int, counts: Counter[str]) -> None:
    """Look up a prefix, load what is there, store what is not."""
    keys = [key_of(document, chunk) for chunk in range(CHUNKS)]
    hits = store.lookup(keys, layouts=LAYOUT, lock=True)
    found = [key for key, hit in zip(keys, hits, strict=True) if hit]
    buffers = [bytearray(CHUNK_BYTES) for _ in found]
    results = store.load(found, buffers, layout=LAYOUT)
    store.unlock(found)
    counts["asked"] += len(keys)
    counts["found"] += len(found)
    counts["loaded"] += sum(results)
    counts["missed"] += len(found) - sum(results)
    for key, good, buffer in zip(found, results, buffers, strict=True):
        if good and bytes(buffer) != content_of(key):
            counts["wrong"] += 1
    items = [
        PutItem(key, memoryview(content_of(key)), LAYOUT)
        for key, hit in zip(keys, hits, strict=True)
        if not hit
    ]
    if items:
        task = store.put(items, timeout_seconds=30.0)
        counts["offered"] += len(items)
        counts["stored"] += sum(task.stored)
        counts["present"] += sum(task.present) - sum(task.stored)
        counts["dropped"] += len(items) - sum(task.present)


def watch(store: Store, began: list[float]) -> None:
    """Say when this process drops packs, and when a load finds a pack missing and since when it
    ran: one clock for all processes of a machine, so the driver can tell which came first."""
    sweeper, ledger = store.parts.sweeper, store.parts.ledger
    drop, condemn = sweeper.drop, ledger.condemn

    def dropping(names: list[PackName]) -> None:
        say(dropping=[name.path for name in names], at=time.monotonic())
        drop(names)

    def condemned(name: PackName, key: bytes | None) -> None:
        if key is None:
            say(missing=name.path, began=began[0])
        condemn(name, key)

    sweeper.drop = dropping  # type: ignore[method-assign] # a spy
    ledger.condemn = condemned  # type: ignore[method-assign] # a spy


def say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main(root: str, number: int, mode: str) -> None:
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, frame: stop.append(signum))
    counts: Counter[str] = Counter()
    store = Store(settings=settings_for(root))
    said = time.monotonic()
    began = [said]
    watch(store, began)
    for document in documents(number, mode):
        began[0] = time.monotonic()
        turn(store, document, counts)
        if time.monotonic() - said > 1.0 or stop:
            said = time.monotonic()
            say(counts=counts, stats=store.stats())
        if stop:
            break
    store.close()
    say(counts=counts, stats=store.stats())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
