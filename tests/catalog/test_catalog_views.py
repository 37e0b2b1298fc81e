"""Recency, condemnation, paging and copies: one claim each."""

from __future__ import annotations

import random

import numpy as np

from sharedfs_backend.catalog import ANY_SPACE, Catalog
from sharedfs_backend.layout import ChunkEntry, EntryTable
from tests.catalog.reference import entry
from tests.catalog.test_catalog_limits import FINGERPRINT, REALM, add, chunks, find, name


def three_packs() -> tuple[Catalog, list[tuple[ChunkEntry, ...]]]:
    rng, catalog = random.Random(1), Catalog(1024)
    packs = [chunks(rng, 4) for _ in range(3)]
    for at, pack in enumerate(packs):
        assert add(catalog, at, pack)
    return catalog, packs


def parents(catalog: Catalog) -> dict[int, int]:
    facts = catalog.facts()
    return dict(zip(facts.pack_ids.tolist(), facts.parents.tolist(), strict=True))


def test_a_lookup_makes_its_packs_recent_and_chains_them() -> None:
    catalog, packs = three_packs()
    asked = [*packs[2], *packs[0], chunks(random.Random(9), 1)[0]]
    catalog.touch(catalog.find(b"".join(row.key for row in asked), 0).pack_ids.tolist(), 50.0)
    assert [catalog.last_lookup_of(at) for at in (0, 1, 2)] == [50.0, 1.0, 50.0]
    assert parents(catalog) == {0: 2, 1: -1, 2: -1}


def test_a_lookup_whose_packs_alternate_makes_no_cycle() -> None:
    catalog, _ = three_packs()
    catalog.touch([0, 1, 0, 1, 2, 0], 9.0)
    assert parents(catalog) == {0: -1, 1: 0, 2: 1}


def test_a_miss_touches_nothing() -> None:
    catalog, _ = three_packs()
    catalog.touch([-1, -1], 9.0)
    catalog.touch([], 9.0)
    catalog.touch([77], 9.0)
    assert [catalog.last_lookup_of(at) for at in (0, 1, 2, 77)] == [0.0, 1.0, 2.0, -np.inf]


def test_the_latest_touch_counts_whoever_reports_it() -> None:
    catalog, _ = three_packs()
    catalog.touch_pack(2, 1.0)
    catalog.touch_pack(1, 8.0)
    catalog.touch_pack(77, 8.0)
    assert [catalog.last_lookup_of(at) for at in (1, 2)] == [8.0, 2.0]


def test_a_condemned_chunk_is_missed_and_its_version_still_known() -> None:
    catalog, packs = three_packs()
    first, second = packs[1][:2]
    assert catalog.hide(1, first.key) == 1
    assert find(catalog, first, second) == [-1, 1] and len(catalog) == 11
    assert catalog.highest_versions(first.key, 0).tolist() == [1]
    assert add(catalog, 9, (first,), version=2)
    assert find(catalog, first, second) == [9, 1] and len(catalog) == 12
    assert catalog.highest_versions(first.key + b"?" * 16, 0).tolist() == [2, 0]


def test_hiding_twice_or_something_unknown_changes_nothing() -> None:
    catalog, packs = three_packs()
    assert [catalog.hide(1, None), catalog.hide(1, None), catalog.hide(77, None)] == [4, 0, 0]
    assert catalog.hide(0, packs[1][0].key) == 0
    assert len(catalog) == 8
    assert [catalog.restore(1, packs[1][0].key), catalog.restore(1, None)] == [1, 3]
    assert len(catalog) == 12


def test_a_place_used_again_inherits_nothing_from_the_pack_before() -> None:
    catalog, packs = three_packs()
    catalog.suspend(1, 1e9)
    catalog.hide(1, None)
    catalog.touch([0, 1], 5.0)
    catalog.remove_pack(1)
    assert add(catalog, 8, packs[1])
    assert find(catalog, *packs[1]) == [8] * 4
    assert parents(catalog) == {0: -1, 2: -1, 8: -1} and catalog.last_lookup_of(8) == 8.0


def test_an_id_that_outlives_its_pack_finds_nothing() -> None:
    catalog, _ = three_packs()
    catalog.remove_pack(1)
    catalog.remove_pack(1)
    assert catalog.entries_of(1) is None and catalog.last_lookup_of(1) == -np.inf
    assert catalog.pack_count == 2


