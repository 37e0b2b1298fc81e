"""The store on throttled mounts, end to end: with GekkoFS' quirks, with bytes visible at close, and
with faults. Each client has a mount of its own; one of them is often another process (I3-I7).
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.throttle import Counters, Quirks, Throttle, named
from sharedfs_backend.store import PutTask, Store
from tests.bench.throttle.mounts import Mount, until
from tests.bench.throttle.reader import load_all, store_settings
from tests.store.inline import KIB, MIB, chunks_of, items_of, layout_of

ROOT = Path(__file__).resolve().parents[3]
LATENCY_MS = 0.5
DOCUMENTS = 200
NFS = replace(named("nfs"), listing_stale_ms=500.0)
"""As it is, but for a minute until a new writer is seen, which no test should take."""


def put(store: Store, chunks: dict[bytes, bytes]) -> PutTask:
    return store.put(items_of(chunks))


def reader(root: Path, profile: str, count: int, size: int, seed: int) -> dict[str, int]:
    """What another process finds and loads of the chunks of that seed."""
    words = [str(word) for word in (root, profile, count, size, seed)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.throttle.reader", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    result: dict[str, int] = json.loads(done.stdout)
    return result


def unlawful(counters: Counters) -> dict[str, int]:
    """What the store promises never to need, or to do (I1, I3)."""
    return {
        "rename": counters.rename,
        "link": counters.link + counters.symlink,
        "excl_races": counters.excl_races,
        "names_recreated": counters.names_recreated,
        "unlinked_while_written": counters.unlinked_while_written,
        "fallocate": counters.fallocate,
    }


@pytest.mark.parametrize(
    ("profile", "quirks", "probes"),
    [
        ("gekkofs", named("gekkofs"), 0),
        ("nfs", NFS, 0),
        ("posix", Quirks(visible_at_close=True), 1),
    ],
    ids=["gekkofs", "nfs", "visible-at-close"],
)
def test_what_one_process_stored_another_finds_and_loads(
    profile: str, quirks: Quirks, probes: int, mount_as: Mount
) -> None:
    """`probes`: renames that opening a namespace tries, where the profile says they may work."""
    one, two = mount_as("one"), mount_as("two")
    for mount in (one, two):
        mount.set(latency_ms=LATENCY_MS, quirks=quirks)
    first, second = chunks_of(24, 128 * KIB, seed=1), chunks_of(24, 128 * KIB, seed=2)
    with Store(settings=store_settings(one.mountpoint, profile)) as writer:
        assert sum(put(writer, first).stored) == 24
        assert sum(put(writer, second).stored) == 24
        found = reader(two.mountpoint, profile, 24, 128 * KIB, 2)
    assert (found["found"], found["loaded"], found["wrong"]) == (24, 24, 0)
    broken = [unlawful(mount.counters()) for mount in (one, two)]
    assert broken == [dict.fromkeys(broken[0], 0) | {"rename": probes}] * 2


def test_later_commits_are_found_by_a_client_that_was_there(mount_as: Mount) -> None:
    """Two clients that are both there, on file systems that publish at close (I4)."""
    one, two = mount_as("one"), mount_as("two")
    for mount in (one, two):
        mount.set(latency_ms=LATENCY_MS, quirks=NFS)
    with (
        Store(settings=store_settings(one.mountpoint, "nfs")) as writer,
        Store(settings=store_settings(two.mountpoint, "nfs")) as other,
    ):
        put(writer, chunks_of(1, 64 * KIB, seed=1))
        until(lambda: all(other.lookup(list(chunks_of(1, 64 * KIB, seed=1)))))
        for seed in range(2, 6):
            chunks = chunks_of(8, 64 * KIB, seed=seed)
            put(writer, chunks)
            assert other.wait_current(20.0)
            assert all(other.lookup(list(chunks), layouts=layout_of(chunks)))
            loaded, wrong, _ = load_all(other, chunks, layout_of(chunks))
            assert (loaded, wrong) == (8, [])


def test_reads_that_end_early_with_holes_are_misses_and_never_wrong(mount_as: Mount) -> None:
    one, two = mount_as("one"), mount_as("two")
    batches = [chunks_of(2, 64 * KIB, seed=seed) for seed in range(12)]
    chunks = {key: data for batch in batches for key, data in batch.items()}
    with Store(settings=store_settings(one.mountpoint, "gekkofs")) as writer:
        for batch in batches:
            put(writer, batch)  # a pack each: what fails is put off by the pack
        with Store(settings=store_settings(two.mountpoint, "gekkofs")) as other:
            until(lambda: all(other.lookup(list(chunks))))
            two.set(quirks=Quirks(short_read_probability=0.5, short_read_holes=True))
            buffers = [bytearray(64 * KIB) for _ in chunks]
            results = other.load(list(chunks), buffers, layout=layout_of(chunks))
            two.set()
            loaded, wrong, _ = load_all(other, chunks, layout_of(chunks))
    assert two.counters().short_reads > 0 and 0 < sum(results) < 24
    assert all(
        bytes(buffer) == data
        for good, buffer, data in zip(results, buffers, chunks.values(), strict=True)
        if good
    )
    assert (loaded, wrong) == (24, [])


@pytest.mark.slow
def test_eviction_with_gekkofs_quirks_never_uses_a_name_twice(mount: Throttle) -> None:
    """A name that is used again loses its data there: every byte stays right under a small cap."""
    mount.set(quirks="gekkofs")
    settings = store_settings(
        mount.mountpoint,
        "gekkofs",
        cap_bytes=128 * MIB,
        lease_seconds=2.0,
        buffer_ttl_seconds=1.0,
        load_deadline_seconds=0.5,
        drop_delay_seconds=0.6,
    )
    with Store(settings=settings) as store:
        end = time.monotonic() + 60.0
        for seed in itertools.count():
            put(store, chunks_of(8, 60 * KIB, seed=seed % DOCUMENTS))
            if mount.counters().unlink > 20 or time.monotonic() > end:
                break
        counts = [load_once(store, seed) for seed in range(DOCUMENTS)]
        assert store.usage().total_bytes <= 128 * MIB
    assert sum(wrong for _, wrong in counts) == 0
    assert sum(loaded for loaded, _ in counts) > 100
    found = mount.counters()
    assert found.unlink > 20 and set(unlawful(found).values()) == {0}


def load_once(store: Store, seed: int) -> tuple[int, int]:
    """(loaded, wrong) of one load."""
    chunks = chunks_of(8, 60 * KIB, seed=seed)
    buffers = [bytearray(len(data)) for data in chunks.values()]
    results = store.load(list(chunks), buffers, layout=layout_of(chunks))
    right = [
        bytes(buffer) == data
        for good, buffer, data in zip(results, buffers, chunks.values(), strict=True)
        if good
    ]
    return len(right), right.count(False)


def test_reads_that_hang_are_misses_at_the_deadline_and_touch_no_buffer_later(
    mount: Throttle,
) -> None:
    chunks = chunks_of(8, 128 * KIB)
    with Store(settings=store_settings(mount.mountpoint, "posix")) as store:
        put(store, chunks)
        mount.hang(of="read")
        buffers = [bytearray(128 * KIB) for _ in chunks]
        results = store.load(list(chunks), buffers, layout=layout_of(chunks), deadline_seconds=0.3)
        assert results == [False] * 8
        until(lambda: mount.counters().hanging > 0)
        mount.clear()
        until(lambda: mount.counters().hanging == 0)
        loaded, wrong, _ = load_all(store, chunks, layout_of(chunks))
    assert (loaded, wrong) == (8, [])
    assert buffers == [bytearray(128 * KIB)] * 8


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EIO"])
def test_a_store_that_fails_is_dropped_and_nothing_of_it_is_found(
    error: str, mount: Throttle
) -> None:
    chunks, later = chunks_of(8, 128 * KIB, seed=1), chunks_of(8, 128 * KIB, seed=2)
    with Store(settings=store_settings(mount.mountpoint, "posix")) as store:
        put(store, later)
        mount.fail(error, of="write", count=0)
        task = put(store, chunks)
        assert (task.stored, store.lookup(list(chunks))) == ([False] * 8, [False] * 8)
        mount.clear()
        assert load_all(store, later, layout_of(later))[:2] == (8, [])


def test_a_stale_handle_is_opened_again(mount_as: Mount) -> None:
    one, two = mount_as("one"), mount_as("two")
    chunks = chunks_of(8, 128 * KIB)
    with Store(settings=store_settings(one.mountpoint, "posix")) as writer:
        put(writer, chunks)
        with Store(settings=store_settings(two.mountpoint, "posix")) as other:
            until(lambda: all(other.lookup(list(chunks))))
            assert load_all(other, chunks, layout_of(chunks))[:2] == (8, [])
            two.fail("ESTALE", of="read", at=1, count=1)
            loaded, wrong, loads = load_all(other, chunks, layout_of(chunks))
    assert (loaded, wrong) == (8, [])
    assert two.counters().failed == 1 and loads == 1
