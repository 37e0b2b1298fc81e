"""File-system operations as the plugin counts them, and the budget they must keep.

A replica's LMCache server exposes `sharedfs_file_operations_total{path=...,op=...}`: `path` is what
the operation was for (lookup, load, store, and the background's refresh, sweep, open), `op` what it
was. The budget is that of the request path: nothing for a lookup; for a load one open for each pack
and one read for each piece; for a store one create, its writes and one close for each pack, and
one journal append (open, write, close) for each batch.

Pure but for `read_counts`. Must not know: engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bench.demo.client import Metrics

METRIC = "sharedfs_file_operations_total"
PIECE_BYTES = 4 << 20
REQUEST_PATHS = ("lookup", "load", "store")
NEVER = frozenset(
    ("rename", "link", "stat", "list", "lock", "fsync", "xattr", "mmap", "mkdir", "unlink")
)


@dataclass(frozen=True, slots=True)
class Counts:
    """Operations by (path, op)."""

    by_path: Mapping[tuple[str, str], int]

    def of(self, path: str) -> Counter[str]:
        """Returns the operations of one path, by op."""
        return Counter({op: n for (p, op), n in self.by_path.items() if p == path and n})

    def total(self, path: str) -> int:
        return sum(self.of(path).values())

    def since(self, before: Counts) -> Counts:
        """Returns what was added after `before` was read."""
        keys = self.by_path.keys() | before.by_path.keys()
        return Counts({k: self.by_path.get(k, 0) - before.by_path.get(k, 0) for k in keys})


def read_counts(metrics: Metrics) -> Counts | None:
    """Returns the counts on a metrics page; None where the plugin is not what is running."""
    samples = metrics.select(METRIC)
    if not samples:
        return None
    counts: Counter[tuple[str, str]] = Counter()
    for sample in samples:
        counts[sample.labels["path"], sample.labels["op"]] += round(sample.value)
    return Counts(counts)


def load_budget(packs: int, chunks: int, chunk_bytes: int) -> Counter[str]:
    """Returns the most that a load of `chunks` chunks lying in `packs` packs may do."""
    pieces = -(-chunk_bytes // PIECE_BYTES)
    return Counter(open=packs, read=chunks * pieces)


def over_budget(used: Counter[str], allowed: Counter[str]) -> list[str]:
    """Returns one sentence for each kind of operation that was used more than allowed."""
    return [
        f"{used[op]} {op} where {allowed[op]} are allowed"
        for op in sorted(used)
        if used[op] > allowed[op]
    ]


def store_violations(used: Counter[str], chunks: int, chunk_bytes: int) -> list[str]:
    """Returns what in a store's operations breaks the budget, by the packs and batches it made.

    Packs are its creates; batches its opens (a journal append opens, writes and closes). Besides
    its payload a pack takes at most a write for its header and one for its trailer.
    """
    packs, batches = used["create"], used["open"]
    payload = chunks * -(-chunk_bytes // PIECE_BYTES)
    allowed = Counter(
        create=max(chunks, 0),
        open=max(packs, 1) if packs else 0,
        write=payload + 2 * packs + batches,
        close=packs + batches,
        flush=used["flush"],  # On a store's own thread, where it bounds dirty pages.
    )
    return over_budget(used, allowed)
