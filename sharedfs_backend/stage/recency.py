"""How long ago each pack was last wanted, as a process that has just begun can know it. Pure.

A pack's age counts from when an observer first saw it, so one that has just read all journals takes
everything for new. What a journal says in order tells more: its writer beats every quarter of a
lease, so the beats behind a record say how long ago it was written, on no clock but the writer's
own (I3). A touch adds the age that it holds; a commit is taken for a lookup at that moment.

A silent writer's last records look younger than they are: that orders packs, it removes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sharedfs_backend.layout import Beat, Commit, PackName, Record, Touch

Entries = Sequence[tuple[int, Sequence[Record]]]
"""A journal: (offset, records) of each entry, in its order."""


def ages_of(journals: Iterable[Entries], beat_seconds: float) -> dict[PackName, float]:
    """Seconds since each pack that these journals name was committed or last looked up."""
    ages: dict[PackName, float] = {}
    for entries in journals:
        beats = 0
        for _, records in reversed(entries):
            for name, age_seconds in _named(records):
                age = beats * beat_seconds + age_seconds
                ages[name] = min(age, ages.get(name, age))
            beats += sum(isinstance(record, Beat) for record in records)
    return ages


def _named(records: Sequence[Record]) -> Iterable[tuple[PackName, float]]:
    for record in records:
        match record:
            case Commit(packs=packs):
                yield from ((pack.name, 0.0) for pack in packs)
            case Touch(ages=ages):
                yield from ages


def seconds_since(
    covered: Mapping[str, int], journals: Mapping[str, Entries], beat_seconds: float
) -> float:
    """How long ago a snapshot was written at least, which reaches as far as `covered` into each
    journal (writer -> offset): the most that one of them beat behind that."""
    return beat_seconds * max(
        (
            sum(
                isinstance(record, Beat)
                for offset, records in journals.get(writer, ())
                if offset >= end
                for record in records
            )
            for writer, end in covered.items()
        ),
        default=0,
    )
