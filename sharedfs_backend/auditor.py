"""The auditor: compares what others stored under our keys with what we hold ourselves (I8).

Keys cannot tell everything: two ranks given one key, or other weights under one name, produce
equal keys for different content. So when this process holds content for a chunk that another
writer published, it compares the numbers: at store time with the caller's buffer, and when a
refresh shows a second copy of one's own chunk, with the own pack, once that is published. The
first time for each realm, rank and writer, and every `EVERY`-th time after. A failed audit condemns
the entry and stops sharing for that realm and rank in this process. A process that only loads is
not protected.

Runs on worker lanes; costs two operations where it looks. The comparison itself is in `audit`.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from sharedfs_backend.audit import AuditVerdict, compare
from sharedfs_backend.context import Context
from sharedfs_backend.facts import Pack
from sharedfs_backend.files import FileFailure
from sharedfs_backend.layout import (
    EMPTY_TABLE,
    ChunkEntry,
    LayoutDescriptor,
    PackCommit,
    PackName,
)
from sharedfs_backend.ledger import Ledger
from sharedfs_backend.packjob import PackJob
from sharedfs_backend.puttask import Part, item_of
from sharedfs_backend.realms import Realm
from sharedfs_backend.runtime import Lane, LaneFull

log = logging.getLogger("sharedfs_backend")

EVERY = 1024
"""Chunks of one realm, rank and writer between audits after the first."""
TRIES = 16
"""Chunks that are looked at until the first one tells anything: it may be unreadable, or zeros."""
OWN_KEYS_MAX = 65536
"""Own chunks kept in mind, at about 260 bytes each."""
WRITERS_MAX = 65536

Place = tuple[bytes, LayoutDescriptor, bytes]
"""(realm, layout, key) of a chunk."""
Copy = tuple[PackName, ChunkEntry]
"""A chunk of a pack of one's own."""
Whom = tuple[bytes, int, str]
"""(realm, rank, writer) of who stored something."""


