"""Settings: everything a site may change, each with its unit, default, bounds and reason.

A setting is declared once, here, as a field of `Settings`; its bounds are checked whenever a
`Settings` is made, so that one that exists is valid. Only `root` is required. `from_mapping` takes
what a JSON or YAML configuration holds; whatever is wrong there ends in a `ConfigError` that names
the setting, what is allowed, and what to do.

Pure values: nothing here touches a file, an environment variable or a clock. The rules between
durations are the ones the protocol relies on: a lease outlasts every borrowed buffer (I7), a drop
waits for the loads that began before it (I5). Every limit has an upper bound (I9).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sharedfs_backend.bounds import (
    checked,
    flag,
    is_path,
    names,
    number,
    shown,
    text,
    unknown,
    whole,
    whole_or_none,
)
from sharedfs_backend.exceptions import ConfigError

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


@dataclass(frozen=True, slots=True)
class Settings:
    """One process's view of a namespace. Every field is checked on creation (ConfigError).

    Hashable: equal settings may share one store within a process.
    """

    root: str
    """Absolute path of the namespace on the shared file system."""

    # Space
    cap_bytes: int | None = whole_or_none(
        64 * MIB, 1 << 60, "leave it out to use the namespace's own cap"
    )
    """Upper limit of everything below the root. None: what the namespace's settings say."""
    high_watermark_ratio: float = number(0.90, 0.05, 1.0)
    """Sweeping starts above this share of the cap."""
    low_watermark_ratio: float = number(0.80, 0.01, 1.0)
    """Sweeping stops below this share of the cap."""

    # Time
    lease_seconds: float = number(600.0, 0.5, 86400.0)
    """A writer silent for this long, on the observer's own clock, is dead."""
    drop_delay_seconds: float = number(30.0, 0.05, 3600.0)
    """Between a pack's drop record and its unlinking: a courtesy to loads under way."""
    refresh_seconds: float = number(1.0, 0.01, 300.0)
    """How often other writers' journals are read on."""
    refresh_ops_per_second: int = whole(100, 4, 100_000)
    """File operations per second spent on that, however many writers there are."""
    load_deadline_seconds: float = number(20.0, 0.01, 600.0)
    """A load not done by then, counted from its submission, is a miss."""
    linger_seconds: float = number(0.02, 0.0, 10.0)
    """How long a store waits for the next scheduler step's chunks of the same prefix."""
    buffer_ttl_seconds: float = number(300.0, 0.1, 86400.0)
    """How long LMCache lends us a buffer, counted from submission (its own default: 300 s)."""

    # Memory, descriptors, threads
    pack_bytes_max: int | None = whole_or_none(
        64 * KIB, 4 * GIB, "leave it out to use the file system profile's"
    )
    """Largest pack written. None: what the file system's profile says (64 to 256 MiB)."""
    linger_bytes_max: int = whole(256 * MIB, 64 * KIB, 64 * GIB)
    """A lingering batch is written at once when it holds this much."""
    dirty_bytes_max: int = whole(1 * GIB, 4 * MIB, 1 * TIB)
    """Written but not flushed bytes; beyond it store threads flush as they go."""
    buffer_bytes_max: int = whole(256 * MIB, 8 * MIB, 64 * GIB)
    """Private read buffers, all loads together."""
    queue_bytes_max: int = whole(4 * GIB, 4 * MIB, 1 * TIB)
    """Bytes accepted for storing and not yet written; while they are that many, further stores are
    dropped and counted."""
    read_threads_max: int = whole(32, 1, 1024)
    """Threads that read, all loads together."""
    write_threads_max: int = whole(8, 1, 256)
    """Threads that write, all stores together."""
    open_files_max: int = whole(512, 8, 65536, "stay well below `ulimit -n`")
    """Packs kept open for reading."""
    chunks_max: int = whole(4_000_000, 1024, 500_000_000)
    """Chunks known to the catalog, at about 100 bytes each; more are left out and counted."""
    keys_memo_max: int = whole(262_144, 1024, 100_000_000)
    """Chunk keys remembered so that they are not derived again, at about 300 bytes each."""

    # Identity (I8)
    shard: str = text("", plain=True)
    """Tells apart engines of one model that hold different ranks under one key."""
    model_identity: str | None = text(None, plain=True)
    """Stands for the weights of every model this process serves, instead of what is found."""
    model_aliases: tuple[tuple[str, str], ...] = names()
    """Model name as LMCache gives it -> model identity, for single models. Given as a mapping."""
    strict_identity: bool = flag(False)
    """A model whose weights cannot be identified is kept private instead of shared by name."""
    serde: str = text("", plain=True)
    """Tag of LMCache's serialisation around this adapter ("" for none); part of the realm."""
    secret_file: str | None = text(None, plain=False)
    """File holding the namespace's secret. None: the namespace has none."""
    audit: bool = flag(True)
    """Compare own content with what other writers stored for the same key, now and then."""
    profile: str | None = text(None, plain=True)
    """Name of the file system profile to use instead of the probed one."""
    client_library: str | None = text(None, plain=False)
    """Shared library to reach the file system through, instead of the kernel (GekkoFS)."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            if item.name != "root":
                value = checked(item.name, getattr(self, item.name), item.metadata["bound"])
                object.__setattr__(self, item.name, value)
        object.__setattr__(self, "root", _checked_root(self.root))
        for rule in _RULES:
            rule(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Settings:
        """The settings that a configuration file's mapping describes. Raises ConfigError."""
        known = [item.name for item in dataclasses.fields(cls)]
        for name in mapping:
            if name not in known:
                raise unknown(str(name), known)
        if "root" not in mapping:
            raise ConfigError(
                "root is missing: it is the one required setting; give the absolute path of the "
                "directory that all replicas share"
            )
        values: dict[str, Any] = dict(mapping)
        return cls(**values)

    def identity_override(self, model_name: str) -> str | None:
        """The configured identity of this model, or None where it must be found."""
        return dict(self.model_aliases).get(model_name, self.model_identity)


