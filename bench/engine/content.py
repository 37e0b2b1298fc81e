"""Content: the bytes of a chunk, a function of its key, written and checked at memory speed.

A chunk is a window of one block of random bytes, at a place its key decides, with the key stamped
on its head: incompressible, different for each key, and recognised without keeping a copy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SPREAD_BYTES = 1 << 16
"""Places a window can begin at."""

Bytes = NDArray[np.uint8]


class Content:
    """Contents of chunks of `size` bytes. Immutable: any thread."""

    def __init__(self, size: int, seed: int = 1) -> None:
        source = np.random.default_rng(seed)
        self._size = size
        self._block: Bytes = np.frombuffer(source.bytes(size + SPREAD_BYTES), np.uint8)

    def fill(self, into: Bytes, key: bytes) -> None:
        """Write the chunk of `key`."""
        into[:] = self._window(key)
        into[: len(key)] = np.frombuffer(key, np.uint8)

    def matches(self, found: Bytes, key: bytes) -> bool:
        """Whether these are the bytes of `key`, all of them."""
        head = bytes(found[: len(key)]) == key
        return head and bool(np.array_equal(found[len(key) :], self._window(key)[len(key) :]))

    def _window(self, key: bytes) -> Bytes:
        start = int.from_bytes(key[-8:], "little") * 2654435761 % SPREAD_BYTES
        return self._block[start : start + self._size]
