"""For each delicate rule: where its absence is caught (scenario, file system, first seeds).

Found by `python -m tests.sim --without RULE --scenario NAME --seeds 0:60`. A rule that is not here
is not caught yet; `UNCAUGHT` says why, so that none is forgotten.
"""

from __future__ import annotations

CATCHES: dict[str, tuple[str, str, str]] = {
    "check_clock_before_trailer": ("faulty", "glusterfs", "4:30"),
    "append_never_creates": ("vandalised", "gekkofs", "1:30"),
    "slow_append_renews": ("retiring", "glusterfs", "49:80"),
    "gate_copies": ("faulty", "posix", "0:20"),
    "drop_before_unlink": ("capped", "gekkofs", "1:20"),
    "drop_is_for_ever": ("sweeping", "nfs", "2:20"),
    "credits_bound_stores": ("sweeping", "posix", "0:10"),
    "readers_merge_all_snapshots": ("snapping", "posix", "0:10"),
    "adopting_never_revives": ("snapping", "posix", "0:10"),
    "journal_retired_when_covered": ("restarting", "posix", "0:10"),
    "tombstones_outlive_names": ("snapping", "posix", "0:10"),
}

UNCAUGHT: dict[str, str] = {
    "renewal_republishes": "needs a journal that is deleted under a living writer",
    "in_flight_counts": "needs more bytes in flight than the reserve below the cap holds",
    "new_writer_lists_packs": "needs more orphans than the reserve below the cap holds",
    "orphans_reread_first": "implied by the age that an orphan must have",
    "orphans_respect_snapshots": "packs known from snapshots are passed over before it is asked",
    "orphans_of_the_dead_only": "needs a pack being written while a pass judges it",
    "snapshots_cover_all": "no code asks for it yet",
    "snapshot_outlived_by_verified_successor": "without it only the wait is left out",
    "journal_retired_when_dead": "implied by the orphan pass that settles a writer first",
}
