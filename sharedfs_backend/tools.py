"""Tools: what an operator does to a namespace from outside: look, check, rebuild, clean up.

Each opens the namespace with the store's own parts, ticks them by hand and returns a value; the
command line only prints. None of them is ever needed for correctness. They respect a namespace in
use: `listing` and `verify` only read; `reindex` adopts complete packs that no record names and
removes nothing; `gc` is one more sweeper among others, and touches what belongs to a silent writer
only after watching it for a lease.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sharedfs_backend import directories
from sharedfs_backend.exceptions import NamespaceError
from sharedfs_backend.files import FailureKind, FileFailure
from sharedfs_backend.layout import (
    UNIT_BYTES,
    Commit,
    FormatError,
    PackCommit,
    PackHeader,
    PackName,
    pack_shard_dirs,
)
from sharedfs_backend.namespace import change_settings
from sharedfs_backend.opening import require_within_time, stripe_packs
from sharedfs_backend.orphans import Phase
from sharedfs_backend.packcheck import commit_of, read_header
from sharedfs_backend.parts import Parts
from sharedfs_backend.runtime import ThreadRuntime
from sharedfs_backend.settings import Settings
from sharedfs_backend.snapshots import recognised
from sharedfs_backend.store import Store

Progress = Callable[[int, int], None]
"""Called with (done, total) packs."""
CURRENT_SECONDS = 120.0
COMMITS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies in a namespace. Bytes and counts."""

    root: str
    profile: str
    cap_bytes: int | None
    pack_count: int
    chunk_count: int
    live_bytes: int
    dropped_bytes: int
    journal_bytes: int
    snapshot_bytes: int
    snapshots: int
    writers_known: int
    writers_ended: int
    """Those that said so. One look cannot tell a silent writer from a dead one."""
    realms: dict[str, int]
    """Realm (32 hex digits) -> packs."""


@dataclass(slots=True)
class Report:
    """What a check or rebuild found. `problems`: (path, what is wrong), `PROBLEMS_MAX` at most."""

    packs: int = 0
    chunks: int = 0
    payload_bytes: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[tuple[str, str]] = field(default_factory=list)

    def problem(self, path: str, kind: str, what: str) -> None:
        self.counts[kind] += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append((path, what))


PROBLEMS_MAX = 1000


@contextmanager
def opened(settings: Settings, *, create: bool = False, repair: bool = False) -> Iterator[Parts]:
    """A namespace's parts, current, with the background work running. Without `create` a directory
    that was lost is a NamespaceError, which says what to do; with `repair`, where no namespace is,
    none is made."""
    if repair:
        _require_namespace(settings)
    store = Store(settings=settings, create=create)
    try:
        if not create:
            directories.require(store.parts.watched, settings.root)
        if not store.wait_current(CURRENT_SECONDS):
            raise NamespaceError(
                f"{settings.root}: its journals could not be read within {CURRENT_SECONDS:g} s; "
                f"{store.parts.watched.health.reason or 'see the log'}"
            )
        yield store.parts
    finally:
        store.close()


def _require_namespace(settings: Settings) -> None:
    runtime = ThreadRuntime(background_workers_max=1)
    try:
        require_within_time(runtime, settings)
    finally:
        runtime.close(0.0)


def init(
    settings: Settings, *, cap_bytes: int | None = None, layout: Sequence[str] | None = None
) -> Listing:
    """Create the namespace if it is not there, and set its cap if one is given.

    `layout`: options of `lfs setstripe` for new packs on Lustre (NamespaceError where refused).
    """
    with opened(settings, create=True) as parts:
        if layout is not None and (problem := stripe_packs(settings.root, layout)):
            raise NamespaceError(f"{settings.root}: {problem}")
        if cap_bytes is not None:
            writer = parts.runtime.random_bytes(8).hex()
            # Above what a store that runs may know while its file is lost.
            least = int(time.time())
            change_settings(parts.watched, parts.seal, writer, least=least, cap_bytes=cap_bytes)
            parts.set_cap(cap_bytes)
        return _listing(parts)


def listing(settings: Settings) -> Listing:
    """Read all snapshots and journals; what they say together."""
    with opened(settings) as parts:
        return _listing(parts)


