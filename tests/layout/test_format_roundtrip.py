"""Values to bytes and back, for any value; and what no encoder lets through (I1, I2, I8)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sharedfs_backend.layout import (
    ENTRY_BYTES_MAX,
    HEADER_SIZE_HINT,
    RECORDS_PER_ENTRY_MAX,
    TRAILER_BYTES,
    UNIT_BYTES,
    BadValue,
    Beat,
    Begin,
    ChunkEntry,
    Commit,
    Coverage,
    Drop,
    End,
    EntryTable,
    Gone,
    LayoutDescriptor,
    PackCommit,
    PackHeader,
    PackName,
    PackRows,
    PackState,
    Purpose,
    RealmDescriptor,
    Record,
    Seal,
    SettingsRecord,
    Snapshot,
    SnapshotName,
    SnapshotPack,
    Stop,
    Touch,
    Trailer,
    chunk_key,
    decode_entry,
    decode_header,
    decode_settings,
    decode_snapshot,
    decode_trailer,
    encode_entry,
    encode_header,
    encode_settings,
    encode_snapshot,
    encode_trailer,
    header_checksum,
    pack_digest,
    peek_header_bytes,
    plan_pack,
    scan,
    split_records,
)
from tests.layout.test_format_names import COUNTERS, DIGESTS, PACK_NAMES, WRITERS

PLAIN, KEYED = Seal(), Seal.from_material(b"a key file's content")
SEALS = st.sampled_from([PLAIN, KEYED])
WRITER = "0123456789abcdef"
LAYOUTS = st.builds(
    LayoutDescriptor,
    st.lists(st.sampled_from(["float32", "bfloat16", "uint8"]), max_size=3).map(tuple),
    st.lists(st.lists(st.integers(0, 1 << 40), max_size=4).map(tuple), max_size=3).map(tuple),
    st.text(max_size=12),
    st.integers(0, 4096),
)
AGES = st.integers(0, 10**9).map(lambda value: value / 1000)
LENGTHS = st.lists(st.integers(0, 3 * UNIT_BYTES), min_size=1, max_size=20)
some = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def commits(draw: st.DrawFn) -> PackCommit:
    layout, lengths = draw(LAYOUTS), draw(LENGTHS)
    plan = plan_pack(layout, lengths, 4096)
    table = EntryTable.from_entries(
        ChunkEntry(draw(DIGESTS), offset, length, draw(DIGESTS))
        for offset, length in zip(plan.entries_offsets, lengths, strict=True)
    )
    rank, version = draw(st.integers(0, (1 << 32) - 1)), draw(COUNTERS)
    name, realm = draw(PACK_NAMES), draw(DIGESTS)
    return PackCommit(name, realm, layout, rank, version, plan.total_bytes, table)


RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(Begin, st.integers(0, 65535), DIGESTS),
    st.builds(Commit, st.lists(commits(), max_size=3).map(tuple)),
    st.builds(Drop, st.lists(PACK_NAMES, max_size=4).map(tuple)),
    st.builds(Gone, st.lists(PACK_NAMES, max_size=4).map(tuple)),
    st.builds(Touch, st.lists(st.tuples(PACK_NAMES, AGES), max_size=4).map(tuple)),
    st.builds(Beat, COUNTERS),
    st.builds(End, st.none() | WRITERS),
)


@some
@given(commits(), SEALS, st.sampled_from([4096, 512 << 10]))
def test_a_pack_header_survives(commit: PackCommit, seal: Seal, align: int) -> None:
    layout, lengths = commit.layout, [chunk.length for chunk in commit.entries]
    plan = plan_pack(layout, lengths, align)
    entries = EntryTable.from_entries(
        chunk._replace(offset=offset)
        for chunk, offset in zip(commit.entries, plan.entries_offsets, strict=True)
    )
    where = (entries, plan.payload_offset, plan.total_bytes, commit.version)
    header = PackHeader(commit.realm, layout, layout.fingerprint(seal), commit.rank, *where)
    data = encode_header(header, seal)
    assert len(data) == plan.header_bytes == peek_header_bytes(data[:64])
    assert decode_header(data + b"payload", seal) == header
    trailer = encode_trailer(plan.total_bytes, header_checksum(data), seal)
    assert decode_trailer(trailer, seal) == Trailer(plan.total_bytes, data[-16:])


@some
@given(st.lists(RECORDS, min_size=1, max_size=5), SEALS, WRITERS, st.integers(0, 1 << 30))
def test_a_journal_entry_survives(
    records: list[Record], seal: Seal, writer: str, block: int
) -> None:
    offset = 4096 * block
    data = encode_entry(writer, offset, records, seal)
    assert len(data) % 4096 == 0
    assert decode_entry(data, writer, offset, seal) == tuple(records)
    found = scan(memoryview(data), writer, offset, seal)
    assert (found.entries, found.stopped) == ([(offset, tuple(records))], Stop.END)


@st.composite
def snapshot_packs(draw: st.DrawFn) -> SnapshotPack:
    commit = draw(commits())
    age, touch = draw(AGES), draw(st.none() | AGES)
    state = draw(st.sampled_from(PackState))
    if state == PackState.GONE:
        none = EntryTable(b"", b"", b"", b"")
        return SnapshotPack(commit.name, None, None, 0, 0, 0, state, touch, age, none)
    parts = (commit.rank, commit.version, commit.total_bytes, state, touch, age, commit.entries)
    return SnapshotPack(commit.name, commit.realm, commit.layout, *parts)


@some
@given(
    st.lists(snapshot_packs(), max_size=5),
    st.dictionaries(WRITERS, st.builds(Coverage, COUNTERS, st.booleans()), max_size=4),
    st.lists(st.builds(SnapshotName, COUNTERS, WRITERS), max_size=3).map(tuple),
    SEALS,
)
def test_a_snapshot_survives(
    packs: list[SnapshotPack],
    coverage: dict[str, Coverage],
    parents: tuple[SnapshotName, ...],
    seal: Seal,
) -> None:
    snapshot = Snapshot(7, WRITER, parents, coverage, PackRows.of(packs))
    found = decode_snapshot(encode_snapshot(snapshot, seal), seal)
    assert (found.name, found.parents, found.coverage) == (snapshot.name, parents, coverage)
    assert list(found.packs) == packs
    assert found.packs.names() == [pack.name for pack in packs]


@some
@given(st.text(), st.booleans(), st.text(), st.text(max_size=5), SEALS)
def test_a_realm_survives(model: str, verified: bool, shard: str, serde: str, seal: Seal) -> None:
    realm = RealmDescriptor(model, verified, shard, serde, "blake3")
    found = RealmDescriptor.from_json(realm.to_json(seal, b"\0\1\2\3"), seal)
    assert (found.descriptor, found.canary) == (realm, b"\0\1\2\3")


@some
@given(
    COUNTERS,
    st.none() | COUNTERS,
    st.none() | st.dictionaries(st.text(), st.text() | st.integers(-5, 5) | st.booleans()),
)
def test_settings_survive(number: int, cap: int | None, profile: dict[str, str] | None) -> None:
    record = SettingsRecord(number, WRITER, cap, profile)
    assert decode_settings(encode_settings(record, KEYED), KEYED) == record


@some
@given(st.lists(RECORDS, max_size=12), st.sampled_from([4096, 16384, 1 << 20]))
def test_split_records_lose_nothing_and_fit(records: list[Record], limit: int) -> None:
    groups = split_records(records, limit)
    for group in groups:
        single = len(group) == 1 and isinstance(group[0], Commit) and len(group[0].packs) == 1
        size = len(encode_entry(WRITER, 0, group, PLAIN))
        assert size <= limit + 4096 or single
    assert flat(part for group in groups for part in group) == flat(records)


def flat(records: object) -> list[object]:
    """Single packs, names and ages, in order, whatever records they came in."""
    out: list[object] = []
    for record in records:  # type: ignore[attr-defined]  # any iterable of records
        match record:
            case Commit(packs):
                out += packs
            case Drop(names) | Gone(names):
                out += [(type(record), name) for name in names]
            case Touch(ages):
                out += ages
            case _:
                out.append(record)
    return out


def test_two_hundred_thousand_names_are_split_over_entries() -> None:
    names = tuple(plain_name(seq) for seq in range(200_000))
    groups = split_records([Drop(names), *[Beat(n) for n in range(2000)]])
    assert flat(part for group in groups for part in group)[:200_000] == flat([Drop(names)])
    assert all(len(group) <= RECORDS_PER_ENTRY_MAX for group in groups)
    assert max(len(encode_entry(WRITER, 0, group, PLAIN)) for group in groups) <= (1 << 20) + 4096


def test_the_largest_pack_fits_one_entry_and_one_header() -> None:
    layout = LayoutDescriptor(("float32",), ((1,),), "kv", 16)
    plan = plan_pack(layout, [1] * 65536, 4096)
    table = EntryTable(
        bytes(16 * 65536),
        b"".join(offset.to_bytes(8, "little") for offset in plan.entries_offsets),
        (1).to_bytes(8, "little") * 65536,
        bytes(16 * 65536),
    )
    commit = PackCommit(plain_name(1), bytes(16), layout, 0, 1, plan.total_bytes, table)
    assert len(encode_entry(WRITER, 0, [Commit((commit,))], PLAIN)) <= ENTRY_BYTES_MAX
    with pytest.raises(ValueError, match="chunks"):
        plan_pack(layout, [1] * 65537, 4096)


def test_a_pack_of_512_chunks_is_read_with_the_first_read() -> None:
    layout = LayoutDescriptor(("bfloat16",) * 4, ((2, 80, 256, 1024),) * 4, "kv_2ltd", 256)
    assert plan_pack(layout, [1] * 1300, 4096).header_bytes <= HEADER_SIZE_HINT


def test_sections_are_aligned_where_the_profile_says_so() -> None:
    layout, align = LayoutDescriptor((), (), "", 0), 512 << 10
    plan = plan_pack(layout, [5000, 0, 70_000], align)
    assert plan.payload_offset == plan.entries_offsets[0] == align
    assert [offset % 4096 for offset in plan.entries_offsets] == [0, 0, 0]
    assert plan.total_bytes % align == 0
    assert plan.trailer_offset == plan.total_bytes - TRAILER_BYTES


def plain_name(seq: int) -> PackName:
    return PackName(bytes(16), WRITER, seq)


def test_checksums_do_not_depend_on_how_the_data_is_fed() -> None:
    data = bytes(range(256)) * 300
    for seal in (PLAIN, KEYED):
        hasher = seal.hasher()
        for at in range(0, len(data), 1000):
            hasher.update(memoryview(data)[at : at + 1000])
        assert hasher.digest() == seal.checksum(data)


def test_a_chunk_checksum_is_over_its_units_in_order() -> None:
    units = [bytes([n]) * UNIT_BYTES for n in range(2)] + [b"rest"]
    for seal in (PLAIN, KEYED):
        digests = [seal.checksum(unit) for unit in units]
        whole = seal.chunk_checksum_of(b"".join(units))
        assert whole == seal.chunk_checksum(digests) == seal.checksum(b"".join(digests))
        assert whole != seal.chunk_checksum([digests[1], digests[0], digests[2]])


def test_with_a_secret_every_purpose_has_its_own_key() -> None:
    sums = {KEYED.checksum(b"same", purpose) for purpose in Purpose} | {KEYED.digest(b"same")}
    assert len(sums) == len(Purpose) + 1
    assert len({PLAIN.checksum(b"same", purpose) for purpose in Purpose}) == 1


def test_a_secret_is_never_shown() -> None:
    seal = Seal(b"S" * 32)
    assert "S" * 4 not in repr(seal) and seal.keyed and not PLAIN.keyed
    with pytest.raises(ValueError, match="32"):
        Seal(b"short")
    with pytest.raises(ValueError, match="empty"):
        Seal.from_material(b"")


def test_identity_tells_everything_apart() -> None:
    """I8: rank, group, salt, realm, layout, order and secret each change a name."""
    keys = [
        chunk_key(seal, chunk_hash, rank, group, salt)
        for seal in (PLAIN, KEYED)
        for chunk_hash in (b"\0" * 32, b"\1" * 32)
        for rank in (0, 1)
        for group in (0, 1)
        for salt in ("", "lora")
    ]
    assert len(set(keys)) == 32
    a, b = keys[:2]
    digests = {
        pack_digest(PLAIN, realm, fingerprint, order)
        for realm in (a, b)
        for fingerprint in (a, b)
        for order in ([a, b], [b, a], [a])
    }
    assert len(digests) == 12


def test_every_field_of_a_realm_and_of_a_layout_counts() -> None:
    realm = RealmDescriptor("m", True, "s", "d", "h")
    others = [
        replace(realm, model_identity="n"),
        replace(realm, identity_verified=False),
        replace(realm, shard="d", serde="s"),
        replace(realm, hash_family="i"),
    ]
    assert len({each.digest(PLAIN) for each in [realm, *others]}) == 5
    layout = LayoutDescriptor(("float32",), ((2, 3),), "kv", 16)
    variants = [
        replace(layout, dtypes=("bfloat16",)),
        replace(layout, shapes=((2,), (3,))),
        replace(layout, tensor_format="vk"),
        replace(layout, chunk_tokens=32),
    ]
    assert len({each.fingerprint(PLAIN) for each in [layout, *variants]}) == 5


def test_a_layout_in_another_than_the_canonical_form_is_refused() -> None:
    data = LayoutDescriptor(("float32",), ((2, 3),), "kv", 16).encode()
    longer = data[:-1] + b"\xcc\x10"
    assert LayoutDescriptor.decode(data).chunk_tokens == 16
    with pytest.raises(BadValue, match="canonical"):
        LayoutDescriptor.decode(longer)


def test_encoders_refuse_what_no_decoder_accepts() -> None:
    layout = LayoutDescriptor(("float32",), ((1,),), "kv", 16)
    row = ChunkEntry(bytes(16), 4100, 10, bytes(16))
    table = EntryTable.from_entries([row])
    header = PackHeader(bytes(16), layout, layout.fingerprint(PLAIN), 0, table, 4096, 12288)
    commit = PackCommit(plain_name(1), bytes(16), layout, 0, 1, 12288, table)
    with pytest.raises(ValueError, match="unaligned"):
        encode_header(header, PLAIN)
    with pytest.raises(ValueError, match="unaligned"):
        encode_entry(WRITER, 0, [Commit((commit,))], PLAIN)
    with pytest.raises(ValueError, match="fingerprint"):
        encode_header(replace(header, fingerprint=bytes(16)), PLAIN)
    with pytest.raises(ValueError, match="offset"):
        encode_entry(WRITER, 100, [Beat(1)], PLAIN)
    with pytest.raises(ValueError, match="settings"):
        encode_settings(SettingsRecord(-1, WRITER), PLAIN)
    with pytest.raises(ValueError, match="age"):
        encode_entry(WRITER, 0, [Touch(((plain_name(1), float("nan")),))], PLAIN)


def test_a_table_gives_its_rows_and_its_parts() -> None:
    rows = [ChunkEntry(bytes([n]) * 16, 4096 * n, n, bytes([n + 1]) * 16) for n in range(5)]
    table = EntryTable.from_entries(rows)
    assert (list(table), table[-1], len(table)) == (rows, rows[4], 5)
    assert list(table.rows(1, 3)) == rows[1:4]
    assert table.offset_array().tolist() == [row.offset for row in rows]
    with pytest.raises(IndexError):
        table[5]


def test_a_long_entry_says_how_much_must_be_read() -> None:
    names = tuple(plain_name(seq) for seq in range(1000))
    data = encode_entry(WRITER, 0, [Drop(names)], PLAIN)
    found = scan(data[:8192], WRITER, 0, PLAIN)
    assert (found.stopped, found.next_offset) == (Stop.INCOMPLETE, 0)
    assert found.wanted_bytes == len(data) > 8192
