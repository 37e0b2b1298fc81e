"""FairLock: a lock that long work taken in short steps cannot keep from the others.

A plain `threading.Lock` released and taken again at once is usually taken by the same thread:
whoever waits would wait for the whole bulk load, not for one of its steps. Here the first waiter
holds the turnstile, so the thread that comes back stands behind it. It costs a second
uncontended acquire, well below a microsecond.

It knows nothing of what it guards. Not re-entrant.
"""

from __future__ import annotations

import threading


class FairLock:
    """A context manager. Any thread; hold it around arithmetic only, never around I/O."""

    __slots__ = ("_inner", "_turnstile")

    def __init__(self) -> None:
        self._turnstile = threading.Lock()
        self._inner = threading.Lock()

    def __enter__(self) -> None:
        with self._turnstile:
            self._inner.acquire()

    def __exit__(self, *_: object) -> None:
        self._inner.release()
