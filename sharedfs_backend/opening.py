"""Opening a namespace at start-up: on a worker, so that a hung mount costs patience only.

The first process on a mount probes what it can do and writes the profile into the namespace;
later ones compare, warn about what differs, and work with what both can do. On Lustre it also sets
the layout of packs. Fixed directories that were removed are made again by whoever may create a
namespace. A mount that cannot be written to is not probed: such a process only loads.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from sharedfs_backend.directories import make_lost
from sharedfs_backend.exceptions import NamespaceError
from sharedfs_backend.files import (
    GEKKOFS,
    LUSTRE,
    UNPROBED,
    FailureKind,
    FileFailure,
    Files,
    LibraryFiles,
    LibraryMissing,
    LocalFiles,
    Profile,
    differences,
    effective,
    mount_warnings,
    probe,
    striping,
)
from sharedfs_backend.layout import PACKS, pack_shard_dirs
from sharedfs_backend.namespace import (
    Namespace,
    change_settings,
    open_namespace,
    require_namespace,
    require_root,
)
from sharedfs_backend.preload import prepare_process
from sharedfs_backend.runtime import Lane, Runtime
from sharedfs_backend.settings import Settings

log = logging.getLogger("sharedfs_backend")

R = TypeVar("R")

OPEN_SECONDS = 20.0
"""How long a start-up waits for the file system to show the namespace."""


def open_within_time(
    runtime: Runtime, settings: Settings, files: Files | None, *, create: bool
) -> Namespace:
    """The namespace. Raises NamespaceError, also when nothing answers within `OPEN_SECONDS`, and
    ConfigError where this process must not see the file system."""
    prepare_process(os.environ, sys.modules)
    if files is not None:
        return open_namespace(files, settings, create=create)
    return _within_time(runtime, settings, lambda: _open(runtime, settings, create))


def require_within_time(runtime: Runtime, settings: Settings) -> None:
    """Raises NamespaceMissing if no namespace is there, and what `open_within_time` does."""
    prepare_process(os.environ, sys.modules)
    _within_time(runtime, settings, lambda: require_namespace(reach(settings), settings.root))


def _within_time(runtime: Runtime, settings: Settings, act: Callable[[], R]) -> R:
    result: list[R | Exception] = []
    done = runtime.waiter()

    def work() -> None:
        try:
            result.append(act())
        except Exception as error:  # carried over to the waiting thread
            result.append(error)
        done.set()

    runtime.submit(Lane.BACKGROUND, work)
    if not done.wait(OPEN_SECONDS):
        raise NamespaceError(
            f"{settings.root}: no answer within {OPEN_SECONDS:g} s; is the file system "
            "mounted and its server alive?"
        )
    outcome = result[0]
    if isinstance(outcome, FileFailure):
        raise NamespaceError(f"{settings.root}: {outcome}") from outcome
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def reach(settings: Settings, profile: Profile = UNPROBED) -> Files:
    """The file layer through which this process sees the namespace. Raises NamespaceError for a
    client library that cannot be used."""
    if settings.client_library is None:
        return LocalFiles(settings.root, profile)
    try:
        return LibraryFiles(settings.root, settings.client_library)
    except LibraryMissing as error:
        raise NamespaceError(
            f"client_library: {error}; build it as launch/gekkofs/sharedfs_client.cpp says, "
            "against the client that runs here"
        ) from None


def _open(runtime: Runtime, settings: Settings, create: bool) -> Namespace:
    if settings.client_library is not None:
        return _open_library(runtime, settings, create)
    if create:
        require_root(settings.root)
    plain = LocalFiles(settings.root)
    found = open_namespace(plain, settings, create=create)
    if not create:
        return _unprobed(found)
    make_lost(plain, settings.root)
    try:
        return _fit_to_mount(runtime, settings, plain, found)
    except FileFailure as failure:
        if failure.kind not in (FailureKind.DENIED, FailureKind.NO_SPACE):
            raise
        log.warning("%s: cannot be written to (%s): loading only", settings.root, failure)
        return _unprobed(found)


def _open_library(runtime: Runtime, settings: Settings, create: bool) -> Namespace:
    """A library's root can be made, but what it can do not be probed: GekkoFS' is assumed."""
    files = reach(settings)
    found = open_namespace(files, settings, create=create)
    if create:
        make_lost(files, settings.root)
    if found.record.profile is None and settings.profile is None:
        if create:
            writer = runtime.random_bytes(8).hex()
            change_settings(files, found.seal, writer, profile=GEKKOFS.to_dict())
        found = replace(found, profile=GEKKOFS)
    return _unprobed(found)


def _unprobed(found: Namespace) -> Namespace:
    """The namespace's sizes and habits, with calls that every file system knows."""
    return replace(found, profile=effective(found.profile, UNPROBED))


def _fit_to_mount(
    runtime: Runtime, settings: Settings, files: Files, found: Namespace
) -> Namespace:
    """Probe this mount; the first to do so writes the profile into the namespace."""
    root, named = settings.root, settings.profile
    for warning in mount_warnings(root):
        log.warning("%s: %s", root, warning)
    mount = probe(root, name=named)
    if found.record.profile is None and named is None:
        writer = runtime.random_bytes(8).hex()
        if mount.name == LUSTRE.name and (problem := stripe_packs(root)):
            log.warning("%s: %s", root, problem)
        change_settings(files, found.seal, writer, profile=mount.to_dict())
        return replace(found, profile=mount)
    for difference in differences(found.profile, mount):
        log.warning("%s: %s", root, difference)
    return replace(found, profile=effective(found.profile, mount))


def stripe_packs(root: str, layout: Sequence[str] | None = None) -> str:
    """Set how Lustre lays out new packs: as `layout` says, in options of `lfs setstripe`, or as
    suits packs. Empty, or what went wrong, in a sentence. A pack's own directory counts, not
    the one above it: all are given it."""
    directories = [f"{root}/{name}" for name in (PACKS, *pack_shard_dirs())]
    if layout is None:
        return striping.stripe(directories)
    return striping.stripe(directories, [layout])
