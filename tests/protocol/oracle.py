"""The all-knowing observer: reads every record the moment it reaches the disk.

It knows, without asking any process, which packs were committed, dropped and said to be gone, and
when (in the world's time). It judges unlinks at once: a committed pack may be unlinked only after
its drop record, a journal or snapshot at any time (what that costs is found by the final checks).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sharedfs_backend.layout import (
    Commit,
    Drop,
    Gone,
    PackName,
    Record,
    Seal,
    parse_journal_name,
    scan,
)
from tests.sim.disk import Disk, Inode


@dataclass(slots=True)
class PackFacts:
    """What happened to one name, in world seconds."""

    name: PackName
    realm: bytes = b""
    keys: tuple[bytes, ...] = ()
    committers: set[str] = field(default_factory=set)  # processes
    committed: float | None = None
    told: float | None = None  # a process was told that its store succeeded
    dropped: float | None = None
    gone: float | None = None
    unlinked_by: str = ""

    @property
    def live(self) -> bool:
        return self.committed is not None and self.dropped is None and self.gone is None


@dataclass(slots=True)
class Oracle:
    """Watches one disk."""

    disk: Disk
    seal: Seal
    named_seconds: float  # after which a commit is known to every orphan pass
    vandalised: set[str] = field(default_factory=set)  # paths that the test itself removed
    packs: dict[PackName, PackFacts] = field(default_factory=dict)
    by_key: dict[bytes, list[PackName]] = field(default_factory=dict)

    def watch(self) -> None:
        self.disk.on_write.append(self._wrote)
        self.disk.on_unlink.append(self._unlinked)

    def facts(self, name: PackName) -> PackFacts:
        return self.packs.setdefault(name, PackFacts(name))

    def _wrote(self, node: Inode, client: str, offset: int, length: int) -> None:
        if not node.path.startswith("journals/") or not node.linked:
            return
        writer = parse_journal_name(node.path)
        start = offset - offset % 4096
        data = bytes(node.data[start : offset + length])
        now = self.disk.world.time
        for _, records in scan(data, writer, start, self.seal).entries:
            for record in records:
                self.disk.world.say(writer[:8], told(record))
                if isinstance(record, Commit):
                    for pack in record.packs:
                        keys = [entry.key for entry in pack.entries]
                        self._commit(pack.name, pack.realm, keys, client, now)
                elif isinstance(record, Drop):
                    for name in record.names:
                        facts = self.facts(name)
                        facts.dropped = now if facts.dropped is None else facts.dropped
                elif isinstance(record, Gone):
                    for name in record.names:
                        facts = self.facts(name)
                        facts.gone = now if facts.gone is None else facts.gone

    def _commit(
        self, name: PackName, realm: bytes, keys: list[bytes], client: str, now: float
    ) -> None:
        facts = self.facts(name)
        first = client not in facts.committers
        facts.committers.add(client)
        if facts.committed is not None:
            stranger = first and self.disk.ever.get(name.path) != client
            if stranger and now - facts.committed > self.named_seconds and not self.vandalised:
                self.disk.violate(f"{client} takes {name.path}, named long ago, for an orphan")
            return
        facts.committed, facts.realm, facts.keys = now, realm, tuple(keys)
        for key in keys:
            self.by_key.setdefault(key, []).append(name)
        forced = facts.unlinked_by in self.disk.told_full  # before its record, for want of space
        is_there = name.path in self.disk.nodes or name.path in self.vandalised
        if facts.live and not is_there and not forced:
            self.disk.violate(f"{name.path} is committed but does not exist")

    def _unlinked(self, path: str, who: str) -> None:
        if not path.startswith("packs/") or path in self.vandalised:
            return
        facts = self.facts(PackName.parse(path))
        facts.unlinked_by = who
        if facts.live and who not in self.disk.told_full:
            self.disk.violate(f"{who} unlinks {path}, committed and never dropped")


def told(record: Record) -> str:
    """A record as a line of the transcript."""
    match record:
        case Commit(packs=packs):
            return f"COMMIT {' '.join(pack.name.path[6:] for pack in packs)}"
        case Drop(names=names) | Gone(names=names):
            return f"{type(record).__name__.upper()} {' '.join(name.path[6:] for name in names)}"
        case _:
            return type(record).__name__.upper()
