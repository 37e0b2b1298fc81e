"""The fixed directories of a namespace: made with it, and made again where one was removed.

A file that was deleted costs hits, never correctness (I5); so does a whole directory: to readers
it is an empty one, and whoever has something to write makes it again. Only where NAMESPACE.json is
there, though: below an empty mount point everything is missing, and nothing is to be made.

Every call here blocks on I/O, and costs nothing more than the call it stands for while all is in
its place. It knows no content of any file.
"""

from __future__ import annotations

import logging

from sharedfs_backend.exceptions import NamespaceError
from sharedfs_backend.files import FailureKind, FileFailure, Files, Handle
from sharedfs_backend.layout import (
    JOURNALS,
    NAMESPACE_PATH,
    PACKS,
    REALMS,
    REPLICAS,
    SETTINGS,
    SNAPSHOTS,
    pack_shard_dirs,
)

log = logging.getLogger(__name__)

FIXED = (PACKS, JOURNALS, SNAPSHOTS, REALMS, SETTINGS, REPLICAS)
NEEDED = (JOURNALS, SNAPSHOTS, SETTINGS)
"""Without these a namespace cannot be read. Those of the packs are made at the next start, one of
their 256 by whoever writes there."""


def make(files: Files, directories: tuple[str, ...] = FIXED) -> None:
    """Make them, in this order; those of the packs with the 256 below."""
    for directory in directories:
        files.make_dir(directory)
        if directory == PACKS:
            for shard in pack_shard_dirs():
                files.make_dir(shard)


def make_lost(files: Files, root: str) -> None:
    """Make those again that a namespace known to be there lacks. One listing if none does.

    Where nothing can be written that is only logged: such a process only loads.
    """
    try:
        there = set(files.list(""))
        lost = tuple(name for name in FIXED if name not in there and _is_missing(files, name))
        if lost:
            make(files, lost)
            log.warning(
                "%s: missing here, and made again: %s; `sharedfs reindex %s` finds packs that lost "
                "their records, `sharedfs init %s --cap SIZE` sets a cap that is lost",
                root,
                ", ".join(lost),
                root,
                root,
            )
    except FileFailure as failure:
        if failure.kind not in (FailureKind.DENIED, FailureKind.NO_SPACE):
            raise
        log.warning("%s: nothing missing can be made again: %s", root, failure)


def require(files: Files, root: str) -> None:
    """For whoever only reads: raises NamespaceError, with the remedy, if a directory is lost."""
    lost = [name for name in NEEDED if _is_missing(files, name)]
    if lost:
        raise NamespaceError(
            f"{root}: {' and '.join(lost)} missing here; `sharedfs reindex {root}` makes what is "
            "missing again, and finds the packs"
        )


def names_in(files: Files, directory: str) -> list[str]:
    """What a fixed directory holds; nothing if it was removed."""
    try:
        return files.list(directory)
    except FileFailure as failure:
        if failure.kind is not FailureKind.MISSING or not is_namespace(files):
            raise
        return []


def create_in(files: Files, path: str) -> Handle:
    """`files.create` of a file in a fixed directory, which is made again if it was removed."""
    try:
        return files.create(path)
    except FileFailure as failure:
        if failure.kind is not FailureKind.MISSING or not is_namespace(files):
            raise
    files.make_dir(path.rpartition("/")[0])  # the name was not used: nothing was there
    return files.create(path)


def _is_missing(files: Files, directory: str) -> bool:
    try:
        files.list(directory)
    except FileFailure as failure:
        if failure.kind is not FailureKind.MISSING:
            raise
        return True
    return False


def is_namespace(files: Files) -> bool:
    """Whether this is still the namespace; also False where that cannot be told."""
    try:
        files.close(files.open_read(NAMESPACE_PATH))
    except FileFailure:
        return False
    return True
