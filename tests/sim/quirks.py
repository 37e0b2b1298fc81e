"""What the simulated disk imitates of each file system, taken from the one quirk file.

`tests/quirks.toml`, through its typed reader, says what each file system promises and does; this
keeps the few entries that the simulation acts on. Nothing about a file system is written here.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.files import quirks as quirk_file


@dataclass(frozen=True, slots=True)
class Quirks:
    """One file system, as far as the simulation imitates it."""

    name: str
    excl_races: bool  # two creators of one name may both succeed
    size_before_data: bool  # a size is seen before the bytes under it
    close_to_open: bool  # writes reach the servers at close; an open file does not see more
    listing_stale_seconds: float  # a listing may be so old
    listing_may_miss: bool  # a listing under changes may lack an entry that is there
    lookup_stale_seconds: float  # a missing name may be remembered so long
    unlink_while_writing: str  # "keeps" | "poisons" | "ESTALE"
    recreate_loses_data: bool
    unlink_while_reading: str  # "keeps" | "short" | "ESTALE": what an open file reads then
    short_read_holes: bool  # a read may return less, and not a prefix
    unsettled: tuple[str, ...]  # "kept", "lost", "partial", "garbage": what a crash may leave
    close_settles: bool  # a successful close survives a crash


def load(name: str) -> Quirks:
    """The quirks of the file system called `name` in the quirk file."""
    found = quirk_file.load(name)
    return Quirks(
        name=name,
        excl_races=found.excl_race_probability > 0,
        size_before_data=found.size_before_data,
        close_to_open=found.close_to_open,
        listing_stale_seconds=found.listing_stale_seconds,
        listing_may_miss=found.listing_may_miss,
        lookup_stale_seconds=found.negative_lookup_seconds,
        unlink_while_writing=found.unlink_while_writing,
        recreate_loses_data=found.recreate_loses_data,
        unlink_while_reading=found.unlink_while_reading,
        short_read_holes=found.short_read == "holes",
        unsettled=found.unsettled_outcomes,
        close_settles=found.settled_by == "close",
    )


def names() -> list[str]:
    """Every file system in the quirk file."""
    return quirk_file.names()
