"""The demo's table and closing lines.

Must not know: replicas, servers; it shows rows and judges nothing but their failures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.demo.conversations import Decided
from bench.demo.namespace import Contents
from bench.demo.scenario import Row


def show(console: Console, rows: Sequence[Row]) -> None:
    """Prints one line for each row."""
    table = Table(title="What each replica had to compute, and what it found", title_justify="left")
    table.add_column("step")
    for heading in ("prompt", "TTFT cold", "TTFT reused", "reloaded/expected"):
        table.add_column(heading, justify="right")
    table.add_column("tokens")
    table.add_column("operations on packs, used/allowed")
    for row in rows:
        good = not row.failures
        table.add_row(
            row.label,
            f"{row.prompt_tokens}",
            f"{row.ttft_cold_seconds:.2f} s",
            f"{row.ttft_seconds:.2f} s",
            f"{row.reloaded_tokens}/{row.expected.reloaded_tokens}",
            "equal" if row.tokens_equal else "DIFFER",
            operations(row),
            style=None if good else "bold red",
        )
    console.print(table)


def show_decided(console: Console, rows: Sequence[Decided]) -> None:
    """Prints one line for each request the router placed by itself."""
    table = Table(title="What the router decided, and why", title_justify="left")
    table.add_column("request")
    table.add_column("prompt", justify="right")
    table.add_column("replica")
    table.add_column("moved", justify="right")
    table.add_column("TTFT", justify="right")
    table.add_column("tokens")
    table.add_column("estimate, ms")
    for row in rows:
        table.add_row(
            row.label,
            f"{row.prompt_tokens}",
            row.replica,
            f"{row.retries}" if row.retries else "",
            f"{row.ttft_seconds:.2f} s" if row.tokens_equal is not None else "-",
            {True: "equal", False: "DIFFER", None: "-"}[row.tokens_equal],
            row.reason,
            style="bold red" if row.failures else None,
        )
    console.print(table)


def operations(row: Row) -> str:
    """Returns what a row's request did on packs, each kind with what it was allowed."""
    if row.operations is None:
        return "not counted"
    return spelled(row.operations, row.operations_allowed)


def spelled(used: Counter[str], allowed: Counter[str]) -> str:
    """Returns "open 1/1, read 15/15" (used/allowed), or "none"."""
    kinds = sorted(op for op in used | allowed if used[op] or allowed[op])
    return ", ".join(f"{op} {used[op]}/{allowed[op]}" for op in kinds) or "none"


def contents_line(contents: Contents) -> str:
    """Returns what lies in the namespace, in one line."""
    return (
        f"{contents.packs} packs with {contents.chunks} chunks in {contents.live_bytes / 1e6:.1f} "
        f"MB; journals {contents.journal_bytes / 1e3:.1f} kB, snapshots "
        f"{contents.snapshot_bytes / 1e3:.1f} kB"
    )


def failures(rows: Sequence[Row]) -> list[str]:
    """Returns the line and the sentence of everything that failed."""
    return [f"{row.label}: {failure}" for row in rows for failure in row.failures]
