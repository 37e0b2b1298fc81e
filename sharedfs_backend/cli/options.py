"""From command line words to checked `Settings`.

A command needs few settings, but those that describe the fleet (lease, drop delay) must be what the
fleet uses; any setting can be given with `--set name=value`, and a mapping from a file that the
engines read too with `--config`. All values go through `Settings.from_mapping`, so a wrong one gets
the same answer here as in an engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

from sharedfs_backend.exceptions import ConfigError, NamespaceMissing
from sharedfs_backend.files import striping
from sharedfs_backend.layout import JOURNALS
from sharedfs_backend.settings import Settings

CONFIG_BYTES_MAX = 1 << 20
LOOK_SECONDS = 10.0
"""A mount that takes longer hangs, which the command itself finds out and says."""


def settings_for(
    root: str,
    *,
    secret_file: str | None = None,
    profile: str | None = None,
    config: Path | None = None,
    assignments: Sequence[str] = (),
) -> Settings:
    """Settings for `root`, which may be relative. Raises ConfigError."""
    if not root:  # which would be the current directory
        raise ConfigError(
            "the directory of the namespace is empty; is the variable that should name it set?"
        )
    mapping: dict[str, object] = {} if config is None else _from_file(config)
    mapping["root"] = os.path.abspath(root)
    if secret_file is not None:
        mapping["secret_file"] = os.path.abspath(secret_file)
    if profile is not None:
        mapping["profile"] = profile
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment}: write it as name=value")
        if name.strip() == "root":
            raise ConfigError(f"--set {assignment}: the command itself names the directory")
        try:
            mapping[name.strip()] = _value(text.strip())
        except RecursionError:
            raise ConfigError(f"--set {name.strip()}: its value is nested too deeply") from None
    return Settings.from_mapping(mapping)


def require_directory(settings: Settings) -> None:
    """A namespace's root is a directory. Raises NamespaceMissing, which says what to check."""
    root = settings.root
    if settings.client_library is not None or os.path.isdir(root):
        return
    what = "is no directory" if os.path.exists(root) else "does not exist"
    raise NamespaceMissing(
        f"{root}: {what}; check the path, and that the shared file system is mounted here"
    )


def share_as_the_namespace(settings: Settings) -> None:
    """What this process makes can be read by whoever reads the namespace's journals, whatever the
    operator's umask: one journal or snapshot that the engines cannot read, and no pass of theirs is
    complete any more; one such settings file, and none of them starts. Nothing for a new one."""
    found: list[os.stat_result] = []

    def look() -> None:
        with contextlib.suppress(OSError):
            found.append(os.stat(os.path.join(settings.root, JOURNALS)))

    thread = threading.Thread(target=look, daemon=True)  # the mount may hang
    thread.start()
    thread.join(LOOK_SECONDS)
    if found and stat.S_ISDIR(found[0].st_mode):
        os.umask(umask_like(found[0], os.geteuid(), os.getegid()))


def umask_like(directory: os.stat_result, uid: int, gid: int) -> int:
    """The umask with which this user's files are read by who reads the directory. Its owner is one
    of the others to them unless a group joins the two: root's in a private namespace. Then they
    are readable by all, and the directories keep out who was kept out before."""
    mode = directory.st_mode
    joined = mode & stat.S_IRGRP and (mode & stat.S_ISGID or directory.st_gid == gid)
    if directory.st_uid != uid and not joined:
        mode |= 0o055
    return ~mode & 0o777


def stripe_layout(text: str) -> tuple[str, ...]:
    """Options of `lfs setstripe` as words; "none" for taking a directory's layout away."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--stripe {text}: {error}") from None
    if words == ("none",):
        return striping.NONE
    if not words or not words[0].startswith("-"):
        raise ConfigError(
            f"--stripe {text!r}: give options of `lfs setstripe`, for example "
            f'--stripe "{" ".join(striping.PROGRESSIVE)} -p flash", or none'
        )
    return words


def _value(text: str) -> object:
    """A JSON value if it is one (3, true, 1e9), else the text itself."""
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value


def _from_file(path: Path) -> dict[str, object]:
    """The mapping in a JSON file: settings alone, or an adapter's configuration holding them."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(CONFIG_BYTES_MAX))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"--config {path}: not JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"--config {path}: nested too deeply") from None
    if isinstance(value, dict) and isinstance(value.get("adapter_params"), dict):
        value = value["adapter_params"]
    if not isinstance(value, dict):
        raise ConfigError(f"--config {path}: must hold one JSON object of settings")
    return value
