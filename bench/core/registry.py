"""Which cases there are: the modules of bench.cases that define `CASE`, in the order of questions.

A module that cannot be imported (an optional package is missing) is named with the reason, not
dropped silently.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass

import bench.cases
from bench.core.case import Case

ORDER = (
    *("reload", "catalog", "visibility", "scaleout", "capacity"),
    *("cost", "ceiling", "nodes", "engines", "resource"),
)


@dataclass(frozen=True, slots=True)
class Registry:
    """The cases, and why modules that should hold one could not be imported."""

    cases: dict[str, Case]
    broken: dict[str, str]


def registry() -> Registry:
    cases: dict[str, Case] = {}
    broken: dict[str, str] = {}
    for found in pkgutil.iter_modules(bench.cases.__path__):
        try:
            module = importlib.import_module(f"bench.cases.{found.name}")
        except ImportError as error:
            broken[found.name] = str(error)
            continue
        case: Case | None = getattr(module, "CASE", None)
        if case is not None:
            cases[case.name] = case
    return Registry(dict(sorted(cases.items(), key=lambda item: _place(item[0]))), broken)


def _place(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)
