"""Shadow: what each replica is thought to hold, as a tree of prefixes with one LRU for each holder.

A holder is a bounded cache: a replica's GPU, its host memory, or the shared tier. All share one
tree, so one walk tells what every holder has of a prompt. An edge is a run of blocks; since a
block's hash commits to all before it, comparing two runs is a bisection. Whoever holds a block
holds all before it: prompts are touched from the last edge to the first, so the oldest is a leaf.

Bounded by the holders' capacities: an edge nobody holds is dropped. Costs grow with the edges of a
prompt, not its blocks. Not thread-safe. It must not know time (but for `since`), tokens or load.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class Holder:
    """One bounded cache. `used` and `capacity` count blocks, and `entry_cost` for each edge: where
    the capacity stands for our own memory, short prompts must not take many times their share."""

    __slots__ = ("capacity", "entry_cost", "newest", "oldest", "used")

    def __init__(self, capacity: int, entry_cost: int = 0) -> None:
        self.capacity = capacity
        self.entry_cost = entry_cost
        self.used = 0
        self.oldest: Entry | None = None
        self.newest: Entry | None = None


class Node:
    """An edge of the tree: `blocks`, which follow `start` others. The root's are empty. As an array
    they take a fifth of a list's memory, and are let go at once."""

    __slots__ = ("blocks", "children", "entries", "parent", "start")

    def __init__(self, parent: Node | None, start: int, blocks: array[int]) -> None:
        self.parent = parent
        self.start = start
        self.blocks = blocks
        self.children: dict[int, Node] = {}
        self.entries: dict[Holder, Entry] = {}


class Entry:
    """That a holder has the first `count` blocks of an edge, `since` a time of the caller's."""

    __slots__ = ("count", "holder", "newer", "node", "older", "since")

    def __init__(self, holder: Holder, node: Node, count: int, since: float) -> None:
        self.holder = holder
        self.node = node
        self.count = count
        self.since = since
        self.older: Entry | None = None
        self.newer: Entry | None = None


class Path:
    """Where a prompt's blocks lead: edges, the last one perhaps only in part (`common` blocks)."""

    __slots__ = ("blocks", "common", "matched", "nodes")

    def __init__(self, blocks: Sequence[int], nodes: list[Node], common: int, matched: int) -> None:
        self.blocks = blocks
        self.nodes = nodes
        self.common = common
        self.matched = matched

    def depths(self) -> dict[Holder, int]:
        """Blocks of the prompt each holder has; holders with none are not in it."""
        found: dict[Holder, int] = {}
        for node in self.nodes:
            limit = self.matched - node.start
            for holder, entry in node.entries.items():
                count = entry.count
                found[holder] = node.start + (count if count < limit else limit)
        return found

    def depth_since(self, holder: Holder, until: float) -> int:
        """Blocks of the prompt a holder has had at time `until` already."""
        depth = 0
        for node in self.nodes:
            entry = node.entries.get(holder)
            if entry is None or entry.since > until:
                break
            depth = node.start + min(entry.count, self.matched - node.start)
        return depth


def shared_run(left: Sequence[int], right: Sequence[int], start: int = 0) -> int:
    """How many blocks of `left` equal those of `right` from `start` on, of two hash chains."""
    high, longest = len(left), len(right) - start
    high = high if high < longest else longest
    if high <= 0 or left[0] != right[start]:
        return 0
    if left[high - 1] == right[start + high - 1]:
        return high
    low = 0
    while high - low > 1:  # the first `low` are equal, the first `high` are not
        middle = (low + high) // 2
        if left[middle - 1] == right[start + middle - 1]:
            low = middle
        else:
            high = middle
    return low


