"""Canonical msgpack: one value, one encoding; and a decoder that cannot be made to allocate.

Encoding: shortest form of every item, map keys are strings in ascending order, no floats, no
extension types. Identity digests are taken over such bytes, so the encoding is part of the format.

Must not know what is encoded. Decoders get their bytes after a checksum has passed; without a
secret that does not stop an adversary, hence the limits (I6, I9).
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack  # type: ignore[import-untyped]  # it ships no types

from sharedfs_backend.layout.errors import BadValue

ARRAY_ITEMS_MAX = 4096
"""Bounds what nested empty arrays can make a decoder reserve: 4096 x 8 bytes x msgpack's depth of
about 500 is 16 MiB. Long lists are stored as byte columns instead."""

MAP_ITEMS_MAX = 256
"""No map of the format has a tenth of it; leaves room for keys of later minor versions."""

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """Canonical bytes. `value` must hold maps with sorted string keys and no floats already."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


def decode(data: bytes | memoryview) -> Any:
    """The one value that `data` encodes. BadValue for anything else."""
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            use_list=True,
            strict_map_key=True,
            max_array_len=ARRAY_ITEMS_MAX,
            max_map_len=MAP_ITEMS_MAX,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadValue(f"not canonical msgpack: {error}") from None


def take(fields: Any, key: str, kind: type[T]) -> T:
    """`fields[key]`, exactly of type `kind` (so a bool is no int). Unknown keys stay unread."""
    if type(fields) is not dict:
        raise BadValue(f"a map was expected, not {type(fields).__name__}")
    value = fields.get(key)
    if type(value) is not kind:
        raise BadValue(f"field {key!r} is {type(value).__name__}, not {kind.__name__}")
    return value


def take_uint(fields: Any, key: str, maximum: int) -> int:
    """An unsigned integer field, checked against its limit."""
    value = take(fields, key, int)
    if not 0 <= value <= maximum:
        raise BadValue(f"field {key!r} is {value}, outside 0..{maximum}")
    return value


def take_bytes(fields: Any, key: str, size: int) -> bytes:
    """A binary field of a known size."""
    value = take(fields, key, bytes)
    if len(value) != size:
        raise BadValue(f"field {key!r} has {len(value)} bytes, not {size}")
    return value
