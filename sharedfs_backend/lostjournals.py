"""Journals that fail to be read, for how long, and what a person is told about them.

While a journal cannot be read nobody knows what its writer stores: it may be alive and read by
others. So the pass stays incomplete and no credit is granted (the cap is never overrun), and only
a person can say that the file will not come back. After a lease of nothing but failures that no
waiting cures the log names it and the remedy, once. Removing it costs hits at most (I5): its writer
takes a new id, and the packs it named are adopted by an orphan pass.

Pure state of the refresher's one thread; others only read `lost`. It touches no file.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import dataclass

from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.layout import journal_path

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
    """See the module. Holds a few words for each journal that fails at present (I9)."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._failing: dict[str, _Failing] = {}
        self.lost = False
        """Some journal was nothing but unreadable for a lease."""

    def failed(self, writer: str, failure: FileFailure, now: float) -> None:
        """Reading its journal failed."""
        if failure.kind not in LASTING:
            self.settled(writer)
            return
        found = self._failing.setdefault(writer, _Failing(now, failure))
        found.failure = failure
        if now - found.since >= self._lease_seconds and not found.is_lost:
            found.is_lost = self.lost = True
            self._tell(writer, found, now)

    def settled(self, writer: str) -> None:
        """It was read, or is no more."""
        if self._failing.pop(writer, None) is not None:
            self.lost = any(found.is_lost for found in self._failing.values())

    def keep_only(self, writers: Container[str]) -> None:
        """The others' journals are no more."""
        for writer in [writer for writer in self._failing if writer not in writers]:
            self.settled(writer)

    def tell(self, now: float) -> None:
        """Name all that fail now: somebody waits for a complete pass in vain."""
        for writer, found in list(self._failing.items()):
            self._tell(writer, found, now)

    def _tell(self, writer: str, found: _Failing, now: float) -> None:
        log.warning(
            "%s cannot be read, for %d s now (%s): until it can, orphans are left alone and, "
            "unless its writer is known to be dead, nothing is stored below a cap. If it stays "
            "so, %s",
            journal_path(writer),
            now - found.since,
            found.failure,
            REMEDY,
        )
