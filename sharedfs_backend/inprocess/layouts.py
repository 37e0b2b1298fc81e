"""Which layout a chunk of this engine has, and which memory to ask for (I8).

The layout of a full chunk follows from LMCache's metadata. The last chunk of a prompt may hold
fewer tokens (`save_unfull_chunk`): how many is not in its key, so the store is asked what it has,
and that is taken only if it differs from the full layout in the number of tokens alone. What a load
would refuse, a lookup then does not promise.

Layer groups become known only when the engine registers its caches, so the layout is derived when
asked for. Thread-safe: values are replaced, never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sharedfs_backend.layout import LayoutDescriptor
from sharedfs_backend.lmcache_common import layout_of


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of chunk: its full layout, and the axis that counts tokens in each tensor."""

    full: LayoutDescriptor
    token_axis: int

    def fits(self, found: LayoutDescriptor) -> bool:
        """Whether `found` is this layout with as many or fewer tokens."""
        full = self.full
        if found == full:
            return True
        if (found.dtypes, found.tensor_format) != (full.dtypes, full.tensor_format):
            return False
        if len(found.shapes) != len(full.shapes):
            return False
        return all(map(self._shortened, found.shapes, full.shapes))

    def _shortened(self, shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
        axis = self.token_axis
        return (
            len(shape) == len(full)
            and 0 < shape[axis] <= full[axis]
            and shape[:axis] == full[:axis]
            and shape[axis + 1 :] == full[axis + 1 :]
        )


class Layouts:
    """The two forms this engine's chunks may have: whole, or one layer at a time."""

    def __init__(self, metadata: Any, *, blending: bool) -> None:
        self._metadata = metadata
        self._blending = blending
        self._whole: tuple[object, Form] | None = None
        self._layer = self._layer_form()

    @property
    def layers(self) -> int:
        return int(self._metadata.kv_shape[0])

    @property
    def layer(self) -> Form:
        return self._layer

    @property
    def whole(self) -> Form:
        groups = self._metadata.kv_layer_groups_manager
        known = self._whole
        if known is None or known[0] is not groups:
            tokens = int(self._metadata.kv_shape[2])
            layout = layout_of(
                self._metadata.get_shapes(tokens),
                self._metadata.get_dtypes(),
                "KV_MLA_FMT" if self._metadata.use_mla else "KV_2LTD",
            )
            known = self._whole = (groups, Form(layout, token_axis=2))
        return known[1]

    def form(self, layer: int | None) -> Form:
        return self.whole if layer is None else self._layer

    def _layer_form(self) -> Form:
        _, _, tokens, heads, head = (int(size) for size in self._metadata.kv_shape)
        width, dtypes = heads * head, [self._metadata.kv_dtype]
        if self._metadata.use_mla:
            return Form(layout_of([(tokens, width)], dtypes, "KV_MLA_FMT"), 0)
        if self._blending:
            return Form(layout_of([(2, tokens, width)], dtypes, "KV_2TD"), 1)
        return Form(layout_of([(tokens, 2, width)], dtypes, "KV_T2D"), 0)


def allocate(allocator: Any, layout: LayoutDescriptor) -> Any | None:
    """A memory object of this layout, or None. Evicts from L1 if need be, but never waits: LMCache
    would spin until memory is freed, and a request must not (I6)."""
    shapes, dtypes, fmt = _torch(layout)
    return allocator.allocate(shapes, dtypes, fmt, eviction=True, busy_loop=False)


def allocate_layers(allocator: Any, layout: LayoutDescriptor, count: int) -> list[Any] | None:
    """Memory for all layers of one chunk. As a batch, because L1 evicts layers only together."""
    shapes, dtypes, fmt = _torch(layout)
    found: list[Any] | None = allocator.batched_allocate(
        shapes[0], dtypes[0], count, fmt, eviction=True, busy_loop=False
    )
    return found


def _torch(layout: LayoutDescriptor) -> tuple[list[Any], list[Any], Any]:
    import torch
    from lmcache.v1.memory_management import MemoryFormat

    return (
        [torch.Size(shape) for shape in layout.shapes],
        [getattr(torch, name) for name in layout.dtypes],
        MemoryFormat[layout.tensor_format],
    )
