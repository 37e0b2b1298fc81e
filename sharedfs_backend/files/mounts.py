"""What a mount is and what its options cost: mountinfo text in, values and warnings out. Pure.

The text is the format of /proc/self/mountinfo, whatever machine it came from. Recognition names a
profile; it only chooses sizes and habits, since abilities are probed (probe.py). Where nothing is
certain the answer is "posix". Warnings say what an option costs here and what to mount instead.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

_KINDS = {
    "nfs": "nfs",
    "nfs4": "nfs",
    "lustre": "lustre",
    "fuse.glusterfs": "glusterfs",
}
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"})
_TYPES = {0x6969: "nfs", 0x0BD00BD0: "lustre"}
"""statfs' f_type, for where mountinfo cannot be read."""

_GEKKOFS = re.compile(r"gkfs|gekko", re.IGNORECASE)
_ESCAPE = re.compile(r"\\([0-7]{3})")

RSIZE_BYTES_MIN = 1024 * 1024
DIRECTORY_SECONDS_MAX = 60
"""The kernel's own default for acdirmax."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount. `options` are those of the mount and of the file system behind it, joined."""

    point: str
    kind: str
    source: str
    options: Mapping[str, str]


def parse_mountinfo(text: str) -> list[Mount]:
    """The mounts in a mountinfo text, in its order; lines of another shape are skipped."""
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, behind = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(behind) < 3:
            continue
        options = _options(fields[5]) | _options(behind[2])
        mounts.append(Mount(_plain(fields[4]), behind[0], _plain(behind[1]), options))
    return mounts


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """The mount that the absolute, resolved `path` lies on: the deepest, of equals the latest."""
    best: Mount | None = None
    for mount in mounts:
        inside = posixpath.commonpath([path, mount.point]) == mount.point
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def preload_client(environ: Mapping[str, str]) -> str | None:
    """The GekkoFS client library preloaded into a process with this environment, if one is."""
    for library in re.split(r"[ :]", environ.get("LD_PRELOAD", "")):
        if _GEKKOFS.search(posixpath.basename(library)):
            return library
    return None


def recognise(mount: Mount | None, statfs_type: int | None, environ: Mapping[str, str]) -> str:
    """The name of the profile to start from.

    Under a preloaded GekkoFS client its directory is in no mount table, but its statfs says type 0,
    which no kernel file system has. `statfs_type` is None where statfs failed.
    """
    if preload_client(environ) and not statfs_type:
        return "gekkofs"
    if mount is not None:
        if _GEKKOFS.search(mount.kind) or (
            mount.kind.startswith("fuse") and _GEKKOFS.search(mount.source)
        ):
            return "gekkofs"
        if mount.kind in _KINDS:
            return _KINDS[mount.kind]
        if mount.kind in _LOCAL:
            return "local"
    return _TYPES.get(statfs_type or 0, "posix")


def warnings_of(mount: Mount) -> list[str]:
    """One sentence for each option that costs hits, time or safety, with its remedy."""
    found: list[str] = []
    if "ro" in mount.options:
        found.append("it is mounted read-only, so nothing can be stored: mount it rw")
    if mount.kind == "tmpfs":
        found.append(
            "it is this machine's memory, shared with no other machine and lost with it: "
            "use a directory on a shared file system"
        )
    if _KINDS.get(mount.kind) == "nfs":
        found += _nfs_warnings(mount.options)
    return [f"{mount.point} ({mount.kind}): {text}" for text in found]


def _nfs_warnings(options: Mapping[str, str]) -> list[str]:
    found = []
    if options.get("lookupcache", "all") == "all":
        found.append(
            "a name that was asked for too early stays missing for up to a minute: "
            "mount with lookupcache=pos"
        )
    if "noac" in options or options.get("acregmax") == "0":
        found.append(
            "attributes are not cached (noac or actimeo=0), which adds a round trip to each "
            "operation and makes writes synchronous: leave that option out"
        )
    if "nocto" in options:
        found.append(
            "opening a file no longer asks the server (nocto), so what others store is found "
            "late: leave nocto out"
        )
    if _seconds(options.get("acdirmax")) > DIRECTORY_SECONDS_MAX:
        found.append(
            f"directory listings are cached for up to {options['acdirmax']} s, so new writers are "
            f"found late: mount with acdirmax={DIRECTORY_SECONDS_MAX} or less (actimeo sets it too)"
        )
    if "soft" in options or "softerr" in options:
        found.append(
            "a slow server turns into I/O errors (soft), which are misses and dropped stores: "
            "mount with hard; calls that hang are given up here in any case"
        )
    if "sync" in options:
        found.append("each write waits for the disk (sync): leave sync out")
    if 0 < _seconds(options.get("rsize")) < RSIZE_BYTES_MIN:
        found.append(
            f"reads are cut into requests of {options['rsize']} bytes: mount with "
            f"rsize={RSIZE_BYTES_MIN},wsize={RSIZE_BYTES_MIN}"
        )
    if options.get("proto", "tcp").startswith("tcp") and _seconds(options.get("nconnect")) < 2:
        found.append(
            "all requests of this machine go through one connection, which parallel reads fill: "
            "mount with nconnect=8 (Linux 5.3 or newer)"
        )
    return found


def _options(text: str) -> dict[str, str]:
    pairs = (option.partition("=") for option in text.split(",") if option)
    return {key: value for key, _, value in pairs}


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def _seconds(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
