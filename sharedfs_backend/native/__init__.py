"""The loops that move and checksum bytes, compiled: optional, and never anything but faster.

`loops()` is None where they were not built (no C compiler when the package was installed), where
this Python's xxhash does not export XXH3, where a first comparison with it fails, or where
SHAREDFS_NATIVE=0 asks for that. Everything then runs in Python, with the same results, save that a
load whose reads fail half-way through a piece keeps nothing of it. Checksums of a namespace with a
secret are BLAKE3 and stay in Python.

Callers hand in addresses, and keep the memory alive and their gates entered during a call (I7). A
load alone, which may hang, passes `Doors` instead: once one is shut its memory may be gone.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib
import importlib.machinery
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import xxhash

log = logging.getLogger("sharedfs_backend")

SKIPPED, HASHED, UNIT_ENDS = range(3)
"""Marks of an extent: padding; part of a unit; the part of a unit that ends it."""

MEMORY_STEP_BYTES = 256 * 1024
"""Read from this machine's memory and then hashed: most of it is still near. No file system is
asked, so this is not what an operation is."""

COPY_BYTES = 32 * 1024
"""Hashed and then copied: what a core's first cache holds."""

DIGEST_BYTES = 16

ABI = "sf_abi_5"
"""A symbol that older builds lack."""

Extent = tuple[int, int, int]
"""(address, length in bytes, mark). Lengths are above 0."""


class _Extent(ctypes.Structure):
    _fields_ = [
        ("at", ctypes.c_void_p),
        ("length", ctypes.c_int64),
        ("mark", ctypes.c_int64),
    ]


class _Part(ctypes.Structure):
    _fields_ = [
        ("to", ctypes.c_void_p),
        ("length", ctypes.c_int64),
        ("door", ctypes.c_void_p),
    ]


Part = tuple[int, int, int]
"""(address or 0 for padding, length in bytes, address of its door). A whole unit, or padding."""


class Loaded(NamedTuple):
    """What a `Loops.load` brought. `digests[i]` is None where part i was not moved: padding, or its
    door was shut. `quickest_seconds` is that of the shortest read."""

    digests: list[bytes | None]
    read_seconds: float
    busy_seconds: float
    quickest_seconds: float


class Loops:
    """The compiled functions. Thread-safe; calls release the interpreter's lock."""

    def __init__(self, library: ctypes.CDLL, xxh3: ctypes.CDLL) -> None:
        """Raises AttributeError where either lacks a symbol."""
        getattr(library, ABI)
        # Its plain update is built for the oldest processors, half as fast as what this one can.
        widest = "128bits_update_dispatch"
        update = widest if hasattr(xxh3, f"XXH3_{widest}") else "128bits_update"
        names = ("createState", "freeState", "128bits_reset", update, "128bits_digest")
        library.sf_use(
            *(ctypes.cast(getattr(xxh3, f"XXH3_{name}"), ctypes.c_void_p) for name in names)
        )
        self._library = library
        self._read, self._write, self._copy = library.sf_read, library.sf_write, library.sf_copy
        self._read.restype = self._write.restype = ctypes.c_int64
        self._copy.restype = ctypes.c_int
        library.sf_new.restype = ctypes.c_void_p
        library.sf_delete.restype = None
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        library.sf_delete.argtypes = (pointer,)
        self._read.argtypes = (
            ctypes.c_int,
            number,
            pointer,
            number,
            number,
            ctypes.c_int,
            pointer,
        )
        self._write.argtypes = (
            ctypes.c_int,
            number,
            pointer,
            number,
            number,
            pointer,
            pointer,
            number,
            pointer,
        )
        self._copy.argtypes = (pointer, pointer, number, number, pointer, pointer)
        self._load = library.sf_load
        self._load.restype = ctypes.c_int64
        self._load.argtypes = (
            ctypes.c_int,
            number,
            pointer,
            number,
            pointer,
            number,
            pointer,
            pointer,
            pointer,
            pointer,
        )
        library.sf_shut.restype = ctypes.c_int64
        library.sf_shut.argtypes = (pointer, number)

    def read(
        self, fd: int, offset: int, extents: Sequence[Extent], step_bytes: int, flags: int
    ) -> list[bytes]:
        """Read to the extents from `offset` on, `step_bytes` at a time, each hashed at once; the
        digests of the units that end in them. Raises OSError, ENODATA where less came than asked.
        """
        table, digests, units = _prepared(extents)
        result = self._read(fd, offset, table, len(extents), step_bytes, flags, digests)
        if result:
            code = errno.ENODATA if result > 0 else -result
            raise OSError(code, os.strerror(code))
        return _split(digests, units)

    def hasher(self, stops: Sequence[int] = ()) -> NativeHasher:
        """`stops`: addresses of bytes that end a write when one is not 0 (`Gate.stop_word`)."""
        return NativeHasher(self._library, stops)

    def write(
        self,
        fd: int,
        offset: int,
        extents: Sequence[Extent],
        step_bytes: int,
        hasher: NativeHasher,
    ) -> list[bytes] | None:
        """Write the extents from `offset` on, `step_bytes` at a time, each hashed at once; the
        digests of the units that end in them, None if the hasher's stops ended it."""
        table, digests, units = _prepared(extents)
        state, stops = hasher.state, hasher.stops
        result = self._write(
            fd, offset, table, len(extents), step_bytes, state, stops, len(stops), digests
        )
        if result == -errno.ECANCELED:
            return None
        if result:
            raise OSError(-result, os.strerror(-result))
        return _split(digests, units)

    def copy(
        self, source: int, extents: Sequence[Extent], hasher: NativeHasher | None = None
    ) -> list[bytes]:
        """Hash the bytes from the address `source` on, as the extents say, and copy them there;
        the digests of the units that end in them. Whole units need no hasher."""
        table, digests, units = _prepared(extents)
        state = None if hasher is None else hasher.state
        if self._copy(source, table, len(extents), COPY_BYTES, state, digests):
            raise MemoryError("no memory for a hash state")
        return _split(digests, units)

    def load(
        self, fd: int, offset: int, buffer: int, step_bytes: int, parts: Sequence[Part], stop: int
    ) -> Loaded:
        """Read what lies at `offset` into a private buffer (its address), `step_bytes` at a time,
        hash each step and copy it to where the parts say, each inside its door; no more of it
        once the byte at the address `stop` is not 0. Raises OSError, ENODATA where less came than
        asked."""
        count = len(parts)
        table = (_Part * count)(*cast("Sequence[Any]", parts))
        moved, digests = (ctypes.c_char * count)(), (ctypes.c_char * (DIGEST_BYTES * count))()
        spent = (ctypes.c_int64 * 3)()
        result = self._load(
            fd, offset, buffer, step_bytes, table, count, stop, moved, digests, spent
        )
        if result and result != -errno.ECANCELED:
            code = errno.ENODATA if result > 0 else -result
            raise OSError(code, os.strerror(code))
        found = zip(_split(digests, count), moved.raw, strict=True)
        whole = [one if is_moved and not result else None for one, is_moved in found]
        return Loaded(whole, *(nanoseconds / 1e9 for nanoseconds in spent))

    def doors(self, count: int) -> Doors:
        """For memory in `count` parts."""
        return Doors(self._library, count)


