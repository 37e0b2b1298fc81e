"""What LMCache's memory objects say: their layout, and their bytes without a copy.

Both adapters share this. `LayoutDescriptor` is the part of the identity that only the memory
objects know (I8): dtypes, shapes, tensor format and, where the format tells, tokens per chunk.
Byte access is a `memoryview` of format "B" over the object's logical bytes; whoever holds one must
not touch it after its task is over, because LMCache frees the memory below it (I7).

Must not import the store or either adapter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from sharedfs_backend.layout.realm import LayoutDescriptor

# Tensor formats in which one dimension counts tokens. MP mode's objects are UNDEFINED: there the
# tokens are in the shapes, at a place only the engine knows.
_TOKEN_DIMENSION = {
    "KV_2LTD": 2,
    "KV_T2D": 0,
    "KV_2TD": 1,
    "KV_MLA_FMT": 2,
    "EC_TD": 0,
    "HS_TD": 0,
}


class Unreadable(Exception):
    """The object's bytes are not in this process's memory, or may not be written."""


def layout_of_object(obj: Any, chunk_tokens: int | None = None) -> LayoutDescriptor:
    """The layout of a MemoryObj, from its metadata. `chunk_tokens` overrides what it says."""
    meta = obj.meta
    shapes = meta.shapes if meta.shapes is not None else [meta.shape]
    dtypes = meta.dtypes if meta.dtypes is not None else [meta.dtype]
    return layout_of(shapes, dtypes, meta.fmt.name, chunk_tokens)


def layout_of(
    shapes: Sequence[Any], dtypes: Sequence[Any], fmt: str, chunk_tokens: int | None = None
) -> LayoutDescriptor:
    """The layout with these torch shapes and dtypes, in the memory format named `fmt`."""
    plain = tuple(tuple(int(size) for size in shape) for shape in shapes)
    if chunk_tokens is None:
        place = _TOKEN_DIMENSION.get(fmt)
        known = place is not None and len(plain) > 0 and len(plain[0]) > place
        chunk_tokens = plain[0][place] if known and place is not None else 0
    names = tuple(str(dtype).removeprefix("torch.") for dtype in dtypes)
    return LayoutDescriptor(names, plain, fmt, chunk_tokens)


def layouts_of_objects(objects: Sequence[Any]) -> list[LayoutDescriptor]:
    """One layout for each object; equal neighbours share theirs, so a batch costs one."""
    layouts: list[LayoutDescriptor] = []
    before: Any = None
    for obj in objects:
        meta = obj.meta
        seen = (meta.shapes, meta.shape, meta.dtypes, meta.dtype, meta.fmt)
        if seen != before:
            layout, before = layout_of_object(obj), seen
        layouts.append(layout)
    return layouts


class Memory:
    """Views of memory objects. With the L1 arena's place given, a view is one slice of it.

    The arena spans address space that LMCache may not have populated yet; only the slices of its
    own objects are ever touched. Immutable, any thread.
    """

    def __init__(self, arena_address: int = 0, arena_bytes: int = 0) -> None:
        self._address, self._bytes = arena_address, arena_bytes
        self._arena = memoryview(b"")
        if arena_address and arena_bytes:
            span = (ctypes.c_ubyte * arena_bytes).from_address(arena_address)
            self._arena = memoryview(span).cast("B")

    def view(self, obj: Any, *, writable: bool) -> memoryview:
        """The object's logical bytes. Raises Unreadable where it has none in this process."""
        try:
            length = obj.get_size()
            start = obj.data_ptr - self._address
            if start >= 0 and start + length <= self._bytes:
                return self._arena[start : start + length]
            view = memoryview(obj.byte_array).cast("B")
        except Exception as error:  # a device-resident object raises whatever its class likes
            raise Unreadable(f"{type(obj).__name__}: {error}") from error
        if writable and view.readonly:
            raise Unreadable(f"{type(obj).__name__}: its bytes are read-only")
        return view
