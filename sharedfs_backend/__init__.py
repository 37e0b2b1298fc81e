"""SharedFSBackend: one KV cache namespace on a shared file system, for many engines.

`Store` is for direct use; `sharedfs_backend.mp` and `sharedfs_backend.inprocess` plug it into
LMCache. The name is resolved on first use, so that importing a leaf (the layout, say) imports
nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharedfs_backend.store import Store

__all__ = ["Store"]


def __getattr__(name: str) -> object:
    if name == "Store":
        from sharedfs_backend.store import Store  # see the docstring

        return Store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
