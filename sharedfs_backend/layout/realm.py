"""Realm and layout: what must agree before two engines may share a chunk (I8).

A *realm* is what is known before the first byte is stored: model identity, shard, serde, hash
family, format major. A *layout* is what the memory objects say: dtypes, shapes, tensor format,
chunk tokens; its digest is the *fingerprint*. Both digests are over canonical encodings.

The realm's JSON file is for people and for `why`; stores trust its digest, not its prose. It also
carries the hash canary, which shows that two engines hash tokens differently. Must not know where
identities come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

from sharedfs_backend.layout.canonical import decode, encode, take
from sharedfs_backend.layout.errors import BadValue
from sharedfs_backend.layout.head import FORMAT_MAJOR, U64_MAX
from sharedfs_backend.layout.jsonfile import decode_json, encode_json, take_hex
from sharedfs_backend.layout.names import CANARY_BYTES
from sharedfs_backend.layout.seal import Buffer, Seal

LAYOUT_BYTES_MAX = 16 << 10
"""Of an encoded layout: some hundred shapes; keeps journal entries and headers small."""


@dataclass(frozen=True, slots=True)
class RealmDescriptor:
    """Who may share. Every field is text that must be equal, byte for byte."""

    format_major: ClassVar[int] = FORMAT_MAJOR

    model_identity: str
    identity_verified: bool
    shard: str
    serde: str
    hash_family: str

    def digest(self, seal: Seal) -> bytes:
        """16 bytes that name the realm in packs, journals, snapshots and file names."""
        fields = [self.model_identity, self.identity_verified, self.shard, self.serde]
        return seal.digest(encode(["realm", FORMAT_MAJOR, *fields, self.hash_family]))

    def to_json(self, seal: Seal, canary: bytes) -> bytes:
        """Content of the realm's file. Equal realms give equal bytes, whoever creates it."""
        if len(canary) != CANARY_BYTES:
            raise ValueError(f"a canary has {CANARY_BYTES} bytes")
        fields = {
            "canary": canary.hex(),
            "digest": self.digest(seal).hex(),
            "hash_family": self.hash_family,
            "identity_verified": self.identity_verified,
            "model_identity": self.model_identity,
            "serde": self.serde,
            "shard": self.shard,
        }
        return encode_json("realm", fields, seal)

    @classmethod
    def from_json(cls, data: Buffer, seal: Seal) -> RealmFile:
        """Descriptor and canary of a realm's file, its digest recomputed."""
        fields = decode_json("realm", data, seal)
        descriptor = cls(
            model_identity=_text(fields, "model_identity"),
            identity_verified=take(fields, "identity_verified", bool),
            shard=_text(fields, "shard"),
            serde=_text(fields, "serde"),
            hash_family=_text(fields, "hash_family"),
        )
        if descriptor.digest(seal) != take_hex(fields, "digest", 16):
            raise BadValue("the digest is not that of the descriptor")
        return RealmFile(descriptor, take_hex(fields, "canary", CANARY_BYTES))


@dataclass(frozen=True, slots=True)
class RealmFile:
    """What a file below `realms/` says; both parts must agree with the file's name."""

    descriptor: RealmDescriptor
    canary: bytes


@dataclass(frozen=True, slots=True)
class LayoutDescriptor:
    """How the bytes of an entry are to be read. `chunk_tokens` is 0 where it is not known."""

    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    tensor_format: str
    chunk_tokens: int
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = (self.dtypes, self.shapes, self.tensor_format, self.chunk_tokens)
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        """Computed once: a layout is looked up for every chunk."""
        return self._hash

    def encode(self) -> bytes:
        """Canonical bytes. ValueError for what `decode` would not accept."""
        fields: list[Any] = [list(self.dtypes), [list(shape) for shape in self.shapes]]
        try:
            data = encode(["layout", *fields, self.tensor_format, self.chunk_tokens])
            _decode_layout(data)
        except (BadValue, TypeError, OverflowError) as error:
            raise ValueError(str(error)) from error
        return data

    @classmethod
    def decode(cls, data: bytes) -> LayoutDescriptor:
        """The layout; BadValue also for an encoding that is not the canonical one."""
        return _decode_layout(data)

    def fingerprint(self, seal: Seal) -> bytes:
        """16 bytes that are equal only for equal layouts."""
        return seal.digest(self.encode())


@lru_cache(maxsize=256)  # a journal names the same few layouts thousands of times
def _decode_layout(data: bytes) -> LayoutDescriptor:
    if len(data) > LAYOUT_BYTES_MAX:
        raise BadValue(f"a layout of {len(data)} bytes exceeds {LAYOUT_BYTES_MAX}")
    parts = decode(data)
    if type(parts) is not list or len(parts) != 5 or parts[0] != "layout":
        raise BadValue("not a layout")
    _tag, dtypes, shapes, tensor_format, chunk_tokens = parts
    right = (
        _list_of(dtypes, str)
        and _list_of(shapes, list)
        and all(_list_of(shape, int) and all(0 <= n <= U64_MAX for n in shape) for shape in shapes)
        and type(tensor_format) is str
        and type(chunk_tokens) is int
        and chunk_tokens >= 0
    )
    if not right:
        raise BadValue("a field of the layout has the wrong type")
    layout = LayoutDescriptor(
        tuple(dtypes), tuple(tuple(shape) for shape in shapes), tensor_format, chunk_tokens
    )
    if encode(parts) != data:
        raise BadValue("the layout is not in canonical form")
    return layout


def _list_of(value: Any, kind: type) -> bool:
    return type(value) is list and all(type(item) is kind for item in value)


def _text(fields: dict[str, Any], key: str) -> str:
    text = take(fields, key, str)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadValue(f"field {key!r} is not Unicode text") from None
    return text
