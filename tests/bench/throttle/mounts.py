"""What the tests of the throttled mount share: mounts that come and go with a test, or a skip.

Nothing here or in the tests asserts how long something took, but that it took at least as long as
was asked: that holds on any machine, however busy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from bench.throttle import Throttle, missing
from bench.throttle.available import is_mounted


class Mount(Protocol):
    """Mounts the test's one backing directory under a name; each mount is another client."""

    def __call__(self, name: str = ..., *, cache: bool = ...) -> Throttle: ...


PATIENCE_SECONDS = 30.0


@contextmanager
def mounts(folder: Path) -> Iterator[Mount]:
    """Mounts of `folder`/backing; all are gone afterwards. Skips where there can be none."""
    if lacking := missing():
        pytest.skip(lacking)
    with ExitStack() as stack:
        made: list[Throttle] = []

        def mount(name: str = "mount", *, cache: bool = False) -> Throttle:
            one = Throttle(folder / "backing", folder / name, cache=cache)
            stack.push(one)
            made.append(one)
            return one

        yield mount
        stack.close()
        assert [one.mountpoint for one in made if is_mounted(one.mountpoint)] == []
        assert [one._process.returncode for one in made] == [0] * len(made)  # it did not crash


def until(true: Callable[[], bool]) -> None:
    """Returns once it is true; fails after a generous time."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.005)


@contextmanager
def threads(count: int, work: Callable[[], object]) -> Iterator[list[object]]:
    """`count` threads that do `work` once; what each got is in the list once they have ended."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except OSError as error:
            results.append(error.errno)

    started = [threading.Thread(target=run) for _ in range(count)]
    for thread in started:
        thread.start()
    try:
        yield results
    finally:
        for thread in started:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()


def at_least(seconds: float, act: Callable[[], object]) -> bool:
    """Whether `act` took as long as that."""
    begun = time.monotonic()
    act()
    return time.monotonic() - begun >= seconds
