"""A small cache of digests on the local disk, so that a model's weights are sampled once.

One file for each entry, named by a digest of what must stay equal (paths, sizes, times, inodes)
and written beside its final name, so that racing processes replace each other's equal files whole.
Whatever goes wrong (no home, a full disk, a damaged entry) is a miss: the caller computes again.
It lies on the local disk, never in the namespace, which is why a rename may be used here (I3).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from blake3 import blake3

ENTRIES_MAX = 256
"""Older entries are removed beyond this (I9); one takes a block of disk."""

VALUE_BYTES = 16
_CHECK_BYTES = 16
_SETTLED_NS = 2_000_000_000


class IdentityCache:
    """Digests by key, below `$XDG_CACHE_HOME/sharedfs-backend/identity`. Thread-safe."""

    def __init__(
        self, environ: Mapping[str, str], random_bytes: Callable[[int], bytes] = os.urandom
    ) -> None:
        base = environ.get("XDG_CACHE_HOME", "")
        home = environ.get("HOME", "")
        if not base and home:
            base = os.path.join(home, ".cache")
        usable = os.path.isabs(base)
        self._directory = Path(base, "sharedfs-backend", "identity") if usable else None
        self._random_bytes = random_bytes

    def get(self, key: bytes) -> bytes | None:
        """The value stored under `key`, if it is there and whole."""
        if self._directory is None:
            return None
        try:
            data = (self._directory / key.hex()).read_bytes()
        except OSError:
            return None
        value = data[:VALUE_BYTES]
        return value if data == value + _check(key, value) else None

    def put(self, key: bytes, value: bytes) -> None:
        """Store, or quietly do not."""
        if self._directory is None:
            return
        name = self._directory / key.hex()
        temporary = self._directory / f"{key.hex()}.{self._random_bytes(8).hex()}"
        with contextlib.suppress(OSError):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(value + _check(key, value))
            os.replace(temporary, name)
            self._prune()

    def _prune(self) -> None:
        assert self._directory is not None
        entries = sorted(self._directory.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in entries[:-ENTRIES_MAX]:
            path.unlink(missing_ok=True)


def settled(newest_ns: int, now_ns: int) -> bool:
    """Whether files last changed then may be cached: a later change within one tick of a coarse
    file clock would leave the same times behind."""
    return abs(now_ns - newest_ns) > _SETTLED_NS


def _check(key: bytes, value: bytes) -> bytes:
    return blake3(b"sharedfs identity cache" + key + value).digest(length=_CHECK_BYTES)
