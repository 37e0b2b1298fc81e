"""Ages of packs from journals that somebody reads for the first time."""

from __future__ import annotations

from sharedfs_backend.layout import Beat, Commit, LayoutDescriptor, PackCommit, PackName, Touch
from sharedfs_backend.layout.table import EMPTY_TABLE
from sharedfs_backend.stage.recency import Entries, ages_of, seconds_since

WRITER = "ab" * 8
BEAT_SECONDS = 150.0


def name(seq: int) -> PackName:
    return PackName(b"d" * 16, WRITER, seq)


def commit(seq: int) -> Commit:
    layout = LayoutDescriptor(("uint8",), ((1,),), "RAW", 1)
    return Commit((PackCommit(name(seq), b"r" * 16, layout, 0, 1, 4096, EMPTY_TABLE),))


def test_beats_behind_a_record_say_how_long_ago_it_was_written() -> None:
    journal: Entries = [(0, [commit(1)]), (1, [Beat(1)]), (2, [Beat(2)]), (3, [commit(2)])]
    assert ages_of([journal], BEAT_SECONDS) == {name(1): 300.0, name(2): 0.0}


def test_a_touch_adds_the_age_that_it_holds() -> None:
    journal: Entries = [(0, [commit(1)]), (1, [Beat(1)]), (2, [Touch(((name(1), 20.0),)), Beat(2)])]
    assert ages_of([journal], BEAT_SECONDS) == {name(1): 20.0}


def test_of_several_journals_the_latest_word_counts() -> None:
    first: Entries = [(0, [commit(1)]), (1, [Beat(1)]), (2, [Beat(2)])]
    second: Entries = [(0, [Touch(((name(1), 30.0),))]), (1, [Beat(1)])]
    assert ages_of([first, second], BEAT_SECONDS) == {name(1): 180.0}


def test_a_snapshot_is_as_old_as_the_beats_behind_what_it_covers() -> None:
    journals = {"a": [(0, [Beat(1)]), (4096, [Beat(2)]), (8192, [Beat(3)])], "b": [(0, [Beat(1)])]}
    assert seconds_since({"a": 4096, "b": 4096}, journals, BEAT_SECONDS) == 300.0
    assert seconds_since({"a": 12288, "gone": 4096}, journals, BEAT_SECONDS) == 0.0