def test_a_duplicate_pack_is_told_by_what_is_chosen_from_it() -> None:
    catalog, packs = three_packs()
    assert add(catalog, 5, packs[1])
    facts = catalog.facts()
    assert dict(zip(facts.pack_ids.tolist(), facts.chosen.tolist(), strict=True))[5] == 0
    assert facts.counts.tolist() == [4, 4, 4, 4]


def test_a_key_of_two_layouts_is_found_only_by_who_knows_the_layout() -> None:  # I2
    catalog, packs = three_packs()
    other = catalog.space(REALM, b"g" * 16)
    row = packs[0][0]
    assert catalog.add_pack(9, name(9), other, 1, EntryTable.from_entries([row]), now=0.0)
    assert catalog.find(row.key, ANY_SPACE, realm=REALM).hits == [False]
    assert catalog.find(row.key, other).pack_ids.tolist() == [9]
    assert find(catalog, row) == [0]
    found = catalog.find(packs[0][1].key, ANY_SPACE, realm=REALM)
    assert (found.pack_ids.tolist(), found.spaces.tolist()) == ([0], [0])


def test_realms_do_not_see_each_other() -> None:  # I8
    catalog, packs = three_packs()
    foreign = catalog.space(b"s" * 16, FINGERPRINT)
    assert catalog.find(packs[0][0].key, foreign).hits == [False]
    assert catalog.find(packs[0][0].key, ANY_SPACE, realm=b"s" * 16).hits == [False]
    assert catalog.spaces() == [(REALM, FINGERPRINT), (b"s" * 16, FINGERPRINT)]


def test_pages_list_every_findable_entry_once() -> None:
    catalog, packs = three_packs()
    catalog.hide(1, packs[1][2].key)
    seen, cursor = list[tuple[int, bytes, int]](), 0
    while True:
        page = catalog.page(cursor, 3, realm=REALM)
        seen.extend(page.entries)
        if page.cursor is None:
            break
        assert len(page.entries) == 3
        cursor = page.cursor
    want = [(at, row.key, row.length) for at, pack in enumerate(packs) for row in pack]
    assert seen == [item for item in want if item[1] != packs[1][2].key]
    assert catalog.page(0, 3, realm=b"s" * 16).entries == ()


def test_a_page_goes_on_when_rows_moved_meanwhile() -> None:
    rng, catalog = random.Random(5), Catalog(40_000)
    packs = [chunks(rng, count) for count in (7000, 5000, 5000, 5000)]
    for at, pack in enumerate(packs):
        assert add(catalog, at, pack)
    first = catalog.page(0, 13_000)
    assert first.cursor is not None
    catalog.remove_pack(0)
    assert catalog.compaction_steps > 0
    rest = catalog.page(first.cursor, 100_000)
    keys = [key for _, key, _ in (*first.entries, *rest.entries)]
    assert keys == [row.key for pack in packs for row in pack] and rest.cursor is None


def test_a_pack_is_given_back_as_it_came_in() -> None:
    rng, catalog = random.Random(6), Catalog(1024)
    rows = tuple(entry(rng, key) for key in (b"a" * 16, b"b" * 16, b"a" * 16))
    assert add(catalog, 0, rows)
    table = catalog.entries_of(0)
    assert table is not None and tuple(table) == rows


def test_holes_behind_a_pack_that_stays_are_closed_without_a_trace() -> None:
    """The oldest pack is the one everybody asks for, the next ones went."""
    rng, catalog = random.Random(6), Catalog(40_000)
    packs = [chunks(rng, 10) for _ in range(900)]
    for at, pack in enumerate(packs):
        assert add(catalog, at, pack)
    gone = [*range(1, 250), *range(450, 650)]
    for at in gone:
        catalog.remove_pack(at)
    assert catalog.compaction_steps > 0
    kept = [(at, row.key) for at, pack in enumerate(packs) if at not in gone for row in pack]
    found = catalog.find(b"".join(key for _, key in kept), ANY_SPACE, realm=REALM)
    assert found.pack_ids.tolist() == [at for at, _ in kept]
    for at in {*range(1, 900)} - {*gone}:
        catalog.remove_pack(at)
    assert [key for _, key, _ in catalog.page(0, 100).entries] == [row.key for row in packs[0]]