class Auditor:
    """See the module. Thread-safe."""

    def __init__(self, context: Context, ledger: Ledger) -> None:
        self._files = context.files
        self._runtime = context.runtime
        self._seal = context.seal
        self._stats = context.stats
        self._ledger = ledger
        self._lock = threading.Lock()
        self._own: OrderedDict[Place, PackName | None] = OrderedDict()  # None: being written
        self._met: OrderedDict[Place, tuple[Pack, ChunkEntry]] = OrderedDict()
        self._seen: OrderedDict[Whom, int] = OrderedDict()
        self._judged: set[Whom] = set()

    def __len__(self) -> int:
        """Own chunks kept in mind."""
        return len(self._own)

    def begun(self, job: PackJob) -> None:
        """This process is about to write these: copies published meanwhile are kept in mind."""
        places = [(job.realm, job.layout, key) for key in job.keys]
        with self._lock:
            for place in places:  # an older copy is being dropped, or is not to be read
                self._own[place] = None
            _shrink(self._own)
        for place in self._known_of(job, places):  # published since the catalog was asked
            found = self._find(*place)
            if found is not None:
                self._meet(place, *found)

    def stored(self, commit: PackCommit) -> None:
        """Remember what this process published; compare it with what it met meanwhile."""
        met: dict[Pack, tuple[ChunkEntry, Copy]] = {}  # one chunk of each pack
        with self._lock:
            for entry in commit.entries:
                place = (commit.realm, commit.layout, entry.key)
                self._own[place] = commit.name
                if place in self._met:
                    pack, theirs = self._met.pop(place)
                    met[pack] = (theirs, (commit.name, entry))
            _shrink(self._own)
        for pack, (theirs, own) in met.items():
            if self._is_due(pack.realm, pack.rank, pack.name.writer):
                self._later(pack, theirs, own)

    def check_parts(self, realm: Realm, parts: Sequence[Part]) -> None:
        """At store time: parts that the catalog has already. Blocks on at most a few reads."""
        for part in parts:
            item = item_of(part)
            found = self._find(realm.digest, item.layout, item.key)
            if found is None:
                continue
            pack, entry = found
            if self._ledger.is_own(pack.name.writer):
                continue
            if not self._is_due(realm.digest, item.rank, pack.name.writer):
                continue
            stored = self._read(pack.name, entry)
            if stored is None:
                continue
            with part[0].gate.enter() as is_open:
                if is_open:
                    self._judge(stored, item.buffer, pack, entry.key, item.rank)
            if self._ledger.is_quarantined(realm.digest, item.rank):
                return

    def check_foreign(self, packs: Sequence[Pack]) -> None:
        """After a refresh: does a newly seen pack hold a second copy of an own chunk?"""
        if not self._own:
            return  # the whole catalog comes through here when a store opens
        for pack in packs:
            if pack.layout is None or self._ledger.is_own(pack.name.writer) or pack.pack_id < 0:
                continue
            entries = self._ledger.catalog.entries_of(pack.pack_id) or EMPTY_TABLE
            with self._lock:
                twice = [
                    (self._own[place], entry, place)
                    for entry in entries
                    if (place := (pack.realm, pack.layout, entry.key)) in self._own
                ]
            copies = [(own, entry) for own, entry, _ in twice if own is not None]
            for _, entry, place in twice if not copies else ():
                self._meet(place, pack, entry)
            for own, entry in copies:
                ours = self._entry_of(own, entry.key)
                if ours is None:
                    continue  # dropped just then, or not in the catalog
                if self._is_due(pack.realm, pack.rank, pack.name.writer):
                    self._later(pack, entry, (own, ours))
                break

    def dropped(self, packs: Iterable[Pack]) -> None:
        """What these held is no longer to be compared with: forget it."""
        names = {pack.name for pack in packs if self._ledger.is_own(pack.name.writer)}
        if not (names and self._own):
            return
        with self._lock:
            for place in [place for place, name in self._own.items() if name in names]:
                del self._own[place]

    def _entry_of(self, name: PackName, key: bytes) -> ChunkEntry | None:
        pack = self._ledger.pack(name)
        entries = None if pack is None else self._ledger.catalog.entries_of(pack.pack_id)
        return next((entry for entry in entries or () if entry.key == key), None)

    def _meet(self, place: Place, pack: Pack, entry: ChunkEntry) -> None:
        """Somebody else's copy of a chunk that is being written here."""
        if self._ledger.is_own(pack.name.writer):
            return
        with self._lock:
            self._met[place] = (pack, entry)
            _shrink(self._met)

    def _later(self, pack: Pack, entry: ChunkEntry, own: Copy) -> None:
        def work() -> None:
            theirs, ours = self._read(pack.name, entry), self._read(*own)
            if theirs is not None and ours is not None:
                self._judge(theirs, ours, pack, entry.key, pack.rank)

        try:
            self._runtime.submit(Lane.BACKGROUND, work)
        except LaneFull:
            self._stats.add("audits_skipped")

    def _find(
        self, realm: bytes, layout: LayoutDescriptor, key: bytes
    ) -> tuple[Pack, ChunkEntry] | None:
        catalog = self._ledger.catalog
        space = catalog.known_space(realm, self._ledger.fingerprint(layout))
        if space is None:
            return None
        found = catalog.locate(key, space, now=self._runtime.now())
        pack = self._ledger.by_id(int(found.pack_ids[0]))
        if pack is None:
            return None
        entry = ChunkEntry(key, int(found.offsets[0]), int(found.lengths[0]), found.checksum(0))
        return pack, entry

    def _known_of(self, job: PackJob, places: list[Place]) -> list[Place]:
        """Those of a pack's places that the catalog has, asked for all at once."""
        catalog = self._ledger.catalog
        space = catalog.known_space(job.realm, job.fingerprint)
        if space is None:
            return []
        found = catalog.find(b"".join(job.keys), space, now=self._runtime.now())
        return [place for place, is_hit in zip(places, found.hits, strict=True) if is_hit]

    def _is_due(self, realm: bytes, rank: int, writer: str) -> bool:
        with self._lock:
            whom = (realm, rank, writer)
            count = self._seen.pop(whom, 0)
            self._seen[whom] = count + 1
            if len(self._seen) > WRITERS_MAX:
                self._judged.discard(self._seen.popitem(last=False)[0])
            return count % EVERY == 0 or (count < TRIES and whom not in self._judged)

    def _read(self, name: PackName, entry: ChunkEntry) -> memoryview | None:
        """The stored chunk, checked; None if it cannot be had (a load will find out why)."""
        buffer = memoryview(bytearray(entry.length))
        try:
            handle = self._files.open_read(name.path)
            try:
                count = self._files.read(handle, entry.offset, buffer)
            finally:
                self._files.close(handle)
        except FileFailure as failure:
            self._stats.failed(failure, "an audit's read")
            return None
        if count < entry.length or self._seal.chunk_checksum_of(buffer) != entry.checksum:
            return None
        return buffer

    def _judge(
        self, stored: memoryview, own: memoryview, pack: Pack, key: bytes, rank: int
    ) -> None:
        assert pack.layout is not None
        self._stats.add("audits")
        report = compare(stored, own, pack.layout)
        if report.verdict is not AuditVerdict.INCONCLUSIVE:
            with self._lock:
                self._judged.add((pack.realm, rank, pack.name.writer))
        if report.verdict is not AuditVerdict.UNRELATED:
            return
        self._stats.add("audits_failed")
        self._ledger.condemn(pack.name, key)
        self._ledger.quarantine(pack.realm, rank)
        log.critical(
            "sharing has stopped for rank %#x: writer %s stored something else under the key of "
            "our own chunk (%s). Two engines are taken for one: give each its own `shard` if they "
            "hold different ranks of one model, its own `model_identity` if they run different "
            "weights under one name, and check `model_aliases`",
            rank,
            pack.name.writer,
            report,
        )


def _shrink(places: OrderedDict[Place, Any]) -> None:
    while len(places) > OWN_KEYS_MAX:
        places.popitem(last=False)
