"""The file systems that the store's tests are run on, each mounted for as long as it is needed.

    tmpfs, disk              directories on /dev/shm and on the local disk
    gekkofs                  the preload stand-in (tests/gekkofs)
    glusterfs                a real network file system over loopback
    fuse, fuse-NAME          the throttling FUSE mount, plain or as tests/quirks.toml says of NAME
    fuse-QUIRK               the same with one quirk alone, as often as it may happen

`place(name, folder)` yields the environment for a pytest run in it: SHAREDFS_TEST_ROOT, and what a
client needs. `lacking(name)` says what is missing here, with the remedy.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.proxy import gluster
from bench.proxy.gluster import Gluster
from bench.throttle import Quirks, Throttle, named
from bench.throttle import missing as throttle_lacks
from tests.gekkofs import standin
from tests.gekkofs.standin import Standin

ROOT_VARIABLE = "SHAREDFS_TEST_ROOT"

SINGLE = {
    "rename": Quirks(rename="ENOTSUP"),
    "link": Quirks(link="ENOTSUP"),
    "chmod": Quirks(chmod="ENOTSUP"),
    "utime": Quirks(utime="ENOTSUP"),
    "fallocate": Quirks(fallocate="EBADF"),
    "append": Quirks(append="ENOTSUP"),
    "direct": Quirks(direct="EINVAL"),
    "zero-times": Quirks(zero_times=True),
    "excl-race": Quirks(excl_race_probability=0.05),
    "recreate": Quirks(recreate_loses_data=True),
    "unlink-poisons": Quirks(unlink_poisons=True),
    "unlinked-read": Quirks(unlinked_read="ESTALE"),
    "size-before-data": Quirks(size_before_data_ms=2.0),
    "visible-at-close": Quirks(visible_at_close=True),
    "size-at-open": Quirks(size_at_open=True),
    "negative": Quirks(negative_ms=1000.0),
    "attribute": Quirks(attribute_ms=1000.0),
    "entry": Quirks(entry_ms=1000.0),
    "metadata-rate": Quirks(metadata_per_second=1000),
}
"""Each quirk that one mount can have without failing calls at random; those that do fail calls
(short reads, listings that miss) are met with in the tests of faults, where a miss is expected."""

WHOLE = ("gekkofs", "glusterfs", "lustre", "nfs")
"""Of tests/quirks.toml, as FUSE mounts."""

NAMES = (
    "tmpfs",
    "disk",
    "gekkofs",
    "glusterfs",
    "fuse",
    *(f"fuse-{name}" for name in (*WHOLE, *SINGLE)),
)


def lacking(name: str) -> str | None:
    """What keeps this place from being made here; None if it can be."""
    if name == "gekkofs":
        return standin.missing()
    if name == "glusterfs":
        return gluster.missing()
    if name.startswith("fuse"):
        return throttle_lacks()
    return None


@contextmanager
def place(name: str, folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a run in that place; below `folder`, or in memory. Gone afterwards."""
    if name == "disk":
        folder.mkdir(parents=True, exist_ok=True)
        yield _environ(folder)
    else:
        with tempfile.TemporaryDirectory(prefix="sharedfs-", dir="/dev/shm") as memory:
            yield from _in_memory(name, Path(memory))


def _in_memory(name: str, folder: Path) -> Iterator[dict[str, str]]:
    """For speed: what is tested is how a file system behaves, not a disk."""
    if name == "tmpfs":
        yield _environ(folder)
    elif name == "glusterfs":
        with Gluster(folder / "volume") as volume:
            yield _environ(volume.mount("client", options=gluster.BELIEVES_NOTHING))
    elif name == "gekkofs":
        # One process is one client, which always sees what it made: staleness needs a second one.
        with Standin(folder, listing_stale_us=0) as made:
            yield made.environ() | {ROOT_VARIABLE: str(made.mount)}
            _require_clean(made)
    else:
        kind = name.partition("-")[2]
        with Throttle(folder / "data", folder / "mnt") as mount:
            if kind:
                mount.set(quirks=SINGLE.get(kind) or _without_chance(kind))
            yield _environ(folder / "mnt")


def _without_chance(kind: str) -> Quirks:
    """A file system's quirks, but for those that fail a call now and then, and but for a limit on
    metadata operations, which only makes a run long (fuse-metadata-rate has one)."""
    return replace(
        named(kind),
        short_read_probability=0.0,
        listing_miss_probability=0.0,
        metadata_per_second=0,
    )


def _require_clean(made: Standin) -> None:
    """The store did none of what GekkoFS does not survive."""
    for name in ("lies", "poisoned"):
        assert made.control[name] == 0, f"{name}: {made.control[name]}"


def _environ(root: Path) -> dict[str, str]:
    return dict(os.environ) | {ROOT_VARIABLE: str(root)}
