"""Which layout a lookup may ask for: what LMCache hints, what its objects say, what failed before.

A lookup carries a hint for each object group; only the memory objects of a store or load tell the
truth (drivers hint placeholders, and a serializer changes everything). So a hint is insisted on
once this process has seen it on objects, and tried first while it has seen none; otherwise the
lookup takes any layout, and the store hits only where there is one. A load that fails because the
layout was another is remembered for its key, so that it costs one failed load and no more (I8).

Under a serializer all objects are plain bytes, whatever the engine's dtype: there the engine's
dtypes, which its lookups hint before it stores, become part of the tensor format. Bounded maps
(I9); one lock around arithmetic.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sharedfs_backend.layout import LayoutDescriptor
from sharedfs_backend.lmcache_common import layout_of, layouts_of_objects
from sharedfs_backend.mp.realms import Slot

MISMATCHES_MAX = 65_536
"""Keys remembered to have another layout than ours, at about 200 bytes each."""

FORMATS = ("KV_2LTD", "UNDEFINED")
"""A hint has no tensor format: LMCache's L1 labels its objects with the first, by default of its
allocators, its drivers use the second."""

GROUPS_MAX = 4096
"""(model, object group) pairs with remembered layouts."""

Group = tuple[Slot, int]


@dataclasses.dataclass(slots=True)
class _Seen:
    hinted: set[tuple[str, ...]] = dataclasses.field(default_factory=set)
    used: set[LayoutDescriptor] = dataclasses.field(default_factory=set)


class LayoutBook:
    """See the module's text. Any thread."""

    def __init__(self, serialized: Callable[[], bool]) -> None:
        self._serialized = serialized
        self._lock = threading.Lock()
        self._groups: OrderedDict[Group, _Seen] = OrderedDict()
        self._hints: dict[int, tuple[Any, LayoutDescriptor | None]] = {}
        self._mismatched: OrderedDict[tuple[bytes, bytes], LayoutDescriptor] = OrderedDict()

    def of_objects(
        self, slot: Slot, groups: Sequence[int], objects: Sequence[Any]
    ) -> list[LayoutDescriptor]:
        """The true layout of each object; from now on hints equal to one of them are believed."""
        layouts = layouts_of_objects(objects)
        named: dict[tuple[int, LayoutDescriptor], LayoutDescriptor] = {}
        for group, layout in set(zip(groups, layouts, strict=True)):
            named[group, layout] = self._note_used((slot, group), layout)
        return [named[pair] for pair in zip(groups, layouts, strict=True)]

    def wanted(
        self, slot: Slot, group: int, desc: Any
    ) -> tuple[LayoutDescriptor | None, tuple[LayoutDescriptor, ...]]:
        """The layout a lookup may insist on, from LMCache's MemoryLayoutDesc (None: any), and those
        to ask for before: the hint, in each format its objects may come to have, while none has
        shown the truth; under a serializer, what the engine's own objects became."""
        hinted = self._read_hint(desc)
        with self._lock:
            seen = self._seen((slot, group))
            if hinted is not None:
                seen.hinted.add(hinted.dtypes)
            if self._serialized():
                tag = _serialized_format(seen.hinted)
                ours = tuple(layout for layout in seen.used if layout.tensor_format == tag)
                return None, ours if len(ours) == 1 else ()
            if hinted is None:
                return None, ()
            for layout in seen.used:
                if (layout.dtypes, layout.shapes) == (hinted.dtypes, hinted.shapes):
                    return layout, ()
            if seen.used:
                return None, ()
        return None, tuple(layout_of(hinted.shapes, hinted.dtypes, form) for form in FORMATS)

    def fitting(
        self, ours: Sequence[LayoutDescriptor], there: Sequence[LayoutDescriptor | None]
    ) -> list[LayoutDescriptor]:
        """What to load as, where a serializer stands between and the store has `there`.

        Bytes stored before any engine had told its dtypes fit every engine.
        """
        return [
            held if held is not None and _fits(held, own) else own
            for own, held in zip(ours, there, strict=True)
        ]

    def in_use(self, slot: Slot, group: int) -> list[LayoutDescriptor]:
        """Layouts this process has seen on the group's objects."""
        with self._lock:
            return list(self._seen((slot, group)).used)

    def demand(
        self,
        realm: bytes,
        digests: Sequence[bytes],
        groups: Sequence[int],
        wanted: Mapping[int, LayoutDescriptor | None],
    ) -> list[LayoutDescriptor | None] | LayoutDescriptor | None:
        """What to ask the store for: each key's group's layout, or what a failed load taught.

        `groups` is one for each key, `wanted` by group. One layout if it is the same for all.
        """
        layouts = set(wanted.values())
        if len(layouts) == 1 and not (None in layouts and self._mismatched):
            return layouts.pop()
        taught = self._mismatched
        return [
            wanted[group] or taught.get((realm, digest))
            for digest, group in zip(digests, groups, strict=True)
        ]

    def mismatch(self, realm: bytes, digest: bytes, ours: LayoutDescriptor) -> None:
        """A load wanted `ours` for this key and the store has it in another layout only."""
        with self._lock:
            self._mismatched[realm, digest] = ours
            self._mismatched.move_to_end((realm, digest))
            if len(self._mismatched) > MISMATCHES_MAX:
                self._mismatched.popitem(last=False)

    @property
    def serialized(self) -> bool:
        """Whether LMCache's serializer stands between the engine and us."""
        return self._serialized()

    @property
    def mismatches(self) -> int:
        return len(self._mismatched)

    def _note_used(self, group: Group, layout: LayoutDescriptor) -> LayoutDescriptor:
        with self._lock:
            seen = self._seen(group)
            if self._serialized():
                tag = _serialized_format(seen.hinted)
                layout = dataclasses.replace(layout, tensor_format=tag)
            if len(seen.used) >= 64:  # a driver that changes sizes; a real engine has one or two
                seen.used.clear()
            seen.used.add(layout)
        return layout

    def _seen(self, group: Group) -> _Seen:
        seen = self._groups.setdefault(group, _Seen())
        if len(self._groups) > GROUPS_MAX:
            self._groups.popitem(last=False)
        return seen

    def _read_hint(self, desc: Any) -> LayoutDescriptor | None:
        """Memoised by identity: LMCache hands in the same few descriptors for ever."""
        if desc is None:
            return None
        known = self._hints.get(id(desc))
        if known is not None and known[0] is desc:
            return known[1]
        try:
            layout = layout_of(desc.shapes, desc.dtypes, "UNDEFINED")
        except Exception:  # a placeholder of some other kind: it is a hint, no more
            layout = None
        with self._lock:
            if len(self._hints) >= 1024:
                self._hints.clear()
            self._hints[id(desc)] = (desc, layout)
        return layout


def _fits(held: LayoutDescriptor, own: LayoutDescriptor) -> bool:
    open_ended = _serialized_format(set())
    same = (held.dtypes, held.shapes) == (own.dtypes, own.shapes)
    return same and open_ended in (held.tensor_format, own.tensor_format)


def _serialized_format(hinted: set[tuple[str, ...]]) -> str:
    """`serialized:<dtypes>`; without dtypes while no engine, or more than one kind, was seen."""
    if len(hinted) != 1:
        return "serialized"
    (dtypes,) = hinted
    return f"serialized:{'+'.join(sorted(set(dtypes)))}"
