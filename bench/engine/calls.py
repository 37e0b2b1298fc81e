"""Calls: an L2 adapter's submits with their results, waited for on its event descriptors.

As LMCache's controllers do it: submit, poll the descriptor, ask for the result, and each result
once. `Calls` belongs to one thread; the adapter may use as many as it likes.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WAIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Answered:
    """Which of the keys, and seconds from the submit to the result."""

    found: tuple[bool, ...]
    seconds: float


class Calls:
    """One adapter. TimeoutError where no result comes."""

    def __init__(self, adapter: Any, now: Callable[[], float] = time.perf_counter) -> None:
        self.adapter = adapter
        self._now = now
        self._open_stores: dict[int, float] = {}
        self._stored: dict[int, tuple[bool, float]] = {}

    def lookup(self, keys: Sequence[Any], layouts: Mapping[int, Any]) -> Answered:
        """Lookup and lock: whoever gets hits owes an `unlock` for each."""
        began = self._now()
        task = self.adapter.submit_lookup_and_lock_task(list(keys), dict(layouts))
        descriptor = self.adapter.get_lookup_and_lock_event_fd()
        bitmap = self._wait(
            descriptor, lambda: self.adapter.query_lookup_and_lock_result(task), "lookup"
        )
        return Answered(_bits(bitmap, len(keys)), self._now() - began)

    def load(self, keys: Sequence[Any], objects: Sequence[Any]) -> Answered:
        """Into the objects, which are the adapter's until this returns."""
        began = self._now()
        task = self.adapter.submit_load_task(list(keys), list(objects))
        descriptor = self.adapter.get_load_event_fd()
        bitmap = self._wait(descriptor, lambda: self.adapter.query_load_result(task), "load")
        return Answered(_bits(bitmap, len(keys)), self._now() - began)

    def unlock(self, keys: Sequence[Any]) -> None:
        if keys:
            self.adapter.submit_unlock(list(keys))

    def submit_store(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """The objects are lent until the task is among the finished."""
        began = self._now()
        task: int = self.adapter.submit_store_task(list(keys), list(objects))
        self._open_stores[task] = began
        return task

    def finished_stores(self, *, wait_for: int = 0) -> dict[int, tuple[bool, float]]:
        """Task -> (whether it succeeded, seconds), of those finished since the last call; waits
        until at least `wait_for` are among them."""
        self._collect()
        if len(self._stored) < wait_for:
            descriptor = self.adapter.get_store_event_fd()
            self._wait(descriptor, lambda: self._enough(wait_for), "store")
        done, self._stored = self._stored, {}
        return done

    @property
    def open_stores(self) -> int:
        """Submitted and not yet handed out as finished."""
        return len(self._open_stores) + len(self._stored)

    def _enough(self, wait_for: int) -> bool | None:
        self._collect()
        return True if len(self._stored) >= wait_for else None

    def _collect(self) -> None:
        for task, result in self.adapter.pop_completed_store_tasks().items():
            began = self._open_stores.pop(task, None)
            if began is not None:
                self._stored[task] = (bool(result.is_successful()), self._now() - began)

    def _wait(self, descriptor: int, take: Callable[[], Any], what: str) -> Any:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        until = time.monotonic() + WAIT_SECONDS
        while (result := take()) is None:
            left = until - time.monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                raise TimeoutError(f"no result of a {what} within {WAIT_SECONDS:.0f} s")
            _consume(descriptor)
        return result


def _bits(bitmap: Any, count: int) -> tuple[bool, ...]:
    return tuple(bool(bitmap.test(place)) for place in range(count))


def _consume(descriptor: int) -> None:
    from lmcache.v1.platform import consume_fd

    try:
        consume_fd(descriptor)
    except BlockingIOError:
        return  # another wait has taken the signal
