"""LMCache's in-process mode: the adapter an engine loads as one of its `storage_plugins`.

Name it in LMCache's configuration, with `sharedfs.root` as the one required setting;
docs/IDENTITY.md says what makes two engines share. Everything else here serves that one class.
"""

from sharedfs_backend.inprocess.backend import SharedFSBackend

__all__ = ["SharedFSBackend"]