def _checked_root(root: object) -> str:
    if not isinstance(root, str) or not root.startswith("/") or not is_path(root):
        raise ConfigError(
            f"root = {shown(root)}: must be an absolute path, in UTF-8 without NUL characters; "
            "give the directory on the shared file system that all replicas use, for example "
            '"/mnt/shared/kv"'
        )
    return root.rstrip("/") or "/"


def _lease_outlasts_buffers(settings: Settings) -> None:
    """A frozen writer counts as dead only after the buffers it borrowed are void (I7)."""
    if settings.lease_seconds < 2 * settings.buffer_ttl_seconds:
        raise ConfigError(
            f"lease_seconds = {settings.lease_seconds:g}: must be at least twice "
            f"buffer_ttl_seconds ({settings.buffer_ttl_seconds:g}); raise the lease, or lower "
            "the buffer TTL if LMCache's own is lower too"
        )


def _drops_wait_for_loads(settings: Settings) -> None:
    """A load that began before it could know of a drop ends before the pack is unlinked."""
    least = settings.load_deadline_seconds + settings.refresh_seconds
    if settings.drop_delay_seconds < least:
        raise ConfigError(
            f"drop_delay_seconds = {settings.drop_delay_seconds:g}: must be at least "
            f"load_deadline_seconds + refresh_seconds ({least:g}); raise it or lower the deadline"
        )


def _watermarks_are_ordered(settings: Settings) -> None:
    if settings.low_watermark_ratio >= settings.high_watermark_ratio:
        raise ConfigError(
            f"low_watermark_ratio = {settings.low_watermark_ratio:g}: must be below "
            f"high_watermark_ratio ({settings.high_watermark_ratio:g})"
        )


_RULES: tuple[Callable[[Settings], None], ...] = (
    _lease_outlasts_buffers,
    _drops_wait_for_loads,
    _watermarks_are_ordered,
)