def _listing(parts: Parts) -> Listing:
    usage, ledger = parts.ledger.usage(), parts.ledger
    known = len(ledger.writers())
    realms: Counter[str] = Counter(pack.realm.hex() for pack in ledger.packs() if pack.live)
    return Listing(
        root=parts.settings.root,
        profile=parts.profile.name,
        cap_bytes=parts.cap_bytes,
        pack_count=parts.catalog.pack_count,
        chunk_count=len(parts.catalog),
        live_bytes=usage.live_bytes,
        dropped_bytes=usage.dropped_bytes,
        journal_bytes=usage.journal_bytes,
        snapshot_bytes=usage.snapshot_bytes,
        snapshots=len(parts.snapshots.adopted),
        writers_known=known,
        writers_ended=known - len(ledger.live_writers(None)),
        realms=dict(realms),
    )


# -- checking ------------------------------------------------------------------------------------


def packs_on_disk(parts: Parts) -> list[PackName]:
    """Every file below packs/ whose name is a pack's."""
    names: list[PackName] = []
    for directory in pack_shard_dirs():
        try:
            names += recognised(PackName.parse, parts.watched.list(directory))
        except FileFailure as failure:
            if failure.kind is not FailureKind.MISSING:
                raise
    return names


def verify(
    settings: Settings, *, progress: Progress = lambda done, total: None, payload: bool = True
) -> Report:
    """Check every pack's header, trailer and (unless `payload` is False) every chunk's bytes.

    Kinds counted: `invalid` packs, `damaged` chunks, `unnamed` packs (in no record, so perhaps half
    written), `missing` packs (recorded, not there), `unreadable`.
    """
    report = Report()
    with opened(settings) as parts:
        on_disk = packs_on_disk(parts)
        there = set(on_disk)
        for pack in parts.ledger.packs():
            if pack.live and pack.name not in there and not _exists(parts, pack.name):
                report.problem(pack.name.path, "missing", "recorded, but the file is not there")
        for done, name in enumerate(sorted(on_disk)):
            progress(done, len(on_disk))
            _verify_pack(parts, name, report, payload)
        progress(len(on_disk), len(on_disk))
    return report


def _exists(parts: Parts, name: PackName) -> bool:
    try:
        parts.watched.size(name.path)
    except FileFailure as failure:
        return failure.kind is not FailureKind.MISSING
    return True


def _verify_pack(parts: Parts, name: PackName, report: Report, payload: bool) -> None:
    known = parts.ledger.pack(name)
    if known is not None and known.dropped:
        return  # on its way out
    is_named = known is not None and known.committed
    if not is_named:
        report.problem(name.path, "unnamed", "no journal or snapshot names it (being written?)")
    try:
        header = read_header(parts.watched, parts.seal, name)
        report.packs += 1
        report.chunks += len(header.entries)
        if payload:
            _verify_payload(parts, name, header, report)
    except FormatError as error:
        if is_named:  # else it has no trailer yet, or never will: no damage, and said above
            report.problem(name.path, "invalid", str(error))
    except FileFailure as failure:
        if failure.kind is not FailureKind.MISSING:
            report.problem(name.path, "unreadable", str(failure))


def _verify_payload(parts: Parts, name: PackName, header: PackHeader, report: Report) -> None:
    buffer = memoryview(bytearray(UNIT_BYTES))
    handle = parts.watched.open_read(name.path)
    try:
        for number, entry in enumerate(header.entries):
            digests: list[bytes] = []
            for at in range(0, entry.length, UNIT_BYTES):
                unit = buffer[: min(UNIT_BYTES, entry.length - at)]
                count = parts.watched.read(handle, entry.offset + at, unit)
                digests.append(parts.seal.checksum(unit[:count]))
            report.payload_bytes += entry.length
            if parts.seal.chunk_checksum(digests) != entry.checksum:
                where = f"chunk {number} at offset {entry.offset}"
                report.problem(name.path, "damaged", f"{where}: its bytes fail their checksum")
    finally:
        parts.watched.close(handle)


# -- rebuilding ----------------------------------------------------------------------------------


def reindex(settings: Settings, *, progress: Progress = lambda done, total: None) -> Report:
    """Record every complete pack that no journal and no snapshot names. Removes nothing.

    Directories of the namespace that were lost are made again.
    Kinds counted: `adopted`, `invalid`, `unreadable`. A pack that is being written has no trailer
    yet and is left alone as invalid; one whose drop is on record stays dropped (I1).
    """
    report = Report()
    with opened(settings, create=True, repair=True) as parts:
        names = [name for name in packs_on_disk(parts) if not _is_named(parts, name)]
        commits: list[PackCommit] = []
        for done, name in enumerate(sorted(names)):
            progress(done, len(names))
            commit = _examine(parts, name, report)
            if commit is not None:
                commits.append(commit)
            if len(commits) == COMMITS_AT_ONCE:
                _adopt(parts, commits, report)
        _adopt(parts, commits, report)
        progress(len(names), len(names))
    return report


