"""The shadow: a tree of prefixes with one LRU for each holder, against a plain list of blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.shadow import Entry, Holder, Node, Tree, shared_run


class PlainLru:
    """Blocks, oldest first. Small, slow and obvious."""

    def __init__(self, capacity: int) -> None:
        self.blocks: list[int] = []
        self.capacity = capacity

    def touch(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            if block in self.blocks:
                self.blocks.remove(block)
            self.blocks.append(block)
        del self.blocks[: max(0, len(self.blocks) - self.capacity)]

    def depth(self, blocks: Sequence[int]) -> int:
        depth = 0
        while depth < len(blocks) and blocks[depth] in self.blocks:
            depth += 1
        return depth


def chain(*turns: int) -> list[int]:
    """Hashes that commit to all before them: three blocks for each turn."""
    blocks: list[int] = []
    for turn in turns:
        for part in range(3):
            blocks.append(hash((turn, part, *blocks[-1:])) & ((1 << 64) - 1))
    return blocks


def nodes(node: Node) -> list[Node]:
    return [node, *(each for child in node.children.values() for each in nodes(child))]


def oldest_first(holder: Holder) -> list[Entry]:
    found, entry = [], holder.oldest
    while entry:
        found.append(entry)
        entry = entry.newer
    return found


def check_sound(tree: Tree, holders: Sequence[Holder]) -> None:
    """Counts add up, nobody's edges are gone, and whoever holds an edge holds all before it."""
    all_nodes = [each for each in nodes(tree.root) if each.parent]
    assert sum(len(each.blocks) for each in all_nodes) == tree.blocks
    assert all(each.entries for each in all_nodes)
    for node in all_nodes:
        for holder, entry in node.entries.items():
            assert 0 < entry.count <= len(node.blocks)
            if node.parent is not tree.root:
                assert node.parent is not None
                assert node.parent.entries[holder].count == len(node.parent.blocks)
    for holder in holders:
        costs = [entry.count + holder.entry_cost for entry in oldest_first(holder)]
        assert sum(costs) == holder.used
        assert oldest_first(holder)[-1:] == ([holder.newest] if holder.newest else [])


def test_a_prompt_touched_is_found_whole() -> None:
    tree, holder = Tree(), Holder(100)
    tree.touch(tree.find(chain(1, 2)), [holder])
    assert tree.find(chain(1, 2)).depths() == {holder: 6}


def test_a_prompt_that_branches_off_within_an_edge_is_found_to_the_branch() -> None:
    tree, holder = Tree(), Holder(100)
    tree.touch(tree.find(chain(1, 2)), [holder])
    assert tree.find(chain(1, 3)).depths() == {holder: 3}


def test_an_unknown_prompt_is_held_by_nobody() -> None:
    tree, holder = Tree(), Holder(100)
    tree.touch(tree.find(chain(1)), [holder])
    assert tree.find(chain(2)).depths() == {}


def test_a_split_leaves_every_holder_with_what_it_had() -> None:
    tree, left, right = Tree(), Holder(100), Holder(100)
    tree.touch(tree.find(chain(1, 2)), [left])
    tree.touch(tree.find(chain(1, 3)), [right])
    assert tree.find(chain(1, 2)).depths() == {left: 6, right: 3}
    check_sound(tree, [left, right])


def test_the_end_of_the_oldest_prompt_is_forgotten_first() -> None:
    tree, holder = Tree(), Holder(7)
    tree.touch(tree.find(chain(1)), [holder])
    tree.touch(tree.find(chain(2)), [holder])
    tree.touch(tree.find(chain(3)), [holder])
    assert [tree.find(chain(turn)).depths().get(holder) for turn in (1, 2, 3)] == [1, 3, 3]


def test_a_cut_takes_what_lies_beyond_from_that_holder_only() -> None:
    tree, cut, other = Tree(), Holder(100), Holder(100)
    for turns in ((1, 2), (1, 3)):
        tree.touch(tree.find(chain(*turns)), [cut, other])
    tree.cut(chain(1, 2), cut, 2)
    assert tree.find(chain(1, 3)).depths() == {cut: 2, other: 6}
    check_sound(tree, [cut, other])


