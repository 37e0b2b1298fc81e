"""What the rows of `resource` say: seconds for each GB, and what an hour left behind. Pure.

An hour is judged by its second half: resident memory by bytes for each chunk stored there, so that
what even the smallest object leaves behind is seen; what is remembered of chunks, and of packs and
writers, by counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.core.adapters import OURS
from bench.core.case import Figure, Outcome, Row, Table, Verdict
from bench.core.select import choices, interval, values, where
from bench.core.statistics import median
from bench.core.turns import Batch
from bench.report.plots import bars, colour, finish

BATCH = Batch(64, 4 << 20)
BATCHES, HOUR = "batches", "an hour"
HOUR_NAME = "over an hour"
HOUR_SECONDS = 3600.0
HOUR_BATCH = Batch(512, 512 << 10)
HOUR_OPTIONS: Mapping[str, float] = {
    "cap_bytes": 32 << 30,
    "high_watermark_ratio": 0.5,
    "low_watermark_ratio": 0.4,
    "lease_seconds": 120.0,
    "buffer_ttl_seconds": 60.0,
}
"""A cap that is reached in minutes, with room above the watermark for what is stored while a sweep
waits; leases short enough for journals and tombstones to come and go many times in the hour."""
GROWN = (("rss", "resident memory, MB", 1e6), ("fds", "descriptors", 1), ("threads", "threads", 1))
BYTES_PER_CHUNK_MAX = 32.0
"""A chunk's key is an object of 49 bytes in Python, and something must point to it: whatever keeps
one for each chunk grows by nearly twice this."""
FLAT_BYTES = "at most 32 bytes for each chunk stored from the fourth ten minutes to the last ten"
FLAT_SHARE_MAX = 0.02
FLAT = "at most 2 % more in the last ten minutes than in the fourth ten"
STEADY_SHARE_MAX = 0.25
STEADY = "at most 25 % more, at its highest, in the last twenty minutes than in the twenty before"
"""Sweeps, journals and snapshots come and go, at times of their own: a median sees their phase."""
REMEMBERED = (
    ("catalog_rows", "chunks in the catalog"),
    ("packs_known", "packs known, also those gone"),
    ("writers_known", "writers known"),
    ("keys_remembered", "keys derived and remembered"),
    ("adapter_keys_known", "keys listed for LMCache"),
    ("audit_chunks", "own chunks kept in mind for the audit"),
    ("adapter_locks", "locks"),
    ("open_packs", "packs open"),
    ("buffer_bytes", "read buffers, bytes"),
)
COUNTED = ("catalog_rows", "packs_known", "writers_known")
"""Judged by count: what is left behind for each pack or journal is too little for the memory."""
FILES_LEFT = "what journals and snapshots still there name"


def figures(rows: Sequence[Row]) -> list[Figure]:
    return [*_per_gb(rows), *_over_time(rows)]


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    memory = late(rows, "rss_at")
    outcome, measured = Outcome.NOT_MEASURED, None
    if memory is not None:
        measured = memory.bytes_per_chunk
        outcome = Outcome.MET if measured <= BYTES_PER_CHUNK_MAX else Outcome.MISSED
    made = [Verdict(f"{HOUR_NAME}: resident memory", FLAT_BYTES, outcome, measured)]
    for metric, label in (("fds_at", "descriptors"), ("threads_at", "threads")):
        made.append(_at_most(label, FLAT, late(rows, metric), FLAT_SHARE_MAX))
    for name, label in REMEMBERED:
        if name in COUNTED:
            made.append(_at_most(label, STEADY, peaks(rows, f"{name}_at"), STEADY_SHARE_MAX))
    return made


def _at_most(label: str, target: str, found: Late | None, most: float) -> Verdict:
    name = f"{HOUR_NAME}: {label}"
    if found is None:
        return Verdict(name, target, Outcome.NOT_MEASURED)
    outcome = Outcome.MET if found.share <= most else Outcome.MISSED
    return Verdict(name, target, outcome, found.share)


@dataclass(frozen=True, slots=True)
class Late:
    """A metric at two times of the hour, and the chunks stored from the one to the other."""

    before: float
    last: float
    chunks: float

    @property
    def share(self) -> float:
        """How much more there was at last, as a share."""
        return self.last / self.before - 1.0 if self.before else float(self.last > 0)

    @property
    def bytes_per_chunk(self) -> float:
        """Of megabytes. NaN where no chunk was stored."""
        return (self.last - self.before) * 1e6 / self.chunks if self.chunks else float("nan")


def late(rows: Sequence[Row], metric: str, side: str = OURS) -> Late | None:
    """Medians over the fourth ten minutes and the last ten; None without an hour."""
    found, chunks = _parts(rows, metric, side, 6), _parts(rows, "chunks_at", side, 6)
    if found is None or chunks is None:
        return None
    return Late(median(found[3]), median(found[5]), median(chunks[5]) - median(chunks[3]))


def peaks(rows: Sequence[Row], metric: str, side: str = OURS) -> Late | None:
    """The highest of the second twenty minutes and of the last; None without an hour."""
    found, chunks = _parts(rows, metric, side, 3), _parts(rows, "chunks_at", side, 3)
    if found is None or chunks is None:
        return None
    return Late(max(found[1]), max(found[2]), max(chunks[2]) - max(chunks[1]))


def _parts(rows: Sequence[Row], metric: str, side: str, count: int) -> list[list[float]] | None:
    """Values in each of so many parts of the hour; None if it did not last, or one has none."""
    picked = where(rows, metric, cell=HOUR, side=side)
    lasted = max((float(row.params["seconds"]) for row in picked), default=0.0)
    if lasted < HOUR_SECONDS * 0.9:
        return None
    parts: list[list[float]] = [[] for _ in range(count)]
    for row in picked:
        at = int(count * float(row.params["seconds"]) / lasted)
        parts[min(count - 1, at)].append(row.value or 0.0)
    return parts if all(parts) else None


def _per_gb(rows: Sequence[Row]) -> list[Figure]:
    sides = [str(one) for one in choices(where(rows, "cpu", cell=BATCHES), "side")]
    if not sides:
        return []
    lines = []
    metrics = ("store_cpu", "load_cpu", "cpu", *(f"{metric}_grown" for metric, _, _ in GROWN))
    for side in sides:
        cells = [interval(rows, metric, cell=BATCHES, side=side) for metric in metrics]
        lines.append((side, *(one.text() if one else "not measured" for one in cells)))
    head = ("side", "store, s/GB", "load, s/GB", "all, s/GB of either")
    return [
        Figure(
            "per-gb",
            "Processor time for each GB, and what a process grows by",
            f"Batches of {BATCH} stored and loaded again and again without added latency, each "
            "side in processes of its own. Processor seconds are those of the process, kernel time "
            "included, the mount's daemon not; the third column includes what runs between "
            "batches. Growth is the most seen over the state before the adapter was made, its "
            "catalog included; the buffers of the driver are not part of it.",
            draw=partial(_draw, list(rows), sides),
            table=Table((*head, *(f"+ {label}" for _, label, _ in GROWN)), tuple(lines)),
        )
    ]


def _draw(rows: Sequence[Row], sides: Sequence[str], canvas: Any) -> None:
    left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
    data = {
        side: {
            operation: values(rows, f"{operation}_cpu", cell=BATCHES, side=side)
            for operation in ("store", "load")
        }
        for side in sides
    }
    bars(left, ("store", "load"), data, y="processor seconds per GB")
    grown = {side: {"": values(rows, "rss_grown", cell=BATCHES, side=side)} for side in sides}
    bars(right, ("",), grown, y="MB resident, over the start")


def _over_time(rows: Sequence[Row]) -> list[Figure]:
    picked = where(rows, "rss_at", cell=HOUR)
    if not picked:
        return []
    lasted = max(float(row.params["seconds"]) for row in picked)
    options = ", ".join(f"{name} {value:g}" for name, value in HOUR_OPTIONS.items())
    torn = sum(values(rows, "batches_torn", cell=HOUR))
    found = [
        Figure(
            "time",
            "Memory, descriptors and threads over time",
            f"One process each, at the same time, {HOUR_BATCH} stored, loaded and removed every "
            f"second or as fast as it goes, for {lasted / 60:.0f} minutes; ours with {options}. "
            "Every point is one sample after a batch. Ours grows until what it remembers of chunks "
            "has reached its bounds; a line that is flat from then on is what is wanted."
            + (f" Batches not stored and loaded whole: {torn:.0f}." if torn else ""),
            draw=partial(_draw_time, list(rows)),
            table=_growth(rows),
            inches=(9.0, 3.2),
        )
    ]
    remembered = _remembered(rows)
    if remembered is not None:
        found.append(
            Figure(
                "remembered",
                "What is remembered of chunks, and the most of it there can be",
                "The most seen in the second twenty minutes and in the last. What has reached its "
                "limit, or holds as many as the catalog, grows no more.",
                table=remembered,
            )
        )
    return found


def _growth(rows: Sequence[Row]) -> Table | None:
    """Resident memory by sixths of the hour, and for each million chunks of its second half."""
    lines = []
    for side in map(str, choices(where(rows, "rss_at", cell=HOUR), "side")):
        sixths, second = _parts(rows, "rss_at", side, 6), late(rows, "rss_at", side)
        if sixths is not None and second is not None:
            medians = [f"{median(part):.0f}" for part in sixths]
            lines.append((side, *medians, f"{second.bytes_per_chunk:.1f}"))
    head = ("side", *(f"MB, {10 * n} to {10 * n + 10} min" for n in range(6)))
    more = "MB more for each 10^6 new chunks, 30 to 60 min"
    return Table((*head, more), tuple(lines)) if lines else None


def _remembered(rows: Sequence[Row]) -> Table | None:
    lines = []
    for name, label in REMEMBERED:
        found = peaks(rows, f"{name}_at")
        most = values(rows, f"{name}_limit", cell=HOUR, side=OURS)
        if found is not None:
            limit = f"{most[-1]:,.0f}" if most else FILES_LEFT
            lines.append((label, f"{found.before:,.0f}", f"{found.last:,.0f}", limit))
    head = ("what", "20 to 40 min", "40 to 60 min", "at most")
    return Table(head, tuple(lines)) if lines else None


def _draw_time(rows: Sequence[Row], canvas: Any) -> None:
    plots = canvas.subplots(1, len(GROWN))
    for axes, (metric, label, _) in zip(plots, GROWN, strict=True):
        for side in choices(where(rows, f"{metric}_at", cell=HOUR), "side"):
            found = where(rows, f"{metric}_at", cell=HOUR, side=side)
            points = sorted((float(row.params["seconds"]), row.value or 0.0) for row in found)
            minutes = [second / 60 for second, _ in points]
            heights = [value for _, value in points]
            axes.plot(minutes, heights, label=str(side), color=colour(str(side)))
        axes.set_ylim(bottom=0)
        finish(axes, x="minutes", y=label)
