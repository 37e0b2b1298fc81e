"""What goes with staged packs: their realms' descriptors, and the news that they were wanted.

A realm whose engines hash tokens differently in the target (another canary lies there) is refused:
its chunks would be asked for under keys that mean something else (I8). What the target held already
counts there as wanted when it was last wanted in the source, so that a sweep over there keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.layout import (
    REALMS,
    FormatError,
    PackName,
    RealmDescriptor,
    Touch,
    parse_realm_name,
    realm_path,
)
from sharedfs_backend.namespace import write_whole
from sharedfs_backend.parts import Parts
from sharedfs_backend.runtime import Lane
from sharedfs_backend.snapshots import read_whole, recognised
from sharedfs_backend.stage.choosing import Choice

SMALL_FILE_BYTES_MAX = 1 << 20


def copy_realms(giving: Parts, taking: Parts) -> frozenset[bytes]:
    """Copy the realms' descriptors; the realms that may not be copied."""
    ours, theirs = _canaries(giving), _canaries(taking)
    refused = {realm for realm, canaries in ours.items() if theirs.get(realm, canaries) != canaries}
    for realm, canaries in ours.items():
        if realm in refused or realm in theirs:
            continue
        for canary in canaries:
            _copy_realm(giving, taking, realm_path(realm, canary))
    return frozenset(refused)


def _canaries(parts: Parts) -> dict[bytes, set[bytes]]:
    found: dict[bytes, set[bytes]] = {}
    for realm, canary in recognised(parse_realm_name, parts.watched.list(REALMS)):
        found.setdefault(realm, set()).add(canary)
    return found


def _copy_realm(giving: Parts, taking: Parts, path: str) -> None:
    data = bytes(read_whole(giving.watched, path, SMALL_FILE_BYTES_MAX))
    try:
        RealmDescriptor.from_json(data, giving.seal)
        write_whole(taking.watched, path, data)
    except FormatError as error:
        giving.stats.once("realms_damaged", "%s is left out: %s", path, error)
    except FileFailure as failure:
        if failure.kind is not FailureKind.EXISTS:  # an engine was quicker
            raise


def touch(taking: Parts, giving: Parts, present: Sequence[Choice], timeout_seconds: float) -> None:
    """Tell the target when what it held already was last wanted."""
    youngest: dict[PackName, float] = {}
    for choice in present:
        pack = giving.ledger.pack(choice.name)
        table = None if pack is None else giving.catalog.entries_of(pack.pack_id)
        if pack is None or table is None or pack.layout is None:
            continue
        fingerprint = taking.ledger.fingerprint(pack.layout)
        space = taking.catalog.known_space(pack.realm, fingerprint)
        if space is None:
            continue
        for pack_id in set(taking.catalog.find(bytes(table.keys), space).pack_ids.tolist()):
            held = taking.ledger.by_id(pack_id)
            if held is not None:
                age = min(choice.age_seconds, youngest.get(held.name, choice.age_seconds))
                youngest[held.name] = age
    if youngest and timeout_seconds > 0.0:
        done = taking.runtime.waiter()
        records = (Touch(tuple(youngest.items())),)
        taking.runtime.submit(
            Lane.WRITE, lambda: taking.publisher.publish(records, lambda _: done.set())
        )
        done.wait(timeout_seconds)
