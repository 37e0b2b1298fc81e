"""The catalog against a reference of plain dicts, under seeded random histories."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sharedfs_backend import catalog, entries, rows
from sharedfs_backend.catalog import ANY_SPACE, Catalog, PackBatch
from sharedfs_backend.layout import EntryTable
from tests.catalog.reference import Reference, ReferencePack, entry

REALMS = (b"r" * 16, b"s" * 16)
FINGERPRINTS = (b"f" * 16, b"g" * 16, b"h" * 16)


class History:
    """Does the same to both, and compares everything that can be asked."""

    def __init__(self, seed: int, keys: int, pack_chunks_max: int) -> None:
        self.rng = random.Random(seed)
        self.keys = [self.rng.randbytes(16) for _ in range(keys)]
        self.pack_chunks_max = pack_chunks_max
        self.catalog = Catalog(chunks_max=200_000)
        spaces = [(realm, fingerprint) for realm in REALMS for fingerprint in FINGERPRINTS]
        assert [self.catalog.space(*space) for space in spaces] == list(range(len(spaces)))
        self.reference = Reference([realm for realm, _ in spaces])
        self.next_id = 0
        self.now = 100.0

    def new_pack(self) -> ReferencePack:
        rng = self.rng
        chunks = rng.randint(1, self.pack_chunks_max)
        start = rng.randrange(len(self.keys))
        keys = (self.keys[start:] + self.keys[:start])[:chunks]
        # Few versions and names, so that ties and near ties are common.
        sort_key = rng.choice([bytes(31), b"\x7f" * 31, b"\x80" * 31]) + rng.randbytes(1)
        return ReferencePack(
            sort_key if rng.random() < 0.5 else rng.randbytes(32),
            rng.randrange(len(self.reference.realm_of_space)),
            rng.randint(1, 3),
            tuple(entry(rng, key) for key in keys),
        )

    def distinct_packs(self, count: int) -> list[ReferencePack]:
        taken = {pack.sort_key for pack in self.reference.packs.values()}
        packs: list[ReferencePack] = []
        while len(packs) < count:
            pack = self.new_pack()
            if pack.sort_key not in taken:  # a name is never used twice (I1)
                taken.add(pack.sort_key)
                packs.append(pack)
        return packs

    def add_one(self) -> None:
        (pack,) = self.distinct_packs(1)
        table = EntryTable.from_entries(pack.entries)
        pack_id, self.next_id = self.next_id, self.next_id + 1
        assert self.catalog.add_pack(
            pack_id, pack.sort_key, pack.space, pack.version, table, now=self.now
        )
        self.reference.add(pack_id, pack)

    def add_many(self) -> None:
        packs = self.distinct_packs(self.rng.randint(1, 40))
        ids = np.arange(self.next_id, self.next_id + len(packs))
        self.next_id += len(packs)
        # The table holds the packs in another order than the batch, and one that is not taken.
        order = list(range(len(packs)))
        self.rng.shuffle(order)
        rows = [entry(self.rng, self.keys[0])] if self.rng.random() < 0.5 else []
        first_rows = np.zeros(len(packs), np.int64)
        for at in order:
            first_rows[at] = len(rows)
            rows.extend(packs[at].entries)
        batch = PackBatch(
            pack_ids=ids,
            sort_keys=b"".join(pack.sort_key for pack in packs),
            spaces=np.array([pack.space for pack in packs], np.int32),
            versions=np.array([pack.version for pack in packs], np.uint32),
            first_rows=first_rows,
            counts=np.array([len(pack.entries) for pack in packs]),
            entries=EntryTable.from_entries(rows),
            first_seen=np.full(len(packs), self.now),
            last_lookup=np.full(len(packs), self.now),
        )
        assert self.catalog.add_packs(batch).all()
        for pack_id, pack in zip(ids.tolist(), packs, strict=True):
            self.reference.add(pack_id, pack)

    def some_pack(self) -> int:
        return self.rng.choice(list(self.reference.packs) or [12345])

    def remove(self) -> None:
        pack_id = self.some_pack()
        self.catalog.remove_pack(pack_id)
        self.reference.remove(pack_id)

    def hide(self) -> None:
        pack_id = self.some_pack()
        pack = self.reference.packs.get(pack_id)
        if pack is None or self.rng.random() < 0.3:
            self.catalog.hide(pack_id, None)
            if pack is not None:
                pack.hidden.update(row.key for row in pack.entries)
        else:
            key = self.rng.choice(pack.entries).key
            self.catalog.hide(pack_id, key)
            pack.hidden.add(key)

    def restore(self) -> None:
        pack_id = self.some_pack()
        self.catalog.restore(pack_id, None)
        if pack_id in self.reference.packs:
            self.reference.packs[pack_id].hidden.clear()

    def suspend(self) -> None:
        pack_id, until = self.some_pack(), self.now + self.rng.choice([0.0, 5.0])
        self.catalog.suspend(pack_id, until)
        if pack_id in self.reference.packs:
            self.reference.packs[pack_id].suspended_until = until

    def step(self) -> None:
        acts = [self.add_one, self.add_many, self.remove, self.hide, self.restore, self.suspend]
        self.rng.choices(acts, [4, 1, 6, 2, 1, 1])[0]()
        self.now += self.rng.choice([0.0, 1.0])

    def check_lookups(self) -> None:
        asked = self.rng.choices(self.keys, k=200) + [self.rng.randbytes(16) for _ in range(20)]
        spaces = [self.rng.randrange(6) for _ in asked]
        realm = self.rng.choice(REALMS)
        joined, now = b"".join(asked), self.now
        exact = self.catalog.find(joined, np.array(spaces, np.int32), now=now)
        reference = self.reference
        wanted = [reference.find(k, s, now) for k, s in zip(asked, spaces, strict=True)]
        assert exact.pack_ids.tolist() == wanted
        assert exact.hits == [pack_id >= 0 for pack_id in wanted]
        free = self.catalog.find(joined, ANY_SPACE, realm=realm, now=now)
        assert free.pack_ids.tolist() == [reference.find_any(k, realm, now) for k in asked]
        mixed_spaces = np.array([s if s % 2 else ANY_SPACE for s in spaces], np.int32)
        mixed = self.catalog.find(joined, mixed_spaces, realm=realm, now=now)
        assert mixed.pack_ids.tolist() == [
            (exact if space % 2 else free).pack_ids[i] for i, space in enumerate(spaces)
        ]
        versions = self.catalog.highest_versions(joined, 2).tolist()
        assert versions == [reference.highest_version(key, 2) for key in asked]

    def check_all(self) -> None:
        self.check_lookups()
        reference, catalog = self.reference, self.catalog
        assert len(catalog) == reference.findable()
        assert catalog.pack_count == len(reference.packs)
        assert catalog.row_count == sum(len(pack.entries) for pack in reference.packs.values())
        for pack_id, pack in reference.packs.items():
            found = catalog.entries_of(pack_id)
            assert found is not None and tuple(found) == pack.entries
        facts = catalog.facts()
        chosen = {pack_id: 0 for pack_id in reference.packs}
        for holder in reference.chosen.values():
            chosen[holder] += 1
        assert dict(zip(facts.pack_ids.tolist(), facts.chosen.tolist(), strict=True)) == chosen
        located = catalog.locate(b"".join(self.keys), 1, now=self.now)
        for i, key in enumerate(self.keys):
            pack_id = reference.find(key, 1, self.now)
            assert located.pack_ids[i] == pack_id
            if pack_id >= 0:
                row = next(e for e in reference.packs[pack_id].entries if e.key == key)
                got = (int(located.offsets[i]), int(located.lengths[i]), located.checksum(i))
                assert got == (row.offset, row.length, row.checksum)


@pytest.mark.parametrize("seed", range(12))
def test_any_history_leaves_what_the_reference_says(seed: int) -> None:
    history = History(seed, keys=400, pack_chunks_max=60)
    for number in range(150):
        history.step()
        if number % 10 == 0:
            history.check_lookups()
    history.check_all()


@pytest.mark.parametrize("seed", [100, 101])
def test_large_packs_and_many_removals_compact_without_a_trace(seed: int) -> None:
    history = History(seed, keys=6000, pack_chunks_max=5000)
    for _ in range(60):
        history.add_one()
        if history.rng.random() < 0.7:
            history.remove()
        history.check_lookups()
    history.check_all()
    assert history.catalog.compaction_steps > 0


def test_histories_compact_all_the_time_where_steps_are_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "HOLES_MIN", 4)
    for module in (rows, entries, catalog):
        monkeypatch.setattr(module, "STEP_ROWS", 16)
    steps = 0
    for seed in range(200, 216):
        history = History(seed, keys=60, pack_chunks_max=30)
        for number in range(150):
            history.step()
            if number % 10 == 0:
                history.check_lookups()
        history.check_all()
        steps += history.catalog.compaction_steps
    assert steps > 100


def test_keys_that_differ_in_few_bits_are_told_apart() -> None:
    history = History(7, keys=10, pack_chunks_max=2000)
    numbers = list(range(3000))
    history.keys = [n.to_bytes(16, "big") for n in numbers] + [
        n.to_bytes(16, "little") for n in numbers[1:]
    ]
    for _ in range(60):
        history.step()
    history.check_all()
