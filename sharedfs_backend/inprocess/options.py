"""Our settings out of LMCache's configuration: the keys `sharedfs.<setting>` of its `extra_config`.

LMCache hands an adapter its whole configuration; `extra_config` also carries other plugins' keys,
which are none of our business. A misspelt setting of ours ends in a ConfigError that names it.

Pure: knows neither the store nor any other part of LMCache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sharedfs_backend.exceptions import ConfigError
from sharedfs_backend.settings import Settings

PREFIX = "sharedfs."


def settings_from(extra_config: Mapping[str, Any] | None) -> Settings:
    """The settings under `sharedfs.` in LMCache's `extra_config`. Raises ConfigError."""
    ours = {
        str(name).removeprefix(PREFIX): value
        for name, value in (extra_config or {}).items()
        if str(name).startswith(PREFIX)
    }
    if "root" not in ours:
        raise ConfigError(
            'extra_config has no "sharedfs.root": it is the one required setting; give the '
            "absolute path of the directory that all replicas share"
        )
    return Settings.from_mapping(ours)
