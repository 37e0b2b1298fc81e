"""`stage`: both namespaces opened, the most valuable packs copied, and what came of it as a value.

The time given counts from the call, and covers opening, reading journals and closing too: the
copying stops early enough. Opening a namespace whose file system does not answer is given up by
the store, with its own error. Both namespaces keep their own cap and profile.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

from sharedfs_backend import directories
from sharedfs_backend.exceptions import ConfigError, NamespaceError
from sharedfs_backend.files import FileFailure
from sharedfs_backend.layout import JOURNALS, PackName, journal_path, parse_journal_name, scan
from sharedfs_backend.parts import Parts
from sharedfs_backend.runtime import ThreadRuntime
from sharedfs_backend.settings import Settings
from sharedfs_backend.snapshots import read_whole, recognised
from sharedfs_backend.stage.beside import copy_realms, touch
from sharedfs_backend.stage.choosing import Choice, choose
from sharedfs_backend.stage.copying import Copier
from sharedfs_backend.stage.recency import Entries, ages_of, seconds_since
from sharedfs_backend.store import Store

Progress = Callable[[int, int], None]
"""Called with (done, total) bytes."""

CURRENT_SECONDS = 120.0
CLOSE_SECONDS = 5.0
CLOSE_SECONDS_MIN = 0.3
CLOSE_SHARE = 0.1
"""Of a deadline, kept for closing: at most a second."""
JOURNAL_BYTES_MAX = 64 << 20


class Stop(enum.Enum):
    """Why a run ended."""

    DONE = "done"  # everything chosen was looked at
    DEADLINE = "deadline"
    GIVEN_UP = "given up"  # nothing arrived any more: see `failures`


@dataclass(frozen=True, slots=True)
class Staged:
    """What was staged. Counts and bytes of payload; `packs_left` were chosen and not begun."""

    stopped: Stop
    packs_chosen: int
    packs_copied: int
    packs_present: int
    packs_failed: int
    packs_left: int
    chunks_copied: int
    bytes_copied: int
    bytes_present: int
    seconds: float
    failures: dict[str, int] = field(default_factory=dict)
    """Chunks that did not arrive, by reason."""
    realms_refused: tuple[str, ...] = ()
    """Realms (hex) whose engines hash tokens differently in the target."""

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return asdict(self) | {"stopped": self.stopped.value}


def stage(
    source: Settings,
    target: Settings,
    *,
    bytes_max: int | None = None,
    deadline_seconds: float | None = None,
    only: Sequence[PackName] | None = None,
    progress: Progress = lambda done, total: None,
) -> Staged:
    """Copy the most valuable packs of `source`, `bytes_max` of them at most, to `target`, which is
    created if need be. `only`: these packs and no others, in this order.

    Raises ConfigError, NamespaceError and FileFailure for what keeps it from beginning.
    """
    if (source.root, source.client_library) == (target.root, target.client_library):
        raise ConfigError(f"--from and --to are both {source.root}: give two namespaces")
    clock = ThreadRuntime().now
    time = _Time(clock, clock(), deadline_seconds)
    with _opened(source, time, create=False) as giving:
        choices = _chosen(giving.parts, bytes_max) if only is None else _named(giving.parts, only)
        with _opened(target, time, create=True) as taking:
            refused = copy_realms(giving.parts, taking.parts)
            copier = Copier(giving, taking, choices, stop_at=time.stop_at, refused_realms=refused)
            total = sum(choice.total_bytes for choice in choices)
            copier.run(lambda done: progress(done, total))
            touch(taking.parts, giving.parts, copier.present, time.left(CLOSE_SECONDS))
    return _result(copier, len(choices), refused, clock() - time.started)


def chosen(source: Settings, bytes_max: int | None = None) -> list[Choice]:
    """What `stage` would copy, most valuable first."""
    clock = ThreadRuntime().now
    with _opened(source, _Time(clock, clock(), None), create=False) as giving:
        return _chosen(giving.parts, bytes_max)


@dataclass(frozen=True, slots=True)
class _Time:
    """How much there is."""

    now: Callable[[], float]
    started: float
    seconds: float | None

    @property
    def stop_at(self) -> float | None:
        """When copying is over, so that what was begun can be closed in time."""
        if self.seconds is None:
            return None
        return self.started + self.seconds - min(1.0, CLOSE_SHARE * self.seconds)

    def left(self, most: float) -> float:
        """Seconds until the deadline, `most` at most."""
        if self.seconds is None:
            return most
        return max(0.0, min(most, self.started + self.seconds - self.now()))


@contextmanager
def _opened(settings: Settings, time: _Time, *, create: bool) -> Iterator[Store]:
    """A store that has read all journals."""
    # Each namespace's own cap and profile: the engines' settings describe one of them only.
    own = replace(settings, cap_bytes=None, profile=None, linger_seconds=0.0, audit=False)
    store = Store(settings=own, create=create)
    try:
        if not create:
            directories.require(store.parts.watched, settings.root)
        if not store.wait_current(time.left(CURRENT_SECONDS)):
            raise NamespaceError(
                f"{settings.root}: its journals could not be read in time; "
                f"{store.parts.watched.health.reason or 'give it more'}"
            )
        yield store
    finally:
        store.close(max(CLOSE_SECONDS_MIN, time.left(CLOSE_SECONDS)))


# -- choosing ------------------------------------------------------------------------------------


def _chosen(parts: Parts, bytes_max: int | None) -> list[Choice]:
    beat_seconds = parts.settings.lease_seconds / 4
    journals = dict(_journals(parts))
    ages = ages_of(journals.values(), beat_seconds)
    now = parts.runtime.now()
    behind = min(
        (
            seconds_since(
                {writer: coverage.offset for writer, coverage in snapshot.coverage.items()},
                journals,
                beat_seconds,
            )
            for snapshot in parts.snapshots.adopted.values()
        ),
        default=0.0,
    )
    candidates = [
        # What only a snapshot names is as old as it says, and as the snapshot is.
        replace(candidate, last_lookup=candidate.last_lookup - behind)
        for candidate in parts.sweeper.candidates()
    ]
    return choose(candidates, ages, now, recency_step_seconds=beat_seconds, bytes_max=bytes_max)


def _journals(parts: Parts) -> Iterator[tuple[str, Entries]]:
    """Every journal once more, whole: the ledger keeps what was said, not in which order."""
    for writer in recognised(parse_journal_name, parts.watched.list(JOURNALS)):
        try:
            data = read_whole(parts.watched, journal_path(writer), JOURNAL_BYTES_MAX)
        except FileFailure as failure:
            parts.stats.failed(failure, "reading a journal for the ages of its packs")
            continue
        yield writer, scan(data, writer, 0, parts.seal).entries


def _named(parts: Parts, names: Sequence[PackName]) -> list[Choice]:
    packs = ((name, parts.ledger.pack(name)) for name in names)
    return [Choice(name, pack.total_bytes, 0.0) for name, pack in packs if pack is not None]


def _result(copier: Copier, count: int, refused: frozenset[bytes], seconds: float) -> Staged:
    tally = copier.tally
    stop = Stop.DONE
    if copier.given_up:
        stop = Stop.GIVEN_UP
    elif copier.out_of_time or copier.left:
        stop = Stop.DEADLINE
    return Staged(
        stopped=stop,
        packs_chosen=count,
        packs_copied=tally.packs_copied,
        packs_present=tally.packs_present,
        packs_failed=tally.packs_failed,
        packs_left=copier.left,
        chunks_copied=tally.chunks_copied,
        bytes_copied=tally.bytes_copied,
        bytes_present=tally.bytes_present,
        seconds=seconds,
        failures=dict(tally.failures),
        realms_refused=tuple(sorted(realm.hex() for realm in refused)),
    )
