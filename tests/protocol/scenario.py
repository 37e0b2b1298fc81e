"""A scenario: everything that one simulated run depends on besides its seed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sharedfs_backend import chores, refresh, snapshotter
from sharedfs_backend.files import NAMED
from sharedfs_backend.rules import Rules
from sharedfs_backend.settings import Settings
from tests.sim.chaos import Rates
from tests.sim.quirks import Quirks, load

LEASE_SECONDS = 24.0
REAL_LEASE_SECONDS = 600.0
EAGER = (
    (snapshotter, "UNCOVERED_BYTES", 256 << 10),
    (snapshotter, "RETIRABLE_JOURNALS", 2),
    (snapshotter, "RETIRE_AFTER_LEASES", 0.5),
    (chores, "ORPHAN_PASS_LEASES", 1),
)
"""Thresholds that only save work, lowered so that a short run does all kinds of work."""
SHORT = ((refresh, "AWAIT_SECONDS", 120.0 * LEASE_SECONDS / REAL_LEASE_SECONDS),)
"""Times that follow from those of the file system, in this scale."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Times in world seconds; file-system times of the quirk file shrink with the lease."""

    fs: str = "posix"
    clients: int = 4
    seconds: float = 90.0
    settle_seconds: float = 0.0  # after the last trouble, before the final checks
    documents: int = 6
    chunks_max: int = 8
    think_seconds: float = 4.0
    requests: int = 1  # of a process at once
    cap_bytes: int | None = None
    rates: Rates = field(default_factory=Rates)
    restart_seconds: float = 10.0
    cancel_rate: float = 0.1
    vandal_rate: float = 0.0  # per second: some file is deleted or garbled by nobody
    journal_loss_rate: float = 0.0  # per second: a living writer's journal is deleted by nobody
    leftover_bytes: int = 0  # of packs that no record names when the first process comes
    write_workers: int = 6
    graceful_rate: float = 0.05  # of the requests: close the store and start again
    damaged: bool = False  # the disk went through a crash before
    eager: bool = True  # snapshots, retirements and orphan passes at the first occasion
    rules: Rules = field(default_factory=Rules)

    @property
    def is_calm(self) -> bool:
        """Nothing goes wrong in it: then a hit of a lookup must be a hit of the load."""
        return self.rates == Rates() and not self.vandal_rate and not self.damaged

    def quirks(self) -> Quirks:
        """The file system's quirks, in this scenario's time scale."""
        found = load(self.fs)
        scale = LEASE_SECONDS / REAL_LEASE_SECONDS
        return replace(
            found,
            listing_stale_seconds=found.listing_stale_seconds * scale,
            lookup_stale_seconds=found.lookup_stale_seconds * scale,
        )

    def settings(self) -> Settings:
        """Real settings with short times, and a cap below what a site may configure."""
        settings = Settings(
            root="/simulated",
            lease_seconds=LEASE_SECONDS,
            drop_delay_seconds=4.0,
            refresh_seconds=1.0,
            load_deadline_seconds=2.5,
            linger_seconds=0.02,
            buffer_ttl_seconds=10.0,
            pack_bytes_max=64 << 10,
            buffer_bytes_max=8 << 20,
            open_files_max=8,
            profile=self.fs,
        )
        object.__setattr__(settings, "cap_bytes", self.cap_bytes)
        return settings


@contextmanager
def small(eager: bool) -> Generator[None]:
    """Within it profiles align to 4 KiB, and the thresholds of `EAGER` hold if `eager`."""
    changes = (*SHORT, *EAGER) if eager else SHORT
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    profiles = dict(NAMED)
    NAMED.update({name: replace(p, align_bytes=4096) for name, p in profiles.items()})
    for module, name, value in changes:
        setattr(module, name, value)
    try:
        yield
    finally:
        NAMED.update(profiles)
        for module, name, value in before:
            setattr(module, name, value)