class Doors:
    """What compiled code passes before it touches memory that somebody lent us (I7): a word for
    each part. Whoever shuts one waits until nobody is inside; then nobody gets in any more."""

    __slots__ = ("_begin", "_shut", "_words")

    def __init__(self, library: ctypes.CDLL, count: int) -> None:
        self._words = (ctypes.c_int32 * count)()
        self._begin = ctypes.addressof(self._words)
        self._shut = library.sf_shut

    def address(self, part: int) -> int:
        """Of one part's word; valid as long as somebody holds this."""
        return self._begin + 4 * part

    def shut(self) -> bool:
        """All of them. Whether nobody is inside."""
        return not self._shut(self._begin, len(self._words))

    def shut_part(self, part: int) -> bool:
        return not self._shut(self.address(part), 1)

    def is_free(self, part: int | None = None) -> bool:
        """Nobody is inside now."""
        return max(self._words if part is None else (self._words[part],), default=0) <= 1


class NativeHasher:
    """The state of one unit on its way, kept between calls. One thread at a time."""

    __slots__ = ("_library", "state", "stops")

    def __init__(self, library: ctypes.CDLL, stops: Sequence[int] = ()) -> None:
        self._library = library
        self.stops = (ctypes.c_void_p * len(stops))(*stops)
        self.state: int | None = None
        self.state = library.sf_new()
        if not self.state:
            raise MemoryError("no memory for a hash state")

    def __del__(self) -> None:
        if self.state:
            self._library.sf_delete(self.state)


_Table = ctypes.Array[_Extent]
_Digests = ctypes.Array[ctypes.c_char]


def _prepared(extents: Sequence[Extent]) -> tuple[_Table, _Digests, int]:
    """What C takes: the extents, room for the digests of their units, and how many those are."""
    units = sum(mark == UNIT_ENDS for _, _, mark in extents)
    table = (_Extent * len(extents))(*cast("Sequence[Any]", extents))
    return table, ctypes.create_string_buffer(DIGEST_BYTES * units or 1), units


def _split(digests: _Digests, units: int) -> list[bytes]:
    found = digests.raw
    return [found[at : at + DIGEST_BYTES] for at in range(0, DIGEST_BYTES * units, DIGEST_BYTES)]


def steps(extents: Sequence[Extent | Part], step_bytes: int) -> int:
    """System calls that moving these extents or parts takes, if none moves less than asked."""
    return max(1, -(-sum(length for _, length, _ in extents) // step_bytes))


@functools.cache
def loops() -> Loops | None:
    """The compiled loops, if there are any."""
    path = library_path()
    return None if path is None else _load(path)


def library_path() -> Path | None:
    """What was compiled at installation, unless the environment says not to use it."""
    if os.environ.get("SHAREDFS_NATIVE") == "0":
        return None
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_loops{suffix}")
        if path.is_file():
            return path
    return None


def _load(path: Path) -> Loops | None:
    try:
        engine = importlib.import_module("xxhash._xxhash").__file__
        found = Loops(ctypes.CDLL(str(path)), ctypes.CDLL(engine))
    except (AttributeError, ImportError, OSError) as error:
        log.warning("%s is not used: %s", path.name, error)
        return None
    source = ctypes.create_string_buffer(bytes(range(256)) * 33)  # more than a block of XXH3
    target = ctypes.create_string_buffer(len(source))
    begin, length = ctypes.addressof(target), len(source)
    digests = found.copy(ctypes.addressof(source), [(begin, length, UNIT_ENDS)])
    if digests != [xxhash.xxh3_128_digest(source.raw)] or source.raw != target.raw:
        log.warning("%s is not used: its checksums are not those of %s", path.name, engine)
        return None
    return found
