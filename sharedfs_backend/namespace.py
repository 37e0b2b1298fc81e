"""Opening and creating a namespace: its directories, its format, its settings, its realms' files.

Creating is idempotent and safe to race: every creator makes the same directories and writes the
same bytes into NAMESPACE.json (I3), which comes last, so whoever sees it sees a whole namespace. A
torn or damaged one is simply written again, over the old bytes: on some file systems a crash of its
creator leaves garbage, and a name created a second time loses data. Settings are never changed in
place: a change is a new file with a higher number, and the highest valid one counts. What was
removed of the directories is made again (`directories`). Nothing here runs on a request path.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, replace

from sharedfs_backend import directories
from sharedfs_backend.exceptions import (
    NamespaceError,
    NamespaceMissing,
    NamespaceNewer,
    SecretMismatch,
)
from sharedfs_backend.files import NAMED, FailureKind, FileFailure, Files, Handle, Profile
from sharedfs_backend.layout import (
    JOURNALS,
    NAMESPACE_PATH,
    PACKS,
    REALMS,
    SETTINGS,
    SNAPSHOTS,
    BadChecksum,
    FormatError,
    NewerVersion,
    Seal,
    SettingsRecord,
    decode_namespace,
    decode_settings,
    encode_namespace,
    encode_settings,
    is_intact_namespace,
    parse_settings_name,
    settings_path,
)
from sharedfs_backend.lostjournals import LASTING
from sharedfs_backend.settings import Settings
from sharedfs_backend.snapshots import read_whole, recognised

log = logging.getLogger(__name__)

SMALL_FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Namespace:
    """What every process must know before it may touch the rest."""

    seal: Seal
    record: SettingsRecord
    profile: Profile


def seal_of(settings: Settings) -> Seal:
    """The seal of the secret in `secret_file`, or the unkeyed one. ConfigError if unreadable."""
    if settings.secret_file is None:
        return Seal()
    try:
        with open(settings.secret_file, "rb") as file:
            material = file.read(SMALL_FILE_BYTES_MAX).strip()
    except OSError as error:
        raise NamespaceError(
            f"secret_file {settings.secret_file}: {error.strerror}; create it with "
            "`head -c 32 /dev/urandom | base64 > FILE` on one node and copy it to the others"
        ) from None
    if not material:
        raise NamespaceError(f"secret_file {settings.secret_file} is empty")
    return Seal.from_material(material)


def require_root(root: str) -> None:
    """The root exists, or can be made inside an existing directory.

    A missing parent is refused: most likely the file system is not mounted, and everything would
    silently go to the local disk.
    """
    if os.path.isdir(root):
        return
    parent = os.path.dirname(root.rstrip("/")) or "/"
    if not os.path.isdir(parent):
        raise NamespaceMissing(
            f"{root}: neither it nor {parent} exists; is the shared file system mounted here?"
        )
    try:
        os.mkdir(root)
    except FileExistsError:
        pass  # another process was quicker
    except OSError as error:
        raise NamespaceMissing(f"{root}: cannot be created: {error.strerror}") from None


def open_namespace(files: Files, settings: Settings, *, create: bool = True) -> Namespace:
    """The namespace below `files`' root, created if it is not there and `create`.

    Raises NamespaceError (or a subclass) when it is somebody else's, FileFailure when the file
    system does not answer.
    """
    seal = seal_of(settings)
    data = _read_small(files, NAMESPACE_PATH)
    if data is None and not create:
        raise _missing(settings.root)
    if data is None or not _is_ours(files, data, seal, settings.root):
        if not create and not _has_directories(files):
            raise _missing(settings.root)
        _require_same_secret(files, seal, settings.root)
        _create(files, seal, len(data or b""))
    try:
        record = newest_settings(files, seal)
    except FileFailure as failure:
        if failure.kind in LASTING and failure.path.startswith(f"{SETTINGS}/"):
            raise NamespaceError(
                f"{settings.root}: {failure}: restore the file, or remove it; then "
                "`sharedfs init --cap` says the cap again"
            ) from failure
        if failure.kind is not FailureKind.MISSING:
            raise
        if not create:
            directories.require(files, settings.root)  # says what to do
        directories.make_lost(files, settings.root)
        record = newest_settings(files, seal)
    return Namespace(seal, record, _profile(settings, record))


def require_namespace(files: Files, root: str) -> None:
    """A namespace is here: its NAMESPACE.json, or, where that is lost or damaged, its directories.
    Raises NamespaceMissing. For what repairs a namespace and must not make one."""
    data = _read_small(files, NAMESPACE_PATH)
    if (data is None or not is_intact_namespace(data)) and not _has_directories(files):
        raise _missing(root)


def _missing(root: str) -> NamespaceMissing:
    return NamespaceMissing(f"{root}: no namespace here; create one with `sharedfs init {root}`")


def _is_ours(files: Files, data: bytes, seal: Seal, root: str) -> bool:
    """True for a whole NAMESPACE.json; False for a torn or damaged one of ours."""
    try:
        record = decode_namespace(data)
    except NewerVersion as error:
        raise NamespaceNewer(
            f"{root}: written by a newer version ({error}); upgrade sharedfs-backend, or use "
            "another root"
        ) from None
    except FormatError as error:
        whole = encode_namespace(seal)
        if whole.startswith(data.rstrip(b"\0")):  # torn: the size may come before the bytes
            return False
        if not is_intact_namespace(data) and _has_directories(files):
            log.warning("%s/%s: %s; it is written again", root, NAMESPACE_PATH, error)
            return False
        raise NamespaceError(
            f"{root}/{NAMESPACE_PATH}: {error}; it is no namespace: use another root"
        ) from None
    if not record.accepts(seal):
        has, given = record.seal_kind != "xxh3", seal.keyed
        if has and not given:
            reason = "it was made with a secret: set secret_file"
        elif given and not has:
            reason = "it was made without a secret: remove secret_file, or use another root"
        else:
            reason = "it was made with another secret: use the same secret_file everywhere"
        raise SecretMismatch(f"{root}: {reason}")
    return True


def _require_same_secret(files: Files, seal: Seal, root: str) -> None:
    """Whoever writes a lost NAMESPACE.json again says which secret the namespace has: it must be
    the one that its settings are sealed with, or everybody else is locked out."""
    try:
        found = recognised(parse_settings_name, files.list(SETTINGS))
    except FileFailure as failure:
        if failure.kind is not FailureKind.MISSING:
            raise
        return
    others: list[str] = []
    for number, writer in found:
        data = _read_small(files, settings_path(number, writer))
        try:
            decode_settings(data or b"", seal)
        except BadChecksum:
            others.append(settings_path(number, writer))
        except FormatError:
            continue
        else:
            return
    if others:
        raise SecretMismatch(
            f"{root}: {NAMESPACE_PATH} is lost, and {others[0]} is sealed with another secret: use "
            "the secret_file of the engines that were here before, or none if they had none; if "
            "they are right, that file is damaged: remove it"
        )


def _has_directories(files: Files) -> bool:
    """The root holds what a namespace holds, whatever NAMESPACE.json says."""
    return {PACKS, JOURNALS, SNAPSHOTS, REALMS, SETTINGS} <= set(files.list(""))


def _create(files: Files, seal: Seal, bytes_there: int) -> None:
    """`bytes_there`: how long a damaged NAMESPACE.json is; blanks cover what is left of it."""
    files.make_dir("")
    directories.make(files)
    data = encode_namespace(seal).ljust(bytes_there)
    write_whole(files, NAMESPACE_PATH, data, overwrite=True)


def _profile(settings: Settings, record: SettingsRecord) -> Profile:
    if settings.profile is not None:
        named = NAMED.get(settings.profile)
        if named is None:
            raise NamespaceError(
                f"profile = {settings.profile!r}: not one of {', '.join(sorted(NAMED))}"
            )
        return named
    if record.profile is not None:
        try:
            return Profile.from_dict(record.profile)
        except ValueError as error:
            log.warning("the namespace's profile cannot be used (%s); assuming plain POSIX", error)
    return Profile()


def newest_settings(files: Files, seal: Seal) -> SettingsRecord:
    """The valid settings record with the highest (number, writer), or the defaults."""
    found = recognised(parse_settings_name, files.list(SETTINGS))
    for number, writer in sorted(found, reverse=True):
        data = _read_small(files, settings_path(number, writer))
        if data is None:
            continue
        try:
            record = decode_settings(data, seal)
        except FormatError as error:
            log.warning("settings %d.%s are not valid (%s): passed over", number, writer, error)
            continue
        if (record.number, record.writer) == (number, writer):
            return record
    return SettingsRecord(0, "0" * 16)


def change_settings(
    files: Files, seal: Seal, writer: str, *, least: int = 0, **changes: object
) -> SettingsRecord:
    """Publish the newest settings with `changes`, as a new file numbered `least` or more."""
    newest = newest_settings(files, seal)
    number = max(newest.number + 1, least)
    record = replace(newest, number=number, writer=writer, **changes)  # type: ignore[arg-type] # field names
    write_whole(files, settings_path(record.number, writer), encode_settings(record, seal))
    return record


def is_kept(files: Files, seal: Seal, record: SettingsRecord) -> bool:
    """Whether the file of `record` still says it, listed or not."""
    data = _read_small(files, settings_path(record.number, record.writer))
    try:
        return data is not None and decode_settings(data, seal) == record
    except FormatError:
        return False


def repeat_settings(files: Files, seal: Seal, writer: str, lost: SettingsRecord) -> SettingsRecord:
    """Publish what `lost` said under the next number: the same name twice loses data."""
    record = replace(lost, number=lost.number + 1, writer=writer)
    write_whole(files, settings_path(record.number, writer), encode_settings(record, seal))
    return record


def _read_small(files: Files, path: str) -> bytes | None:
    try:
        return bytes(read_whole(files, path, SMALL_FILE_BYTES_MAX))
    except FileFailure as failure:
        if failure.kind is FailureKind.MISSING:
            return None
        raise


def write_whole(files: Files, path: str, data: bytes, *, overwrite: bool = False) -> None:
    """Create `path` holding `data`. With `overwrite` an existing file is written over."""
    try:
        handle = directories.create_in(files, path)
    except FileFailure as failure:
        if failure.kind is not FailureKind.EXISTS or not overwrite:
            raise
        handle = files.open_write(path)
    try:
        files.write(handle, 0, [data])
    except FileFailure:
        _close_quietly(files, handle)
        raise
    files.close(handle)


def _close_quietly(files: Files, handle: Handle) -> None:
    with suppress(FileFailure):  # the failed write is what the caller hears of
        files.close(handle)
