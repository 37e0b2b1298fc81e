"""Digests and checksums: one object that holds the namespace's secret, or the lack of one.

Two questions, never mixed up. *Identity* (`digest`) names things and is always BLAKE3, keyed when
there is a secret. *Integrity* (`checksum`) finds damage: xxh3-128 without a secret (accidents
only), keyed BLAKE3 with one (also adversaries). With a secret every purpose has its own key,
derived by BLAKE3's derive_key, so a checksum made for one place proves nothing in another.

Keeps I2: a chunk's checksum is the checksum over the checksums of its units of `UNIT_BYTES`, so
units are verified in any order while still in the CPU cache. Must not know what it is protecting.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import xxhash
from blake3 import blake3

Buffer = bytes | bytearray | memoryview
"""Anything C-contiguous that these codecs accept. Wrap other objects in `memoryview`."""

UNIT_BYTES = 4 << 20
"""Unit of a chunk's checksum and of a read: large enough to amortise a round trip, small enough to
be verified while it is still in a CPU cache. Part of the format: another value, other checksums."""

DIGEST_BYTES = 16
SECRET_BYTES = 32
_CONTEXT = "sharedfs-backend 2026-01 "


class Purpose(enum.Enum):
    """What a checksum protects. The value is part of the key derivation, hence of the format."""

    PAYLOAD = "payload"
    PACK_HEADER = "pack header"
    PACK_TRAILER = "pack trailer"
    JOURNAL = "journal entry"
    SNAPSHOT = "snapshot"
    JSON = "json file"


class Hasher(Protocol):
    """An incremental checksum. Not thread-safe; one for each unit being read."""

    def update(self, data: Buffer, /) -> object: ...

    def digest(self) -> bytes: ...


class _Keyed:
    """Keyed BLAKE3 with the 16-byte digest that everything here uses."""

    __slots__ = ("_state",)

    def __init__(self, key: bytes) -> None:
        self._state = blake3(key=key)

    def update(self, data: Buffer, /) -> None:
        self._state.update(data)

    def digest(self) -> bytes:
        return self._state.digest(length=DIGEST_BYTES)


@dataclass(frozen=True, slots=True)
class Seal:
    """Computes every digest and checksum of one namespace. Immutable; usable from any thread.

    `secret` is None or exactly 32 bytes; `Seal.from_material` makes one from bytes of any length.
    """

    secret: bytes | None = field(default=None, repr=False)
    _identity: bytes = field(init=False, repr=False, compare=False, default=b"")
    _keys: dict[Purpose, bytes] = field(
        init=False, repr=False, compare=False, hash=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        if self.secret is None:
            return
        if len(self.secret) != SECRET_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} bytes, this one {len(self.secret)}")
        object.__setattr__(self, "_identity", _derive("identity", self.secret))
        self._keys.update((purpose, _derive(purpose.value, self.secret)) for purpose in Purpose)

    @classmethod
    def from_material(cls, material: bytes) -> Seal:
        """A seal whose secret is derived from a key file's stripped content (FORMAT.md), as is."""
        if not material:
            raise ValueError("an empty secret protects nothing")
        return cls(_derive("secret", material))

    @property
    def keyed(self) -> bool:
        return self.secret is not None

    def digest(self, data: Buffer) -> bytes:
        """16 bytes that stand for `data`: BLAKE3, keyed when there is a secret."""
        if self.secret is None:
            return blake3(data).digest(length=DIGEST_BYTES)
        return blake3(data, key=self._identity).digest(length=DIGEST_BYTES)

    def checksum(self, data: Buffer, purpose: Purpose = Purpose.PAYLOAD) -> bytes:
        """16 bytes that change when `data` does: xxh3-128 (big-endian), or keyed BLAKE3."""
        if self.secret is None:
            return xxhash.xxh3_128_digest(data)
        return blake3(data, key=self._keys[purpose]).digest(length=DIGEST_BYTES)

    def hasher(self, purpose: Purpose = Purpose.PAYLOAD) -> Hasher:
        """The same function as `checksum`, fed in parts."""
        if self.secret is None:
            return xxhash.xxh3_128()
        return _Keyed(self._keys[purpose])

    def chunk_checksum(self, unit_digests: Sequence[bytes]) -> bytes:
        """Checksum of a chunk from its units' checksums in order; also for one unit, or none."""
        return self.checksum(b"".join(unit_digests))

    def chunk_checksum_of(self, data: Buffer) -> bytes:
        """Checksum of a chunk that lies in memory whole."""
        view = memoryview(data).cast("B")
        starts = range(0, view.nbytes, UNIT_BYTES)
        return self.chunk_checksum([self.checksum(view[at : at + UNIT_BYTES]) for at in starts])


def _derive(purpose: str, material: bytes) -> bytes:
    return blake3(material, derive_key_context=_CONTEXT + purpose).digest()
