"""Announcer: a replica's file in the namespace, written, renewed and taken away again.

Write: create under a name nobody used, one block, close, **check close**. Renew: open *without*
creating, the same block with a higher counter at offset 0, close. A name that is gone or taken has
one remedy, another name (I1). A crash after any step leaves a file that readers pass over or whose
lease runs out (I5); what announcers before left behind is removed, where the profile lets files of
others be unlinked.

It must not know engines, HTTP or signals: `announce` does. One thread; calls block as long as the
file system does. Failures of the file system are raised, and the next `renew` tries again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from router.registry import AnnouncedReplica, Registry
from sharedfs_backend.files import FailureKind, FileFailure, Files, Handle, Profile
from sharedfs_backend.layout import Seal, encode_replica, replica_path, writer_id

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 4
"""Three may be lost before anybody takes the replica for dead."""
LEASES_SILENT = 2
"""After so many leases of silence a file is removed."""
_NEW_NAME = frozenset({FailureKind.MISSING, FailureKind.EXISTS, FailureKind.STALE})


class Announcer:
    """See the module."""

    def __init__(
        self,
        files: Files,
        seal: Seal,
        profile: Profile,
        replica: AnnouncedReplica,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """`replica`'s announcer and counter are replaced by our own."""
        self._files, self._seal = files, seal
        self._random_bytes = random_bytes
        self._replica = replica
        self._announcer: str | None = None
        self._counter = 0
        encode_replica(self._next(writer_id(bytes(8))), seal)  # impossible values: at once
        self._watch = Registry(files, seal)
        self._looks_left = 0 if profile.orphans_offline_only else LEASES_SILENT + 1
        self._look_at = float("-inf")

    @property
    def announcer(self) -> str | None:
        """The present name; None while there is no file."""
        return self._announcer

    @property
    def replica(self) -> AnnouncedReplica:
        """What is announced."""
        return self._replica

    @property
    def renew_seconds(self) -> float:
        return self._replica.lease_seconds / RENEWALS_PER_LEASE

    def says(self, replica: AnnouncedReplica) -> None:
        """What is announced from the next `renew` on. ValueError: impossible, all stays."""
        before, self._replica = self._replica, replica
        try:
            encode_replica(self._next(writer_id(bytes(8))), self._seal)
        except ValueError:
            self._replica = before
            raise

    def renew(self, now: float) -> None:
        """The file says that the replica lives. At first, or under a new name, it is created."""
        if self._announcer is not None:
            try:
                self._write(self._files.open_write(replica_path(self._announcer)), self._announcer)
            except FileFailure as failure:
                if failure.kind not in _NEW_NAME:
                    raise
                log.warning("the replica's file is gone (%s): announced anew", failure)
                self._announcer = None
        if self._announcer is None:
            name = writer_id(self._random_bytes(8))
            self._write(self._files.create(replica_path(name)), name)
            self._announcer = name
        self._remove_dead(now)

    def withdraw(self) -> None:
        """The file is gone; if that fails its lease runs out."""
        if self._announcer is None:
            return
        name, self._announcer = self._announcer, None
        try:
            self._files.unlink(replica_path(name))
        except FileFailure as failure:
            if failure.kind is not FailureKind.MISSING:
                log.warning("the replica's file stays until its lease is over: %s", failure)

    def _next(self, announcer: str) -> AnnouncedReplica:
        return replace(self._replica, announcer=announcer, counter=self._counter)

    def _write(self, handle: Handle, announcer: str) -> None:
        self._counter += 1
        try:
            data = encode_replica(self._next(announcer), self._seal)
            self._files.write(handle, 0, [data])
        except FileFailure:
            with suppress(FileFailure):  # the failed write is what the caller hears of
                self._files.close(handle)
            raise
        self._files.close(handle)

    def _remove_dead(self, now: float) -> None:
        """Once, two leases after our start. Only starts make files, so their number is bounded by
        those of two leases (I9)."""
        if self._looks_left == 0 or now < self._look_at:
            return
        self._looks_left -= 1
        self._look_at = now + self._replica.lease_seconds
        self._watch.poll(now, also_dead=True)
        if self._looks_left:
            return
        for sighting in self._watch.liveness.sightings():
            name = sighting.replica.announcer
            if name == self._announcer or sighting.silent_seconds < LEASES_SILENT * (
                sighting.replica.lease_seconds
            ):
                continue
            try:
                self._files.unlink(replica_path(name))
            except FileFailure as failure:
                log.info("a dead replica's file stays: %s", failure)
