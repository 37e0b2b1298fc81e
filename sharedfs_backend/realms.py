"""Realms: who may share with whom, as far as it is known before the first byte is stored (I8).

A realm's digest covers model identity, shard, serialisation, hash family and format. Its
descriptor lies in the namespace as plain JSON, once for each *canary*: a digest of what the
engine's hash function makes of a fixed input. Two engines of one realm with different canaries
would ask for each other's chunks under keys that mean something else, so the later one is refused
and told which setting to change.

Opening a realm does a few operations, once, on a background worker or the opener's own thread;
never on a request path.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from sharedfs_backend.context import Context
from sharedfs_backend.exceptions import RealmRefused
from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.layout import (
    REALMS,
    RealmDescriptor,
    parse_realm_name,
    realm_path,
)
from sharedfs_backend.namespace import write_whole
from sharedfs_backend.snapshots import recognised

log = logging.getLogger(__name__)

NO_CANARY = b"\0\0\0\0"
"""Of engines whose chunk hashes are the same everywhere by construction (MP mode)."""
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
        self._seal = context.seal
        self._stats = context.stats
        self._lock = threading.Lock()
        self._open: dict[tuple[bytes, bytes], Realm] = {}

    def open(self, descriptor: RealmDescriptor, canary: bytes) -> Realm:
        """The realm; its file exists afterwards if the file system lets it.

        Raises RealmRefused when an engine with another canary was here before.
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
        self._announce(descriptor, digest, canary)
        realm = Realm(digest, descriptor, canary)
        with self._lock:
            return self._open.setdefault((digest, canary), realm)

    def _announce(self, descriptor: RealmDescriptor, digest: bytes, canary: bytes) -> None:
        try:
            self._write(descriptor, digest, canary)
            others = [
                other
                for realm, other in recognised(parse_realm_name, self._files.list(REALMS))
                if realm == digest and other != canary
            ]
        except FileFailure as failure:
            self._stats.failed(failure, "announcing a realm")
            return
        if others:
            raise RealmRefused(
                f"model {descriptor.model_identity!r}: an engine using this namespace hashes "
                f"tokens differently (canary {canary.hex()}, before: "
                f"{', '.join(other.hex() for other in others)}). Use the same "
                "`pre_caching_hash_algorithm` (sha256_cbor) and the same PYTHONHASHSEED "
                f"everywhere; if no such engine runs any more, delete "
                f"realms/{digest.hex()}.*.json and restart"
            )

    def _write(self, descriptor: RealmDescriptor, digest: bytes, canary: bytes) -> None:
        data = descriptor.to_json(self._seal, canary)
        try:
            write_whole(self._files, realm_path(digest, canary), data)
        except FileFailure as failure:
            if failure.kind is not FailureKind.EXISTS:
                raise
