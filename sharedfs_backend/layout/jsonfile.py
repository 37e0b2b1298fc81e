"""Small JSON files that people may read and reformat, with a checksum inside.

The checksum (32 hex digits under the key "checksum") is taken over the compact canonical form of
the object without that key: sorted keys, no spaces, ASCII. So white space may change and nothing
else. Numbers are integers; a key appears once; unknown keys are kept out of sight but covered.

Must not know what the objects mean. Versions: "format" holds [major, minor]; a later major ends in
NewerVersion before the checksum is looked at, which it may compute in another way. Serves I5, I6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from sharedfs_backend.layout.canonical import take
from sharedfs_backend.layout.errors import BadChecksum, BadMagic, BadValue, Truncated
from sharedfs_backend.layout.head import FORMAT_MAJOR, FORMAT_MINOR, require_version
from sharedfs_backend.layout.seal import Purpose, Seal

JSON_BYTES_MAX = 64 << 10
"""Far more than any of these files needs; bounds what a foreign file can make us parse."""


def encode_json(kind: str, fields: Mapping[str, Any], seal: Seal) -> bytes:
    """The file's bytes: equal fields give equal bytes, whoever encodes them."""
    whole = {**fields, "format": [FORMAT_MAJOR, FORMAT_MINOR], "kind": kind}
    whole["checksum"] = _checksum(whole, seal)
    return (json.dumps(whole, sort_keys=True, indent=2, allow_nan=False) + "\n").encode()


def decode_json(kind: str, data: bytes | bytearray | memoryview, seal: Seal) -> dict[str, Any]:
    """The object, checked. Known keys are for the caller to `take`."""
    if len(data) > JSON_BYTES_MAX:
        raise BadValue(f"{len(data)} bytes are too many for a {kind} file")
    if not bytes(data).strip():
        raise Truncated(f"an empty {kind} file")
    try:
        fields = json.loads(
            bytes(data).decode("utf-8"),
            object_pairs_hook=_object,
            parse_float=_refuse,
            parse_constant=_refuse,
        )
    except RecursionError:
        raise BadValue("JSON is nested too deeply") from None
    except ValueError as error:
        raise BadValue(f"not JSON: {error}") from None
    if type(fields) is not dict or fields.get("kind") != kind:
        raise BadMagic(f"not a {kind} file")
    _require_major(kind, fields.get("format"))
    checksum = fields.pop("checksum", None)
    try:
        right = checksum == _checksum(fields, seal)
    except (ValueError, RecursionError) as error:
        raise BadValue(f"no canonical form: {error}") from None
    if not right:
        raise BadChecksum(f"{kind} file is damaged, or sealed with another secret")
    return fields


def take_hex(fields: dict[str, Any], key: str, size: int) -> bytes:
    """A field of `size` bytes in lower-case hex."""
    text = take(fields, key, str)
    try:
        value = bytes.fromhex(text)
    except ValueError:
        raise BadValue(f"field {key!r} is not hex") from None
    if len(value) != size or value.hex() != text:
        raise BadValue(f"field {key!r} is not {size} bytes in lower-case hex")
    return value


def _require_major(kind: str, version: Any) -> None:
    if type(version) is not list or [type(part) for part in version] != [int, int]:
        raise BadValue(f"format of a {kind} file is not [major, minor]")
    require_version(version[0], f"{kind} file")


def _checksum(fields: dict[str, Any], seal: Seal) -> str:
    compact = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return seal.checksum(compact.encode(), Purpose.JSON).hex()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key appears twice")
    return fields


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not an integer")
