"""Registry: which replicas have announced themselves in a namespace, and which of them live.

`Liveness` is pure: what was read, when, on this observer's own clock. A replica is dead when its
file was read again and again and its counter did not change for the lease the file names. What
cannot be read proves nothing, so a stalled file system empties no list; a file that is gone was
withdrawn. Until its counter has changed once under our eyes a replica is only a claim (`confirmed`
is False): the file may be a dead one's, and whoever uses it asks it first.

`Registry` reads; it writes and removes nothing. One call of `poll` is one listing and three
operations a file, on a thread of the caller's that the file system may hold up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from sharedfs_backend.exceptions import NamespaceError
from sharedfs_backend.files import FailureKind, FileFailure, Files, LocalFiles
from sharedfs_backend.layout import (
    REPLICA_BYTES,
    REPLICAS,
    BadValue,
    FormatError,
    ReplicaRecord,
    Seal,
    decode_replica,
    parse_replica_name,
    replica_path,
)
from sharedfs_backend.namespace import open_namespace
from sharedfs_backend.settings import Settings

log = logging.getLogger(__name__)

AnnouncedReplica = ReplicaRecord

FILES_MAX = 4096
"""Files looked at; more are passed over and said."""
DEAD_POLL_PASSES = 16
"""The dead are looked at in every 16th pass only: one may have been frozen."""


@dataclass(slots=True)
class Sighting:
    """One announcer, as seen from here."""

    replica: AnnouncedReplica
    changed_at: float
    """When the counter was first seen at its present value."""
    read_at: float
    confirmed: bool = False
    """The counter has changed since we first looked."""

    @property
    def silent_seconds(self) -> float:
        """For how long reads have shown nothing new."""
        return self.read_at - self.changed_at

    @property
    def is_dead(self) -> bool:
        return self.silent_seconds >= self.replica.lease_seconds


class Liveness:
    """What all announcers said, and since when they say nothing new. Not thread-safe."""

    def __init__(self) -> None:
        self._seen: dict[str, Sighting] = {}

    def __contains__(self, announcer: str) -> bool:
        return announcer in self._seen

    def saw(self, record: AnnouncedReplica, now: float) -> None:
        """A whole file was read."""
        known = self._seen.get(record.announcer)
        if known is None:
            self._seen[record.announcer] = Sighting(record, now, now)
            return
        known.read_at = now
        if record.counter > known.replica.counter:
            known.replica, known.changed_at, known.confirmed = record, now, True

    def gone(self, announcer: str) -> None:
        """Its file is no more."""
        self._seen.pop(announcer, None)

    def is_dead(self, announcer: str) -> bool:
        known = self._seen.get(announcer)
        return known is not None and known.is_dead

    def sightings(self) -> list[Sighting]:
        """All, also of the dead."""
        return list(self._seen.values())

    def alive(self) -> list[Sighting]:
        """One for each URL: a replica started anew on its old address is the one that counts."""
        best: dict[str, Sighting] = {}
        for sighting in self._seen.values():
            url = sighting.replica.url
            rival = best.get(url)
            if not sighting.is_dead and (rival is None or _rank(sighting) > _rank(rival)):
                best[url] = sighting
        return list(best.values())


def _rank(sighting: Sighting) -> tuple[bool, float, str]:
    return sighting.confirmed, sighting.changed_at, sighting.replica.announcer


class Registry:
    """The replicas of one namespace. One thread at a time."""

    def __init__(self, files: Files, seal: Seal) -> None:
        self._files, self._seal = files, seal
        self._passes = 0
        self._told: set[str] = set()
        self.liveness = Liveness()

    @classmethod
    def of(cls, root: str, secret_file: str | None = None) -> Registry:
        """The registry of the namespace at `root`. Raises NamespaceError (NamespaceMissing while
        nobody has created it), also when the file system does not answer."""
        settings = Settings(root=root, secret_file=secret_file)
        files = LocalFiles(settings.root)
        try:
            found = open_namespace(files, settings, create=False)
        except FileFailure as failure:
            raise NamespaceError(f"{settings.root}: {failure}") from failure
        return cls(LocalFiles(settings.root, found.profile), found.seal)

    def poll(self, now: float, *, also_dead: bool = False) -> list[Sighting]:
        """Look at every file once; who lives. Raises nothing for a file system's failures."""
        self._passes += 1
        try:
            listed = self._files.list(REPLICAS)
        except FileFailure as failure:
            self._tell("list", f"the replicas cannot be listed: {failure}")
            return self.liveness.alive()
        for announcer in self._worth_reading(listed, also_dead):
            self._read(announcer, now)
        return self.liveness.alive()

    def _worth_reading(self, listed: Iterable[str], also_dead: bool) -> list[str]:
        """Also those known that a listing leaves out: listings may be incomplete."""
        known = self.liveness.sightings()
        wanted = dict.fromkeys(sighting.replica.announcer for sighting in known)
        for name in listed:
            try:
                wanted[parse_replica_name(name)] = None
            except BadValue:
                continue  # a foreign file
        if len(wanted) > FILES_MAX:
            self._tell("many", f"{len(wanted)} replica files; only {FILES_MAX} are looked at")
        also_dead = also_dead or self._passes % DEAD_POLL_PASSES == 1
        return [
            announcer
            for announcer in list(wanted)[:FILES_MAX]
            if also_dead or not self.liveness.is_dead(announcer)
        ]

    def _read(self, announcer: str, now: float) -> None:
        try:
            record = decode_replica(self._block(announcer), self._seal)
        except FileFailure as failure:
            if failure.kind is FailureKind.MISSING:
                self.liveness.gone(announcer)
            else:
                self._tell(announcer, f"a replica's file cannot be read: {failure}")
            return
        except FormatError as error:  # half-written, or not for us: what was known stays
            self._tell(announcer, f"{replica_path(announcer)}: {error}")
            return
        self._told.discard(announcer)
        if record.announcer == announcer:
            self.liveness.saw(record, now)

    def _block(self, announcer: str) -> bytes:
        handle = self._files.open_read(replica_path(announcer))
        try:
            block = memoryview(bytearray(REPLICA_BYTES))
            count = self._files.read(handle, 0, block)
            return bytes(block[:count])
        finally:
            self._files.close(handle)

    def _tell(self, what: str, message: str) -> None:
        """Once for each matter until it is well again."""
        if what not in self._told and len(self._told) < FILES_MAX:
            self._told.add(what)
            log.warning("%s", message)


def read_replicas(root: str, secret_file: str | None = None) -> list[AnnouncedReplica]:
    """What is announced below `root` at this moment, dead or alive: one look tells no difference.
    Raises NamespaceError."""
    return [sighting.replica for sighting in Registry.of(root, secret_file).poll(0.0)]
