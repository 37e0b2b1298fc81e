"""The protocol's delicate rules, one switch each, so that tests can show that every one is needed.

Production code never passes anything but the default: all rules on. A simulation switches one off
and must then find the damage that the rule prevents; a rule whose absence nobody can notice would
be superstition. Each field says what goes wrong without it. Pure values.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """All True in production. Test-only: `replace(Rules(), gate_copies=False)`."""

    check_clock_before_trailer: bool = True
    """Else a store frozen past its buffers' lifetime publishes somebody else's bytes (I2, I7)."""
    append_never_creates: bool = True
    """Else a frozen writer revives its retired journal at an offset nobody reads (I4)."""
    slow_append_renews: bool = True
    """Else a record appended to an unlinked journal counts as published and is lost (I4)."""
    renewal_republishes: bool = True
    """Else what the abandoned journal held is lost with it (I4)."""
    gate_copies: bool = True
    """Else a late read writes into a buffer that was reported done (I7)."""
    drop_before_unlink: bool = True
    """Else a load under way loses its pack, and a dead sweeper's work is never finished."""
    drop_is_for_ever: bool = True
    """Else a commit read after its drop brings a pack back to life."""
    credits_bound_stores: bool = True
    """Else several writers, each below the cap, overrun it together."""
    in_flight_counts: bool = True
    """Else the same credit is spent twice while a pack is being written."""
    new_writer_lists_packs: bool = True
    """Else the orphans of the dead are missing from a new writer's idea of usage."""
    orphans_reread_first: bool = True
    """Else, judged at once by what was known when the listing began, a pack committed meanwhile is
    taken for an orphan."""
    orphans_respect_snapshots: bool = True
    """Else a pack whose journal was retired is taken for an orphan."""
    orphans_of_the_dead_only: bool = True
    """Else a pack being written is unlinked under its writer."""
    snapshots_cover_all: bool = True
    """Else a retired journal takes the packs of realms with it that the merging process does not
    store in."""
    readers_merge_all_snapshots: bool = True
    """Else what only an older snapshot holds is lost when its journals go."""
    adopting_never_revives: bool = True
    """Else a snapshot gathered before a drop brings the dropped pack back."""
    snapshot_outlived_by_verified_successor: bool = True
    """Else a torn successor, never read back, replaces the only good snapshot."""
    journal_retired_when_covered: bool = True
    """Else the uncovered end of a dead writer's journal is lost."""
    journal_retired_when_dead: bool = True
    """Else a living writer's journal is taken from under it."""
    tombstones_outlive_names: bool = True
    """Else a journal or snapshot that still names a dropped pack brings it back."""