class Tree:
    """All prefixes somebody holds. `blocks` counts those in it."""

    def __init__(self) -> None:
        self.root = Node(None, 0, array("Q"))
        self.blocks = 0

    def find(self, blocks: Sequence[int]) -> Path:
        """As far as the tree knows a prompt. Valid until the tree changes."""
        node, nodes, position, common, total = self.root, [], 0, 0, len(blocks)
        while position < total:
            child = node.children.get(blocks[position])
            if child is None:
                break
            common = shared_run(child.blocks, blocks, position)
            nodes.append(child)
            position += common
            if common < len(child.blocks):
                break
            node = child
        return Path(blocks, nodes, common, position)

    def found(self, edge: Node | None, blocks: Sequence[int]) -> Path:
        """The same, from the edge a prompt's last `touch` returned: usually it ends there still."""
        total = len(blocks)
        if edge is None or edge.parent is None or edge.start + len(edge.blocks) != total:
            return self.find(blocks)  # it was forgotten, shortened or split
        nodes, common = [edge], len(edge.blocks)
        while (edge := edge.parent) is not None and edge.parent is not None:
            nodes.append(edge)
        nodes.reverse()
        return Path(blocks, nodes, common, total)

    def touch(self, path: Path, holders: Sequence[Holder], since: float = 0.0) -> Node | None:
        """The holders have the whole prompt now, most recently used. `path` is used up. Returns
        the prompt's last edge."""
        nodes = path.nodes
        last = nodes[-1] if nodes else self.root
        if path.common < len(last.blocks):
            self._split(last, path.common)
        if path.matched < len(path.blocks):
            fresh = Node(last, path.matched, array("Q", path.blocks[path.matched :]))
            last.children[fresh.blocks[0]] = fresh
            self.blocks += len(fresh.blocks)
            nodes.append(fresh)
        for node in reversed(nodes):
            for holder in holders:
                _hold(holder, node, len(node.blocks), since)
        for holder in holders:
            if holder.used > holder.capacity:
                self.shrink(holder)
        return nodes[-1] if nodes else None

    def _split(self, node: Node, at: int) -> None:
        """Keeps the first blocks in `node`, so that its place in every LRU stands, and puts the
        rest below, just older."""
        lower = Node(node, node.start + at, node.blocks[at:])
        lower.children, node.children = node.children, {lower.blocks[0]: lower}
        for child in lower.children.values():
            child.parent = lower
        del node.blocks[at:]
        for holder, entry in node.entries.items():
            if entry.count > at:
                rest = Entry(holder, lower, entry.count - at, entry.since)
                lower.entries[holder] = rest
                entry.count = at
                holder.used += holder.entry_cost
                _link_before(rest, entry)

    def shrink(self, holder: Holder) -> None:
        """Forgets the least recently used of a holder until it is within its capacity."""
        while holder.used > holder.capacity and holder.oldest is not None:
            excess = holder.used - holder.capacity
            entry = holder.oldest
            if entry.count > excess:
                self._shorten(entry, entry.count - excess)
            else:
                self._remove(entry)

    def cut(self, blocks: Sequence[int], holder: Holder, depth: int) -> None:
        """The holder has no more than `depth` of these blocks, and nothing that needs the rest."""
        doomed: list[Entry] = []
        for node in self.find(blocks).nodes:
            entry = node.entries.get(holder)
            keep = depth - node.start
            if entry is None or entry.count <= keep:
                continue
            doomed.append(entry)
            break
        for entry in doomed:  # grows: parents come before their children
            below = (child.entries.get(holder) for child in entry.node.children.values())
            doomed += [each for each in below if each is not None]
        for entry in reversed(doomed[1:]):
            self._remove(entry)
        for entry in doomed[:1]:
            keep = depth - entry.node.start
            if keep > 0:
                self._shorten(entry, keep)
            else:
                self._remove(entry)

    def clear(self, holder: Holder) -> None:
        """The holder has nothing."""
        while holder.oldest is not None:
            self._remove(holder.oldest)

    def _shorten(self, entry: Entry, count: int) -> None:
        """Keeps only `count` blocks, and of the edge what somebody still has."""
        entry.holder.used -= entry.count - count
        entry.count = count
        self._trim(entry.node)

    def _remove(self, entry: Entry) -> None:
        _unlink(entry)
        entry.holder.used -= entry.count + entry.holder.entry_cost
        del entry.node.entries[entry.holder]
        node = entry.node
        while node.parent is not None and not node.entries and not node.children:
            self.blocks -= len(node.blocks)
            parent, node.parent = node.parent, None
            del parent.children[node.blocks[0]]
            node = parent
        self._trim(node)

    def _trim(self, node: Node) -> None:
        """Of an edge's end, only what somebody has stays."""
        if node.entries and not node.children:
            longest = 0
            for each in node.entries.values():
                longest = each.count if each.count > longest else longest
            if longest < len(node.blocks):
                self.blocks -= len(node.blocks) - longest
                del node.blocks[longest:]


def _hold(holder: Holder, node: Node, count: int, since: float) -> None:
    entry = node.entries.get(holder)
    if entry is None:
        entry = node.entries[holder] = Entry(holder, node, count, since)
        holder.used += count + holder.entry_cost
    else:
        if count > entry.count:
            holder.used += count - entry.count
            entry.count, entry.since = count, since
        if entry is holder.newest:
            return
        _unlink(entry)
    entry.older, entry.newer = holder.newest, None
    if holder.newest is None:
        holder.oldest = entry
    else:
        holder.newest.newer = entry
    holder.newest = entry


def _link_before(entry: Entry, newer: Entry) -> None:
    older = newer.older
    entry.older, entry.newer, newer.older = older, newer, entry
    if older is None:
        entry.holder.oldest = entry
    else:
        older.newer = entry


def _unlink(entry: Entry) -> None:
    older, newer, holder = entry.older, entry.newer, entry.holder
    if older is None:
        holder.oldest = newer
    else:
        older.newer = newer
    if newer is None:
        holder.newest = older
    else:
        newer.older = older
    entry.older = entry.newer = None
