"""Residency: from an engine's own block hashes to ours, by the token ids its events carry. Pure.

vLLM says "stored: these blocks, after that parent, of these tokens" and "removed: these blocks".
Its hashes are its own (salted, perhaps random for each process); ours are the chain over exact
token ids (`prefix.chain`), so a block of ours (256 tokens) is resident while all engine blocks
under it are. What cannot be mapped is left out and counted in `unmapped`: blocks whose parent was
stored before we listened, and blocks with images or embeddings, whose ids do not tell their
content. So the map may know too little, never too much, as long as no event was missed.

It only speaks to asks made of token ids: exact mode's. Bounded by `NODES_MAX` (I9). It must not
know sockets or encodings.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from router.prefix import BLOCK_BYTES, chain, token_seed

NODES_MAX = 1 << 20
"""Engine blocks of one replica: 16 million tokens in blocks of 16; about 400 bytes each."""

BlockHash = bytes | int
Way = tuple[int, BlockHash]
"""A block of ours, and the engine's block in which it ends: one of perhaps several that do."""


@dataclass(slots=True)
class Residency:
    """What changed. `cleared` comes first, then `removed`, then `stored`."""

    stored: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    cleared: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """An engine's event: consecutive blocks of one sequence."""

    block_hashes: Sequence[BlockHash]
    parent: BlockHash | None
    token_ids: Sequence[int]
    block_tokens: int
    adapter: str = ""
    extra_keys: Sequence[Sequence[Any] | None] = ()
    """For each block what else its hash covers: adapter, media, salt, embeddings, in this order."""


@dataclass(slots=True)
class _Node:
    parent: BlockHash | None
    chain: int
    """Our hash at the last boundary of ours at or before this block's end."""
    tail: bytes
    """Token bytes since that boundary."""
    start_bytes: int
    end_bytes: int
    """Where in the sequence this block lies."""
    ours: set[Way] = field(default_factory=set)
    """Ways that need this block."""


class ResidencyMap:
    """One replica's. Not thread-safe."""

    def __init__(self) -> None:
        self._nodes: dict[BlockHash, _Node] = {}
        self._under: dict[int, dict[BlockHash, tuple[BlockHash, ...]]] = {}
        """Block of ours -> where it ends -> the engine's blocks under it, that way."""
        self.unmapped = 0

    def __len__(self) -> int:
        """Blocks of ours that are resident."""
        return len(self._under)

    def clear(self) -> Residency:
        """Everything is gone, or no longer known."""
        self._nodes.clear()
        self._under.clear()
        return Residency(cleared=True)

    def removed(self, block_hashes: Sequence[BlockHash]) -> Residency:
        change = Residency()
        for block_hash in block_hashes:
            node = self._nodes.pop(block_hash, None)
            for way in tuple(node.ours) if node is not None else ():
                if self._close(way):
                    change.removed.append(way[0])
        return change

    def stored(self, event: Stored) -> Residency:
        change = Residency()
        size, parent = event.block_tokens, event.parent
        for at, block_hash in enumerate(event.block_hashes):
            extra = event.extra_keys[at] if at < len(event.extra_keys) else None
            made = self._made(event, parent, extra, event.token_ids[at * size : (at + 1) * size])
            if made is None:
                self.unmapped += len(event.block_hashes) - at
                break
            node, completed = made
            known = self._nodes.get(block_hash)
            if known is not None:
                node.ours = known.ours  # said again: it is reused
            self._nodes[block_hash] = node
            first = node.start_bytes // BLOCK_BYTES * BLOCK_BYTES
            for number, ours in enumerate(completed):
                if self._complete(block_hash, ours, first + number * BLOCK_BYTES):
                    change.stored.append(ours)
            parent = block_hash
        return change

    def _made(
        self,
        event: Stored,
        parent: BlockHash | None,
        extra: Sequence[Any] | None,
        token_ids: Sequence[int],
    ) -> tuple[_Node, list[int]] | None:
        """The node of one block, and the blocks of ours that end in it."""
        others = list(extra or ())[1 if event.adapter else 0 :]
        if parent is None:
            salt = others.pop() if others and isinstance(others[-1], str) else ""
            before = _Node(None, token_seed(event.adapter, salt), b"", 0, 0)
        else:
            found = self._nodes.get(parent)
            if found is None:
                return None
            before = found
        if others or not token_ids or len(self._nodes) >= NODES_MAX:
            return None
        ids = array("I", token_ids).tobytes()
        tail = before.tail + ids
        completed = chain(tail, before.chain, BLOCK_BYTES, len(tail))
        rest = tail[len(completed) * BLOCK_BYTES :]
        last = completed[-1] if completed else before.chain
        end = before.end_bytes + len(ids)
        return _Node(parent, last, rest, before.end_bytes, end), completed

    def _complete(self, block_hash: BlockHash, ours: int, start_bytes: int) -> bool:
        """Note what lies under a block of ours that begins there; False if part of it is gone."""
        under: list[BlockHash] = []
        at: BlockHash | None = block_hash
        reached = start_bytes + BLOCK_BYTES
        while at is not None and reached > start_bytes:
            node = self._nodes.get(at)
            if node is None:
                return False
            under.append(at)
            reached, at = node.start_bytes, node.parent
        for place in under:
            self._nodes[place].ours.add((ours, block_hash))
        self._under.setdefault(ours, {})[block_hash] = tuple(under)
        return True

    def _close(self, way: Way) -> bool:
        """A block under this way is gone; whether it was the last way."""
        ours, end = way
        ways = self._under[ours]
        for place in ways.pop(end):
            if (node := self._nodes.get(place)) is not None:
                node.ours.discard(way)
        if not ways:
            del self._under[ours]
        return not ways
