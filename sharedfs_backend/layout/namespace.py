"""The two kinds of JSON file that describe a namespace as a whole.

`NAMESPACE.json` says format, kind of seal and unit size. It depends on the secret only, so racing
creators write equal bytes (I3). It never holds the secret, only a digest that tells whether one at
hand is right; its own checksum is unkeyed, so that a wrong secret and damage can be told apart.

Settings records are whole: each holds every setting, and the valid one with the highest
(number, writer) counts. Must not know profiles or caps beyond their types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sharedfs_backend.layout.canonical import encode, take, take_uint
from sharedfs_backend.layout.errors import BadValue, FormatError, NewerVersion
from sharedfs_backend.layout.head import SIZE_MAX
from sharedfs_backend.layout.jsonfile import decode_json, encode_json, take_hex
from sharedfs_backend.layout.names import COUNTER_MAX, is_writer_id
from sharedfs_backend.layout.seal import UNIT_BYTES, Buffer, Seal

UNKEYED, KEYED = "xxh3", "blake3-keyed"
_OPEN = Seal()


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """What NAMESPACE.json says. `key_check` is None where there is no secret."""

    major: int
    minor: int
    seal_kind: str
    key_check: bytes | None
    unit_bytes: int

    def accepts(self, seal: Seal) -> bool:
        """Whether `seal` is this namespace's: the right secret, or rightly none."""
        return self.key_check == _key_check(seal)


def encode_namespace(seal: Seal) -> bytes:
    """Content of NAMESPACE.json."""
    check = _key_check(seal)
    fields = {
        "key_check": None if check is None else check.hex(),
        "seal": KEYED if seal.keyed else UNKEYED,
        "unit_bytes": UNIT_BYTES,
    }
    return encode_json("namespace", fields, _OPEN)


def decode_namespace(data: Buffer) -> NamespaceRecord:
    """The record; NewerVersion for a namespace of a later major, which must not be touched."""
    fields = decode_json("namespace", data, _OPEN)
    kind = take(fields, "seal", str)
    if kind not in (UNKEYED, KEYED):
        raise BadValue(f"unknown kind of seal {kind!r}")
    if take(fields, "unit_bytes", int) != UNIT_BYTES:
        raise BadValue(f"units of {fields['unit_bytes']} bytes")
    if kind == UNKEYED and fields.get("key_check") is not None:
        raise BadValue("a key check without a keyed seal")
    check = take_hex(fields, "key_check", 16) if kind == KEYED else None
    major, minor = fields["format"]
    return NamespaceRecord(major, minor, kind, check, UNIT_BYTES)


def is_intact_namespace(data: Buffer) -> bool:
    """Whether somebody meant these bytes, whatever they say: their checksum is right."""
    try:
        decode_json("namespace", data, _OPEN)
    except NewerVersion:
        return True
    except FormatError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class SettingsRecord:
    """One record below `settings/`. `cap_bytes` None: no cap. `profile` None: not decided yet."""

    number: int
    writer: str
    cap_bytes: int | None = None
    profile: Mapping[str, str | int | bool | None] | None = field(default=None, hash=False)


def encode_settings(record: SettingsRecord, seal: Seal) -> bytes:
    """Content of the file named `settings_path(number, writer)`."""
    fields: dict[str, Any] = {
        "cap_bytes": record.cap_bytes,
        "number": record.number,
        "profile": None if record.profile is None else dict(record.profile),
        "writer": record.writer,
    }
    data = encode_json("settings", fields, seal)
    try:
        same = decode_settings(data, seal) == record
    except BadValue as error:
        raise ValueError(f"impossible settings: {error}") from None
    if not same:
        raise ValueError("settings that do not survive their own encoding")
    return data


def decode_settings(data: Buffer, seal: Seal) -> SettingsRecord:
    """The record. Number and writer must still be compared with the file's name."""
    fields = decode_json("settings", data, seal)
    writer = take(fields, "writer", str)
    if not is_writer_id(writer):
        raise BadValue(f"not a writer id: {writer!r}")
    number = take_uint(fields, "number", COUNTER_MAX)
    cap = None if fields.get("cap_bytes") is None else take_uint(fields, "cap_bytes", SIZE_MAX)
    profile = None if fields.get("profile") is None else take(fields, "profile", dict)
    for name, value in (profile or {}).items():
        if type(value) not in (str, int, bool, type(None)):
            raise BadValue(f"profile field {name!r} is {type(value).__name__}")
    return SettingsRecord(number, writer, cap, profile)


def _key_check(seal: Seal) -> bytes | None:
    return seal.digest(encode(["key check"])) if seal.keyed else None
