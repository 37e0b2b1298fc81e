"""Context: what every effectful part of a store works with, handed round as one value.

The file layer, the runtime, the seal, the profile, the settings, the counters and the rules are
the same for all parts of one process; passing them together keeps constructors to what differs.
A value without behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass

from sharedfs_backend.files import Files, Profile
from sharedfs_backend.layout import Seal
from sharedfs_backend.rules import Rules
from sharedfs_backend.runtime import Runtime
from sharedfs_backend.settings import Settings
from sharedfs_backend.stats import Stats


@dataclass(frozen=True, slots=True)
class Context:
    """See the module."""

    files: Files
    runtime: Runtime
    seal: Seal
    profile: Profile
    settings: Settings
    stats: Stats
    rules: Rules
