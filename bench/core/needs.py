"""What a case needs beyond the locked packages, and what would install it.

A case names its needs; where one is missing the case is skipped and recorded as not measured, with
the sentence from here. `has` looks, it installs nothing.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence

TOOLS: dict[str, str] = {
    "fio": "apt install fio",
    "gcc": "apt install gcc",
    "glusterfs": "apt install glusterfs-server glusterfs-client",
    "fusermount3": "apt install fuse3",
}
"""Commands, and how Debian and Ubuntu install them."""

MODULES: dict[str, str] = {
    "ray": ".venv/bin/pip install 'ray[default]' (make bench-full does)",
    "matplotlib": "make setup-dev",
    "lmcache": "make setup-dev",
}


def has(need: str) -> bool:
    if need == "throttle":
        return _throttle() == ""
    if need in MODULES:
        return importlib.util.find_spec(need) is not None
    return shutil.which(need) is not None


def remedy(need: str) -> str:
    """What to do about a missing need."""
    if need == "throttle":
        return _throttle() or "make bench-tools"
    return TOOLS.get(need) or MODULES.get(need) or f"install {need}"


def missing(needs: Sequence[str]) -> list[str]:
    """One sentence for each need that is not there."""
    return [f"{need} is missing: {remedy(need)}" for need in needs if not has(need)]


def _throttle() -> str:
    from bench.core.mounts import throttle_problem

    return throttle_problem()
