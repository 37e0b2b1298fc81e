"""Announced: the replicas a namespace names, as a source of the list.

A namespace nobody has created yet, or in which nobody lives, is an empty list: replicas may start
after the router. What is wrong with the root itself (no directory, another secret) stops a start-up
and later changes nothing. A replica whose file has not changed under our eyes yet is listed too:
whether anybody is there the first probe finds out, before any request. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from router.registry import AnnouncedReplica, Registry
from router.replicas import Replica, ReplicaError, bounded, replica_at
from router.sources import Listing
from sharedfs_backend.exceptions import ConfigError, NamespaceError, NamespaceMissing


class Namespace:
    """Implements `sources.Source`."""

    can_change = True

    def __init__(
        self,
        root: str,
        *,
        secret_file: str | None = None,
        model: str | None = None,
        now: Callable[[], float],
    ) -> None:
        self._root = root
        self._secret_file = secret_file
        self._model = model
        self._now = now
        self._registry: Registry | None = None

    def read(self) -> Listing:
        if self._registry is None:
            try:
                self._registry = Registry.of(self._root, self._secret_file)
            except NamespaceMissing:
                return {}
            except (ConfigError, NamespaceError) as error:
                raise ReplicaError(str(error)) from error
        found: Listing = {}
        for sighting in self._registry.poll(self._now()):
            replica = _replica(sighting.replica)
            if replica is not None and self._model in (None, sighting.replica.model):
                found[replica.id] = replica
        return bounded(found)


def _replica(record: AnnouncedReplica) -> Replica | None:
    """None: a URL nobody can connect to."""
    try:
        at = replica_at(record.url)
    except ReplicaError:
        return None
    return replace(at, announced=replace(record, announcer="", counter=0))
