"""Our numbers on LMCache's `/metrics`: one collector in Prometheus' default registry.

LMCache serves that registry, and its own figures for every plugin bear the same label `plugin`.
Each open adapter adds a source here and takes it away on close; the collector is registered with
the first and unregistered with the last, so an adapter may be made again in one process. A scrape
reads counters in memory and does no file operation. Names: `sharedfs_<name>`, label `namespace`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

Source = Callable[[], Mapping[str, int | float]]

# `load_misses_checksum` becomes sharedfs_load_misses{reason="checksum"}; so do these families.
_FAMILIES = {
    "load_misses": "reason",
    "stores_dropped": "reason",
    "stores_failed": "reason",
    "failures": "kind",
    "operations": "operation",
    "pack_operations": "operation",
}
_UNFIT = re.compile(r"[^a-zA-Z0-9_]")


class Metrics:
    """The sources of one registry. Any thread."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._sources: dict[int, tuple[str, Source]] = {}
        self._next = 0

    def add(self, namespace: str, source: Source) -> int:
        """Export `source()` until `remove` is called with the number returned."""
        with self._lock:
            self._next += 1
            self._sources[self._next] = (namespace, source)
            first, number = len(self._sources) == 1, self._next
        if first:
            self._registry.register(self)
        return number

    def remove(self, number: int) -> None:
        with self._lock:
            last = self._sources.pop(number, None) is not None and not self._sources
        if last:
            self._registry.unregister(self)

    def describe(self) -> Iterable[Any]:
        """Nothing: names are known when they are read, and none is ours alone to check."""
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Every source's numbers. One that fails is left out; a scrape never raises."""
        with self._lock:
            sources = list(self._sources.items())
        families: dict[str, GaugeMetricFamily] = {}
        for number, (namespace, source) in sources:
            try:
                values = dict(source())
            except Exception:  # a scrape must not fail for one adapter that is being closed
                continue
            for name, value in sorted(values.items()):
                _add(families, name, value, (namespace, str(number)))
        return list(families.values())


def _add(
    families: dict[str, GaugeMetricFamily], name: str, value: int | float, owner: tuple[str, str]
) -> None:
    head = next((head for head in _FAMILIES if name.startswith(head + "_")), None)
    shown = _UNFIT.sub("_", head or name)
    family = families.get(shown)
    if family is None:
        labels = ["namespace", "adapter", *([_FAMILIES[head]] if head else [])]
        text = f"SharedFSBackend: {shown.replace('_', ' ')}"
        family = GaugeMetricFamily(f"sharedfs_{shown}", text, labels=labels)
        families[shown] = family
    family.add_metric([*owner, *([name.removeprefix(f"{head}_")] if head else [])], float(value))


METRICS = Metrics()