def _is_named(parts: Parts, name: PackName) -> bool:
    known = parts.ledger.pack(name)
    return known is not None and (known.committed or known.dropped)


def _examine(parts: Parts, name: PackName, report: Report) -> PackCommit | None:
    try:
        header = read_header(parts.watched, parts.seal, name)
    except FormatError as error:
        report.problem(name.path, "invalid", str(error))
        return None
    except FileFailure as failure:
        report.problem(name.path, "unreadable", str(failure))
        return None
    return commit_of(name, header)


def _adopt(parts: Parts, commits: list[PackCommit], report: Report) -> None:
    if not commits:
        return
    batch = tuple(commits)
    commits.clear()
    told: list[bool] = []
    waiter = parts.runtime.waiter()

    def done(published: bool) -> None:
        told.append(published)
        waiter.set()

    parts.publisher.publish((Commit(batch),), done)
    waiter.wait(CURRENT_SECONDS)  # another thread may be appending for us
    if told != [True]:
        raise NamespaceError("the journal could not be written; see the log")
    report.packs += len(batch)
    report.chunks += sum(len(commit.entries) for commit in batch)
    report.counts["adopted"] += len(batch)


# -- cleaning up ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Collected:
    """What `gc` did."""

    packs_dropped: int
    packs_unlinked: int
    bytes_before: int
    bytes_after: int
    orphans_adopted: int
    orphans_removed: int
    snapshots_written: int
    journals_retired: int


def gc(
    settings: Settings,
    *,
    to_bytes: int | None = None,
    watch: bool = False,
    wait: Callable[[float], None] = time.sleep,
    progress: Progress = lambda done, total: None,
) -> Collected:
    """Sweep down to `to_bytes` (default: the cap's low watermark), and clear what may be cleared.

    Without `watch` it touches only what earlier records prove old: victims go through the drop
    delay, ended journals are retired. With it, it first watches all writers for one lease and then
    also clears the orphans and journals of those that stayed silent.
    """
    with opened(settings, create=True, repair=True) as parts:
        before = parts.ledger.usage().total_bytes
        parts.take_over_chores()
        parts.publisher.publish((), lambda _: None)
        if watch:
            _pass_time(parts, settings.lease_seconds * 1.1, wait, progress)
        _drop_down_to(parts, to_bytes)
        _pass_time(parts, settings.drop_delay_seconds * 1.1, wait, progress)
        parts.sweeper.finish(parts.runtime.now())
        if watch:
            _clear_orphans(parts, wait)
        writer = parts.publisher.writer
        if writer is not None and parts.snapshotter.write(writer) is not None:
            parts.snapshotter.remove_superseded(parts.runtime.now())
            parts.snapshotter.retire_journals(parts.orphans.settled)
        counts = parts.stats.snapshot()
        after = parts.ledger.usage().total_bytes
    names = [name for name in Collected.__slots__ if not name.startswith("bytes_")]
    return Collected(
        bytes_before=before,
        bytes_after=after,
        **{name: counts.get(name, 0) for name in names},
    )


def _pass_time(
    parts: Parts, seconds: float, wait: Callable[[float], None], progress: Progress
) -> None:
    start = parts.runtime.now()
    while (passed := parts.runtime.now() - start) < seconds:
        progress(int(passed), int(seconds))
        parts.chores.step()
        wait(min(parts.chores.seconds, seconds))


def _drop_down_to(parts: Parts, to_bytes: int | None) -> None:
    usage, cap = parts.ledger.usage(), parts.cap_bytes
    if to_bytes is None:
        if cap is None:
            return
        to_bytes = parts.sweeper.low_bytes(cap)
    remaining = usage.total_bytes - usage.dropped_bytes
    if remaining > to_bytes:
        victims = parts.sweeper.victims(remaining - to_bytes, parts.runtime.now())
        if victims:
            parts.sweeper.drop(victims)


def _clear_orphans(parts: Parts, wait: Callable[[float], None]) -> None:
    """Two passes a lease apart: an orphan must have been one for that long."""
    for _ in range(2):
        done = parts.orphans.passes_done
        parts.orphans.acts = True
        parts.orphans.begin()
        start = parts.runtime.now()
        while parts.orphans.passes_done == done and parts.orphans.phase is not Phase.IDLE:
            parts.orphans.step()
            wait(0.02)
            if parts.runtime.now() - start > CURRENT_SECONDS:
                return
        _pass_time(parts, parts.settings.lease_seconds * 1.05, wait, lambda done, total: None)
