"""Read and write plans: every byte exactly once, cut at units, in as few operations as allowed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharedfs_backend.layout import UNIT_BYTES, PackName
from sharedfs_backend.readplan import GAP_BYTES_MAX, ChunkRead, Piece, plan_reads, units_of
from sharedfs_backend.writeplan import PADDING, PARTS_MAX, plan_writes

PACK = PackName(bytes(16), "0123456789abcdef", 1)
OTHER = PackName(bytes(16), "0123456789abcdef", 2)
KIB, MIB = 1 << 10, 1 << 20


def read(offset: int, length: int, pack: PackName = PACK) -> ChunkRead:
    return ChunkRead(pack, offset, length, bytes(16))


def row(lengths: list[int], start: int = 4096) -> list[ChunkRead]:
    """Chunks one after the other as a pack places them."""
    reads = []
    for length in lengths:
        reads.append(read(start, length))
        start += -(-length // 4096) * 4096
    return reads


def shape(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [(piece.offset, piece.length) for piece in pieces]


def test_a_chunk_of_one_unit_is_one_piece() -> None:
    assert shape(plan_reads([read(8192, 4 * MIB)], 4 * MIB)) == [(8192, 4 * MIB)]


def test_large_chunks_are_cut_at_their_units() -> None:
    pieces = plan_reads([read(4096, 9 * MIB)], 4 * MIB)
    assert shape(pieces) == [(4096, 4 * MIB), (4096 + 4 * MIB, 4 * MIB), (4096 + 8 * MIB, MIB)]
    assert [span.unit for piece in pieces for span in piece.spans] == [0, 1, 2]


def test_small_neighbours_share_a_piece() -> None:
    pieces = plan_reads(row([512 * KIB] * 20), 4 * MIB)
    assert [len(piece.spans) for piece in pieces] == [8, 8, 4]


def test_padding_is_read_over_but_a_gap_is_not() -> None:
    near = [read(0, 1000), read(1000 + GAP_BYTES_MAX, 1000)]
    far = [read(0, 1000), read(1001 + GAP_BYTES_MAX, 1000)]
    assert [len(plan_reads(reads, 4 * MIB)) for reads in (near, far)] == [1, 2]


def test_order_of_asking_does_not_matter_within_a_pack() -> None:
    reads = row([MIB] * 4)
    assert shape(plan_reads(reads[::-1], 4 * MIB)) == shape(plan_reads(reads, 4 * MIB))


def test_packs_come_in_the_order_of_asking() -> None:
    pieces = plan_reads([read(0, 10, OTHER), read(0, 10), read(10, 10, OTHER)], 4 * MIB)
    assert [piece.pack for piece in pieces] == [OTHER, PACK]


def test_one_chunk_asked_for_twice_is_read_for_each() -> None:
    assert shape(plan_reads([read(0, 10), read(0, 10)], 4 * MIB)) == [(0, 10), (0, 10)]


def test_a_unit_beyond_the_piece_size_is_a_piece_of_its_own() -> None:
    assert shape(plan_reads([read(0, 4 * MIB), read(4 * MIB, 100)], MIB)) == [
        (0, 4 * MIB),
        (4 * MIB, 100),
    ]


@given(
    lengths=st.lists(st.integers(0, 3 * UNIT_BYTES), min_size=1, max_size=8),
    piece_mib=st.sampled_from([1, 4, 8]),
)
def test_a_read_plan_covers_every_byte_of_every_chunk_once(
    lengths: list[int], piece_mib: int
) -> None:
    reads = row(lengths)
    covered: list[list[tuple[int, int]]] = [[] for _ in reads]
    for piece in plan_reads(reads, piece_mib * MIB):
        assert piece.length <= max(UNIT_BYTES, piece_mib * MIB)
        assert len(piece.spans) == 1 or piece.length <= piece_mib * MIB
        for span in piece.spans:
            at = piece.offset + span.piece_offset - reads[span.chunk].offset
            assert at == span.unit * UNIT_BYTES
            covered[span.chunk].append((at, span.length))
    for length, spans in zip(lengths, covered, strict=True):
        assert sum(size for _, size in spans) == length
        assert len(set(spans)) == len(spans) == units_of(length)


@given(
    lengths=st.lists(st.integers(0, 40_000), min_size=1, max_size=40),
    piece_bytes=st.sampled_from([4096, 8192, 65536]),
)
def test_a_write_plan_covers_the_payload_without_holes(
    lengths: list[int], piece_bytes: int
) -> None:
    offsets = [one.offset for one in row(lengths)]
    at = offsets[0]
    covered = [0] * len(lengths)
    for piece in plan_writes(offsets, lengths, piece_bytes):
        assert piece.offset == at and 0 < piece.length <= piece_bytes
        for part in piece.parts:
            if part.chunk != PADDING:
                assert (at, part.start) == (offsets[part.chunk] + part.start, covered[part.chunk])
                covered[part.chunk] += part.length
            at += part.length
        assert at == piece.offset + piece.length
    assert covered == lengths


def test_a_write_is_cut_where_one_operation_takes_no_more_parts() -> None:
    count = 2 * PARTS_MAX
    pieces = list(plan_writes(range(0, 4096 * count, 4096), [4096] * count, 1 << 30))
    assert [len(piece.parts) for piece in pieces] == [PARTS_MAX, PARTS_MAX]
