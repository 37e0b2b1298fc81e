"""Realms: who may share with whom, as far as it is known before the first byte is stored (I8).

A realm's digest covers model identity, shard, serialisation, hash family and format. Its
descriptor lies in the namespace as plain JSON, once for each *canary*: a digest of what the
engine's hash function makes of a fixed input. Two engines of one realm with different canaries
would ask for each other's chunks under keys that mean something else, so the later one is refused
and told which setting to change.

Opening a realm does a few operations, once, on a background worker: whoever opens it waits for them
as long as for a start-up, and a realm without a canary is opened without waiting, so that not even
the first request of a process can hang on it (I6).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from sharedfs_backend.context import Context
from sharedfs_backend.directories import names_in
from sharedfs_backend.exceptions import RealmRefused
from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.layout import (
    REALMS,
    RealmDescriptor,
    parse_realm_name,
    realm_path,
)
from sharedfs_backend.namespace import write_whole
from sharedfs_backend.runtime import Lane, LaneFull
from sharedfs_backend.snapshots import recognised

log = logging.getLogger(__name__)

NO_CANARY = b"\0\0\0\0"
"""Of engines whose chunk hashes are the same everywhere by construction (MP mode)."""
ANNOUNCE_SECONDS = 20.0
REALMS_MAX = 4096
"""Realms one process may have open (I9)."""


@dataclass(frozen=True, slots=True)
class Realm:
    """An open realm. `digest` is 16 bytes."""

    digest: bytes
    descriptor: RealmDescriptor
    canary: bytes = NO_CANARY


class RealmTable:
    """The realms this process has opened. Thread-safe."""

    def __init__(self, context: Context) -> None:
        self._files = context.files
        self._runtime = context.runtime
        self._seal = context.seal
        self._stats = context.stats
        self._lock = threading.Lock()
        self._open: dict[tuple[bytes, bytes], Realm] = {}

    def open(self, descriptor: RealmDescriptor, canary: bytes, *, wait: bool = True) -> Realm:
        """The realm; its file exists afterwards if the file system lets it.

        Raises RealmRefused when an engine with another canary was here before; without `wait`
        that is only logged, and the file is written a little later.
        """
        digest = descriptor.digest(self._seal)
        with self._lock:
            known = self._open.get((digest, canary))
            if known is not None:
                return known
            if len(self._open) >= REALMS_MAX:
                raise RealmRefused(
                    f"{REALMS_MAX} realms are open in this process; start another server for more"
                )
        if wait:
            self._announce_within_time(descriptor, digest, canary)
        realm = Realm(digest, descriptor, canary)
        with self._lock:
            kept = self._open.setdefault((digest, canary), realm)
        if kept is realm and not wait:
            self._announce_later(descriptor, digest, canary)
        return kept

    def _announce_later(self, descriptor: RealmDescriptor, digest: bytes, canary: bytes) -> None:
        def work() -> None:
            try:
                self._announce(descriptor, digest, canary)
            except RealmRefused as refused:
                self._stats.once("realms_doubtful", "%s", refused)

        try:
            self._runtime.submit(Lane.BACKGROUND, work)
        except LaneFull:
            self._stats.add("realms_unannounced")

    def _announce_within_time(
        self, descriptor: RealmDescriptor, digest: bytes, canary: bytes
    ) -> None:
        refused: list[RealmRefused] = []
        done = self._runtime.waiter()

        def work() -> None:
            try:
                self._announce(descriptor, digest, canary)
            except RealmRefused as error:
                refused.append(error)
            done.set()

        try:
            self._runtime.submit(Lane.BACKGROUND, work)
        except LaneFull:
            self._stats.add("realms_unannounced")
            return
        if not done.wait(ANNOUNCE_SECONDS):
            self._stats.once("realms_unannounced", "no answer while opening realm %s", digest.hex())
        if refused:
            raise refused[0]

    def _announce(self, descriptor: RealmDescriptor, digest: bytes, canary: bytes) -> None:
        try:
            # Looked for first: who is refused leaves no file, which would refuse all others.
            there = self._canaries(digest)
            if not there:
                self._write(descriptor, digest, canary)
                there = self._canaries(digest)  # two may have begun at the same time
        except FileFailure as failure:
            self._stats.failed(failure, "announcing a realm")
            return
        others = [other for other in there if other != canary]
        if others:
            raise RealmRefused(
                f"model {descriptor.model_identity!r}: an engine using this namespace hashes "
                f"tokens differently (canary {canary.hex()}, before: "
                f"{', '.join(other.hex() for other in others)}). Use the same "
                "`pre_caching_hash_algorithm` (sha256_cbor) and the same PYTHONHASHSEED "
                f"everywhere; if no such engine runs any more, delete "
                f"realms/{digest.hex()}.*.json and restart"
            )

    def _canaries(self, digest: bytes) -> list[bytes]:
        """Of all engines that were here before."""
        found = recognised(parse_realm_name, names_in(self._files, REALMS))
        return [canary for realm, canary in found if realm == digest]

    def _write(self, descriptor: RealmDescriptor, digest: bytes, canary: bytes) -> None:
        data = descriptor.to_json(self._seal, canary)
        try:
            write_whole(self._files, realm_path(digest, canary), data)
        except FileFailure as failure:
            if failure.kind is not FailureKind.EXISTS:
                raise
