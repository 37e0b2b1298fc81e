"""File-system operations on packs as the plugin counts them, and the budget they must keep.

A replica's LMCache server exposes `sharedfs_pack_operations{operation=...}` among its metrics. What
requests cost is these; everything else (journals, snapshots) is mostly the background's, which has
a rate of its own. The budget of the request path: nothing for a lookup; for a load one open for
each pack and one read for each piece; for a store one create, its writes and one close for each
pack.

Pure. Must not know: engines.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from bench.demo.client import Metrics

METRIC = "sharedfs_pack_operations"
PIECE_BYTES = 4 << 20  # Of one read or write, unless the server says otherwise.
READ_GAUGE = "sharedfs_read_bytes"
WRITE_GAUGE = "sharedfs_piece_bytes"
PACK_BYTES_MAX = 64 << 20  # The least that a full pack holds; a profile may say more.


def read_operations(metrics: Metrics) -> Counter[str] | None:
    """Returns the operations on packs by name; None where the plugin is not what is running."""
    if not any(s.name.startswith("sharedfs_") for s in metrics.samples):
        return None
    counts: Counter[str] = Counter()
    for sample in metrics.select(METRIC):
        counts[sample.labels["operation"]] += round(sample.value)
    return counts


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one read brings, and one write takes, in bytes."""

    read: int = PIECE_BYTES
    write: int = PIECE_BYTES


USUAL = Sizes()


def sizes_of(metrics: Metrics) -> Sizes:
    """Returns the sizes here: smaller where an operation is a memory copy, or a mount's limit."""
    found = [
        [round(sample.value) for sample in metrics.select(gauge)] or [PIECE_BYTES]
        for gauge in (READ_GAUGE, WRITE_GAUGE)
    ]
    return Sizes(found[0][0], found[1][0])


def load_budget(packs: int, chunks: int, chunk_bytes: int, sizes: Sizes = USUAL) -> Counter[str]:
    """Returns the most that loading `chunks` chunks that lie in `packs` packs may do."""
    pieces = chunks * -(-chunk_bytes // sizes.read)
    return Counter(open=packs, read=pieces) if chunks else Counter()


def store_budget(packs: int, chunks: int, chunk_bytes: int, sizes: Sizes = USUAL) -> Counter[str]:
    """Returns the most that storing `chunks` chunks as `packs` packs may do.

    A pack's payload is written in pieces; its header and trailer take at most a write each.
    """
    pieces = chunks * -(-chunk_bytes // sizes.write)
    return Counter(create=packs, write=pieces + 2 * packs, close=packs) if chunks else Counter()


def over_budget(used: Counter[str], allowed: Counter[str]) -> list[str]:
    """Returns one sentence for each kind of operation that was used more than allowed."""
    return [
        f"{used[op]} {op} on packs where {allowed[op]} are allowed"
        for op in sorted(used)
        if used[op] > allowed[op]
    ]
