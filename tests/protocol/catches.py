"""For each delicate rule: where its absence is caught (scenario, file system, seeds).

Found by `python -m tests.sim --without RULE --scenario NAME --seeds 0:60`. The first of the seeds
that catches it is usually the first or second; the others are there for when the code changes.
"""

from __future__ import annotations

CATCHES: dict[str, tuple[str, str, str]] = {
    "check_clock_before_trailer": ("overdue", "posix", "0:20"),
    "append_never_creates": ("vandalised", "gekkofs", "0:30"),
    "slow_append_renews": ("stalling", "posix", "0:40"),
    "renewal_republishes": ("forgetting", "posix", "0:20"),
    "gate_copies": ("faulty", "posix", "0:20"),
    "drop_before_unlink": ("sweeping", "posix", "0:20"),
    "drop_is_for_ever": ("crowded", "posix", "0:20"),
    "credits_bound_stores": ("sweeping", "posix", "0:20"),
    "in_flight_counts": ("flooding", "posix", "0:20"),
    "new_writer_lists_packs": ("inheriting", "posix", "0:20"),
    "orphans_reread_first": ("orphaning", "lustre", "0:20"),
    "orphans_respect_snapshots": ("snapping", "posix", "0:20"),
    "orphans_of_the_dead_only": ("lingering", "posix", "0:20"),
    "snapshots_cover_all": ("restarting", "posix", "0:20"),
    "readers_merge_all_snapshots": ("snapping", "posix", "0:20"),
    "adopting_never_revives": ("snapping", "posix", "0:20"),
    "snapshot_outlived_by_verified_successor": ("tearing", "gekkofs", "0:20"),
    "journal_retired_when_covered": ("restarting", "posix", "0:20"),
    "journal_retired_when_dead": ("pausing", "posix", "0:20"),
    "tombstones_outlive_names": ("snapping", "posix", "0:20"),
}
