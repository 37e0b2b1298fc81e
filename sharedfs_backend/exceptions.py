"""The exceptions a user of the store can meet. A miss is a value and never one of these.

    SharedFSError
    |-- ConfigError       a setting is unknown, out of bounds or contradicts another one
    |-- NamespaceError    the root cannot be used as a namespace
    |   |-- NamespaceMissing    nothing was ever created there
    |   |-- NamespaceNewer      a later format wrote it; this version leaves it alone
    |   `-- SecretMismatch      it was made with another secret, or with one where none is given
    |-- RealmRefused      this engine must not share with the ones before it (I8); says why
    `-- StoreClosed       a call after `close()`

Only a wrong configuration stops a start-up, so every message says what to do next. Damage, full
disks and hung calls are none of these: they are counted and served as misses (I6). The layers
below have their own: `layout` raises `FormatError`, `files` raises `FileFailure`.
"""

from __future__ import annotations


class SharedFSError(Exception):
    """Any error of this package that is meant for its user."""


class ConfigError(SharedFSError):
    """A wrong setting. The message names it, what is allowed, and the remedy."""


class NamespaceError(SharedFSError):
    """The root directory cannot serve as a namespace."""


class NamespaceMissing(NamespaceError):
    """No namespace was created below this root."""


class NamespaceNewer(NamespaceError):
    """A newer version wrote this namespace; it is left alone."""


class SecretMismatch(NamespaceError):
    """The namespace's secret is not the one given."""


class RealmRefused(SharedFSError):
    """Sharing would mix up engines whose identity differs (I8). The message is the reason."""


class StoreClosed(SharedFSError):
    """The store was closed before this call."""
