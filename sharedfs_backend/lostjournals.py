"""Journals and snapshots that fail to be read, for how long, and what a person is told about them.

While a journal cannot be read nobody knows what its writer stores: it may be alive and read by
others. A snapshot may name packs that nothing else does. So the pass stays incomplete and no credit
is granted (the cap is never overrun), and only a person can say that the file will not come back.
After a lease of nothing but failures that no waiting cures the log names it and the remedy, once.
Removing it costs hits at most (I5): a writer takes a new id, and the packs it named are adopted by
an orphan pass.

Pure state of the refresher's one thread; others only read `lost`. It touches no file.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import dataclass

from sharedfs_backend.files import FailureKind, FileFailure

log = logging.getLogger("sharedfs_backend")

LASTING = frozenset((FailureKind.IO, FailureKind.DENIED, FailureKind.UNSUPPORTED))
"""Failures that may be the file's own; after any other one the lease begins anew."""
REMEDY = "restore the file, or remove it: an orphan pass adopts the packs that only it names"


@dataclass(slots=True)
class _Failing:
    since: float
    failure: FileFailure
    is_lost: bool = False


class LostJournals:
    """See the module. Holds a few words for each file (path) that fails at present (I9)."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._failing: dict[str, _Failing] = {}
        self.lost = False
        """Some file was nothing but unreadable for a lease."""

    def failed(self, path: str, failure: FileFailure, now: float) -> None:
        """Reading it failed."""
        if failure.kind not in LASTING:
            self.settled(path)
            return
        found = self._failing.setdefault(path, _Failing(now, failure))
        found.failure = failure
        if now - found.since >= self._lease_seconds and not found.is_lost:
            found.is_lost = self.lost = True
            self._tell(path, found, now)

    def settled(self, path: str) -> None:
        """It was read, or is no more."""
        if self._failing.pop(path, None) is not None:
            self.lost = any(found.is_lost for found in self._failing.values())

    def keep_only(self, paths: Container[str]) -> None:
        """The others are no more, or were read."""
        for path in [path for path in self._failing if path not in paths]:
            self.settled(path)

    def tell(self, now: float) -> None:
        """Name all that fail now: somebody waits for a complete pass in vain."""
        for path, found in list(self._failing.items()):
            self._tell(path, found, now)

    def _tell(self, path: str, found: _Failing, now: float) -> None:
        log.warning(
            "%s cannot be read, for %d s now (%s): until it can, orphans are left alone and, "
            "unless it is the journal of a writer known to be dead, nothing is stored below a "
            "cap. If it stays so, %s",
            path,
            now - found.since,
            found.failure,
            REMEDY,
        )
