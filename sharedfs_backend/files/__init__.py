"""The file layer: the only code of the store that touches the file system.

    api.py        the protocol (`Files`, `Handle`) everything above is written against
    failure.py    `FileFailure`, and errno translated into its kinds
    local.py      the protocol on a mounted directory (plain.py, writeback.py: its system calls)
    library.py    the protocol through a client library's functions
    profile.py    what a file system can do, as a value; probe.py finds out by trying
    mounts.py     which file system a mount is, and what its options cost
    striping.py   Lustre's layout of the files in a directory, set once
    counting.py   operations counted, for the budgets
    health.py     the breaker, as pure state; watched.py puts it around any `Files`

It knows nothing of packs, journals or LMCache, and retries nothing.
"""

from sharedfs_backend.files.api import (
    OPERATIONS,
    PATH_BYTES_MAX,
    WRITE_PARTS_MAX,
    Buffer,
    CachedRead,
    CheckedLoad,
    Files,
    Handle,
    HashedRead,
    HashedWrite,
)
from sharedfs_backend.files.counting import CountingFiles, Operation
from sharedfs_backend.files.failure import FailureKind, FileFailure
from sharedfs_backend.files.health import Health, HealthPolicy, State
from sharedfs_backend.files.library import LibraryFiles, LibraryMissing
from sharedfs_backend.files.local import LocalFiles
from sharedfs_backend.files.probe import differences, effective, mount_warnings, probe
from sharedfs_backend.files.profile import (
    GEKKOFS,
    LUSTRE,
    NAMED,
    UNPROBED,
    CachedReads,
    FlushMethod,
    Profile,
)
from sharedfs_backend.files.watched import WatchedFiles

__all__ = [
    "OPERATIONS",
    "PATH_BYTES_MAX",
    "WRITE_PARTS_MAX",
    "Buffer",
    "CachedRead",
    "CachedReads",
    "CheckedLoad",
    "CountingFiles",
    "FailureKind",
    "FileFailure",
    "Files",
    "FlushMethod",
    "Handle",
    "HashedRead",
    "HashedWrite",
    "Health",
    "HealthPolicy",
    "GEKKOFS",
    "LUSTRE",
    "LibraryFiles",
    "LibraryMissing",
    "LocalFiles",
    "NAMED",
    "Operation",
    "Profile",
    "State",
    "UNPROBED",
    "WatchedFiles",
    "differences",
    "effective",
    "mount_warnings",
    "probe",
]