def test_what_nobody_holds_is_dropped_from_the_tree() -> None:
    tree, holder = Tree(), Holder(100)
    tree.touch(tree.find(chain(1, 2)), [holder])
    tree.touch(tree.find(chain(1, 3)), [holder])
    tree.clear(holder)
    assert (tree.blocks, tree.root.children, holder.used) == (0, {}, 0)


def test_blocks_count_from_the_time_their_holder_got_them() -> None:
    tree, holder = Tree(), Holder(100)
    tree.touch(tree.find(chain(1)), [holder], since=5.0)
    tree.touch(tree.find(chain(1, 2)), [holder], since=9.0)
    path = tree.find(chain(1, 2))
    assert [path.depth_since(holder, at) for at in (4.0, 5.0, 8.0, 9.0)] == [0, 3, 3, 6]


def test_short_prompts_count_for_what_remembering_them_takes() -> None:
    tree, holder = Tree(), Holder(1000, entry_cost=7)
    for number in range(1000):
        tree.touch(tree.find(chain(number)), [holder])
    assert tree.blocks == 300


def test_a_holder_without_room_holds_nothing() -> None:
    tree, holder = Tree(), Holder(0)
    tree.touch(tree.find(chain(1, 2)), [holder])
    assert (holder.used, tree.blocks) == (0, 0)


def test_under_churn_of_distinct_prefixes_the_tree_stays_within_the_capacities() -> None:
    tree, holders = Tree(), [Holder(50), Holder(80, entry_cost=3)]
    for number in range(20_000):
        tree.touch(tree.find(chain(0, number)), [holders[number % 2]])
    assert tree.blocks <= 130
    check_sound(tree, holders)


@pytest.mark.parametrize("common", [0, 1, 2, 7, 8])
def test_the_shared_run_of_two_chains_is_found_by_bisection(common: int) -> None:
    left = [*range(common), *range(100, 108 - common)]
    assert shared_run(left, [9, 9, *range(8)], 2) == common


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.integers(0, 1 << 30))
def test_it_agrees_with_a_plain_list_of_blocks(capacity: int, seed: int) -> None:
    """After any sequence of prompts each holder has exactly what a plain LRU of blocks has."""
    rng = random.Random(seed)
    tree = Tree()
    pairs = [(Holder(capacity), PlainLru(capacity)), (Holder(25), PlainLru(25))]
    for _ in range(60):
        blocks = chain(*rng.choices(range(3), k=rng.randint(1, 5)))
        blocks = blocks[: rng.randint(1, len(blocks))]
        holder, plain = rng.choice(pairs)
        tree.touch(tree.find(blocks), [holder])
        plain.touch(blocks)
        probe = chain(*rng.choices(range(3), k=4))
        depths = tree.find(probe).depths()
        for each, model in pairs:
            assert depths.get(each, 0) == model.depth(probe)
            assert each.used == len(model.blocks)
    check_sound(tree, [holder for holder, _ in pairs])


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.integers(0, 1 << 30))
def test_a_prompts_last_edge_leads_where_a_walk_from_the_root_does(
    capacity: int, seed: int
) -> None:
    """However much was split, shortened or forgotten since."""
    rng = random.Random(seed)
    tree, holder, other = Tree(), Holder(capacity), Holder(30)
    edges: list[tuple[list[int], Node | None]] = []
    for _ in range(60):
        blocks = chain(*rng.choices(range(3), k=rng.randint(1, 5)))
        blocks = blocks[: rng.randint(0, len(blocks))]
        edges.append((blocks, tree.touch(tree.find(blocks), [rng.choice((holder, other))])))
        for known, edge in edges:
            found, walked = tree.found(edge, known), tree.find(known)
            assert found.nodes == walked.nodes
            assert (found.common, found.matched) == (walked.common, walked.matched)
