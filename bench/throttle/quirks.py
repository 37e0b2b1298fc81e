"""Quirks: how the throttled mount misbehaves, as a value, and by the name of a file system.

`named` maps what tests/quirks.toml says of a file system to what a FUSE pass-through can imitate.
Left out, since the kernel stands in between: calls that never reach a file system (vectored calls,
fadvise, sendfile, io_uring, locks), fork and spawn, what a crash leaves, round trips per call (each
path component is a request here). Times are milliseconds, errnos their names or "" for "works".
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from tests.files import quirks as quirk_file


@dataclass(frozen=True, slots=True)
class Quirks:
    """Nothing unusual, unless said. What each does stands in src/throttle.h, beside its setting."""

    rename: str = ""
    link: str = ""
    chmod: str = ""
    utime: str = ""
    fallocate: str = ""
    append: str = ""
    direct: str = ""
    zero_times: bool = False
    excl_race_probability: float = 0.0
    """Two mounts: the second creator of a name may succeed too. (In one the kernel decides.)"""
    recreate_loses_data: bool = False
    unlink_poisons: bool = False
    unlinked_read: str = ""
    size_before_data_ms: float = 0.0
    visible_at_close: bool = False
    size_at_open: bool = False
    negative_ms: float = 0.0
    """A name that was found missing stays so."""
    attribute_ms: float = 0.0
    """Sizes and times may be so old."""
    entry_ms: float = 0.0
    """A name that was found stays so: for files,"""
    directory_ms: float = 0.0
    """and for directories (network clients mostly believe these; 0 costs one request for each)."""
    short_read_probability: float = 0.0
    short_read_holes: bool = False
    listing_stale_ms: float = 0.0
    listing_miss_probability: float = 0.0
    metadata_per_second: int = 0

    def settings(self) -> dict[str, int]:
        """As the mount is told."""
        return {
            "rename_errno": _number(self.rename),
            "link_errno": _number(self.link),
            "chmod_errno": _number(self.chmod),
            "utime_errno": _number(self.utime),
            "fallocate_errno": _number(self.fallocate),
            "append_errno": _number(self.append),
            "direct_errno": _number(self.direct),
            "zero_times": int(self.zero_times),
            "excl_race_ppm": _ppm(self.excl_race_probability),
            "recreate_loses_data": int(self.recreate_loses_data),
            "unlink_poisons": int(self.unlink_poisons),
            "unlinked_read_errno": _number(self.unlinked_read),
            "size_before_data_us": _us(self.size_before_data_ms),
            "visible_at_close": int(self.visible_at_close),
            "size_at_open": int(self.size_at_open),
            "negative_us": _us(self.negative_ms),
            "attribute_us": _us(self.attribute_ms),
            "entry_us": _us(self.entry_ms),
            "directory_us": _us(self.directory_ms),
            "short_read_ppm": _ppm(self.short_read_probability),
            "short_read_holes": int(self.short_read_holes),
            "listing_stale_us": _us(self.listing_stale_ms),
            "listing_miss_ppm": _ppm(self.listing_miss_probability),
            "metadata_per_second": self.metadata_per_second,
        }


SIZE_BEFORE_DATA_MS = 2.0
LISTING_MISS_PROBABILITY = 0.01
SHORT_READ_PROBABILITY = 0.01
"""Quirks the file states as a fact get a measure here: often enough to meet them in a short run."""


def named(name: str) -> Quirks:
    """What the file system `name` of tests/quirks.toml does. KeyError if it is not there."""
    found = quirk_file.load(name)
    return Quirks(
        rename=_refusal(found.rename),
        link=_refusal(found.link),
        chmod=_refusal(found.chmod),
        utime=_refusal(found.utime),
        fallocate=_refusal(found.fallocate),
        append=_refusal(found.o_append),
        direct=_refusal(found.o_direct),
        zero_times=found.timestamps == "zero",
        excl_race_probability=found.excl_race_probability,
        recreate_loses_data=found.recreate_loses_data,
        unlink_poisons=found.unlink_while_writing == "poisons",
        unlinked_read=_refusal(found.unlink_while_reading),
        size_before_data_ms=SIZE_BEFORE_DATA_MS if found.size_before_data else 0.0,
        visible_at_close=found.settled_by == "close",
        size_at_open=found.close_to_open,
        negative_ms=found.negative_lookup_seconds * 1e3,
        attribute_ms=found.attribute_cache_seconds * 1e3,
        short_read_probability=SHORT_READ_PROBABILITY if found.short_read == "holes" else 0.0,
        short_read_holes=found.short_read == "holes",
        listing_stale_ms=found.listing_stale_seconds * 1e3,
        listing_miss_probability=LISTING_MISS_PROBABILITY if found.listing_may_miss else 0.0,
        metadata_per_second=found.metadata_ops_per_second,
    )


def _refusal(value: str) -> str:
    return value if quirk_file.error_number(value) else ""


def _number(name: str) -> int:
    if not name:
        return 0
    number = int(getattr(errno, name, 0))
    if not number:
        raise ValueError(f"{name!r} is the name of no errno")
    return number


def _ppm(probability: float) -> int:
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"{probability!r} is no probability")
    return round(probability * 1e6)


def _us(milliseconds: float) -> int:
    if milliseconds < 0:
        raise ValueError(f"{milliseconds!r} ms is negative")
    return round(milliseconds * 1e3)
