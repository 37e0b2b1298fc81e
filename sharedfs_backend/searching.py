"""The catalog's lookup, compiled: optional, and never anything but faster.

It reads the catalog's own arrays, whose memory is reserved once and never moves; the caller holds
the catalog's lock. Calls keep the interpreter's lock too: they take microseconds, and whoever lets
go of that may wait for it much longer.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np

from sharedfs_backend.buffers import address_of
from sharedfs_backend.catalog_values import KEY_BYTES
from sharedfs_backend.keytable import I32, KeyTable
from sharedfs_backend.native import ABI, library_path
from sharedfs_backend.packtable import I64, PackTable
from sharedfs_backend.rows import Rows


class _Tables(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_void_p)
        for name in (
            *("tags", "passed", "slots", "mask", "keys", "packs", "flags"),
            *("space", "suspended_until", "numbers"),
        )
    ] + [(name, ctypes.c_int64) for name in ("shards", "shard_shift", "base_shift")]


class _Question(ctypes.Structure):
    _fields_ = [
        ("spaces", ctypes.c_void_p),
        ("realm_of_space", ctypes.c_void_p),
        ("spaces_differ", ctypes.c_int64),
        ("realm", ctypes.c_int64),
        ("now", ctypes.c_double),
    ]


class _Answer(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("rows", "numbers", "spaces")]


class Search:
    """Lookups in one catalog's tables. Not thread-safe: the catalog's lock covers it."""

    def __init__(
        self, library: ctypes.PyDLL, table: KeyTable, rows: Rows, packs: PackTable
    ) -> None:
        """Raises AttributeError where the library was built before this function was there."""
        getattr(library, ABI)
        self._call = library.sf_search
        self._call.restype = None
        pointer = ctypes.c_void_p
        self._call.argtypes = (pointer, pointer, ctypes.c_char_p, ctypes.c_int64, pointer)
        parts = table.parts()
        self._arrays = (
            *(parts.tags, parts.passed, table.slots, parts.mask),
            *(rows.keys, rows.packs, rows.flags),
            *(packs.space, packs.suspended_until, packs.numbers),
        )
        addresses = [address_of(array) for array in self._arrays]
        sizes = (len(parts.mask), parts.shard_shift, parts.base_shift)
        self._tables = _Tables(*addresses, *sizes)
        self._question, self._answer = _Question(), _Answer()
        self._one_space: I32 = np.zeros(1, np.int32)
        self._places = tuple(map(ctypes.addressof, (self._tables, self._question, self._answer)))

    def __call__(
        self, keys: bytes, spaces: int | I32, realm: int, realm_of_space: I32, now: float
    ) -> tuple[I64, I64, I32]:
        """(rows, pack ids, spaces) of the joined keys, as `Catalog` documents them."""
        count = len(keys) // KEY_BYTES
        rows, numbers = np.empty(count, np.int64), np.empty(count, np.int64)
        found = np.empty(count, np.int32)
        asked: I32 = self._one_space
        if isinstance(spaces, int):
            asked[0] = spaces
        else:
            asked = np.ascontiguousarray(spaces, np.int32)
            if len(asked) != count:
                raise ValueError(f"{len(asked)} spaces for {count} keys")
        question, answer = self._question, self._answer
        question.spaces, question.realm_of_space = address_of(asked), address_of(realm_of_space)
        question.spaces_differ = asked is not self._one_space
        question.realm, question.now = realm, now
        answer.rows, answer.numbers = address_of(rows), address_of(numbers)
        answer.spaces = address_of(found)
        tables, question_at, answer_at = self._places
        self._call(tables, question_at, keys, count, answer_at)
        return rows, numbers, found


def search(table: KeyTable, rows: Rows, packs: PackTable) -> Search | None:
    """The compiled lookup over these tables, if there is one."""
    path = library_path()
    if path is None or sys.byteorder != "little":
        return None
    try:
        return Search(ctypes.PyDLL(str(path)), table, rows, packs)
    except (AttributeError, OSError):  # told by `loops`, which finds the same
        return None
