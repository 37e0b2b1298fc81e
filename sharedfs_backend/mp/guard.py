"""Nothing of ours is raised into LMCache: a public method that fails is counted and misses (I6).

`guarded(default)` wraps an adapter's method; the default is its answer after a failure, as a value
or as a function of the adapter and the arguments. Logged the first time with its traceback.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sharedfs_backend.stats import Stats

log = logging.getLogger("sharedfs_backend.mp")

P = ParamSpec("P")
R = TypeVar("R")


class Counting(Protocol):
    _stats: Stats


S = TypeVar("S", bound=Counting)


def guarded(
    default: Callable[..., R], *, allowed: type[Exception] | tuple[type[Exception], ...] = ()
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Answer `default(self, *args)` instead of raising; `allowed` is what LMCache expects."""

    def wrap(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(self, *args, **kwargs)
            except allowed:
                raise
            except Exception:
                if self._stats.add(f"errors_{method.__name__}") == 1:
                    log.exception("sharedfs: %s failed; LMCache gets a miss", method.__name__)
                return default(self, *args, **kwargs)

        functools.update_wrapper(call, method)
        return call

    return wrap


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """The answer of methods that have none."""
