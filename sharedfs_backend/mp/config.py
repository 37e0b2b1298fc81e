"""The adapter's configuration as LMCache reads it: `adapter_params` of the plugin's JSON.

Only `root` is required; everything else goes through `Settings`, which names the setting, its
bounds and the remedy when something is wrong. LMCache finds the class by its name, which is the
adapter's plus `Config`. A wrong configuration is the one error that may stop a start-up.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase

from sharedfs_backend.exceptions import ConfigError
from sharedfs_backend.settings import Settings

# Keys that LMCache's own machinery puts beside an adapter's parameters and reads itself.
_LMCACHE_KEYS = frozenset({"type", "eviction", "persist_enabled", "serde", "shared"})


class SharedFSL2AdapterConfig(L2AdapterConfigBase):  # type: ignore[misc]  # LMCache is untyped
    """Holds one valid `Settings`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> SharedFSL2AdapterConfig:
        """From `adapter_params`. Raises ValueError (LMCache's contract) with the remedy in it."""
        params = {
            name: value
            for name, value in d.items()
            if name not in _LMCACHE_KEYS or (name == "serde" and isinstance(value, str))
        }
        try:
            return cls(Settings.from_mapping(params))
        except ConfigError as error:
            raise ValueError(f"sharedfs: {error}") from error

    @classmethod
    def help(cls) -> str:
        """What LMCache prints beside a configuration error."""
        optional = [
            f"- {item.name} (default {item.default!r})"
            for item in dataclasses.fields(Settings)
            if item.name != "root"
        ]
        return "\n".join(
            [
                "SharedFSBackend L2 adapter, fields of adapter_params:",
                "- root (str): absolute path of the directory all replicas share (required)",
                *optional,
                "",
                'Example: {"type": "plugin", "module_path": "sharedfs_backend.mp", '
                '"class_name": "SharedFSL2Adapter", "adapter_params": {"root": "/mnt/shared/kv"}}',
            ]
        )
