"""Sources: where the list of replicas comes from, and reading it again while the router runs.

A fixed list, a list file, a URL that serves such a list, or a namespace in which replicas announce
themselves. Reading may block (a shared file system may hang for minutes), so one thread reads,
and the event loop only ever gets complete lists: a new one counts when two looks in a row agree,
since a file may be caught half-written. One that cannot be read or understood changes nothing: the
last good one stays, and the trouble is reported once for each new text.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from router.download import DownloadError, download
from router.replicas import Replica, ReplicaError, listed
from router.settings import Settings, SettingsError

log = logging.getLogger(__name__)

BYTES_MAX = 1 << 20
URL_DEADLINE_SECONDS = 10.0
"""From asking for the list to its last byte."""
STOP_SECONDS = 2.0
OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""Opening a pipe in whose place a file was a moment ago must not wait for its writer."""
KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a directory", stat.S_IFSOCK: "a socket"}

Listing = dict[str, Replica]


class Source(Protocol):
    """Read by one thread at a time."""

    can_change: bool

    def read(self) -> Listing:
        """The list as it is now. Raises ReplicaError or OSError."""


class FixedList:
    """What stood on the command line."""

    can_change = False

    def __init__(self, urls: list[str]) -> None:
        self._listing = listed(urls)

    def read(self) -> Listing:
        return self._listing


class ListFile:
    """One URL a line; replaced or edited in place while the router runs. Only an ordinary file can
    be read again and again, and without waiting for whoever writes it."""

    can_change = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Listing:
        self._check(os.stat(self._path))  # before: to open a device may do something
        with open(os.open(self._path, OPEN_FLAGS), "rb") as file:
            self._check(os.fstat(file.fileno()))
            return _listing(file.read(BYTES_MAX + 1), str(self._path))

    def _check(self, found: os.stat_result) -> None:
        if kind := other_kind(found):
            raise ReplicaError(
                f"{self._path} is {kind}: give an ordinary file with one URL a line, or the"
                " http:// address of such a text"
            )


def other_kind(found: os.stat_result) -> str:
    """What it is in place of an ordinary file; empty for one."""
    if stat.S_ISREG(found.st_mode):
        return ""
    return KINDS.get(stat.S_IFMT(found.st_mode), "a device")


def check_secret(path: str | None) -> None:
    """Raises SettingsError for a secret that could not be read again: every process reads it, and
    each of its parts that open the namespace. One that is missing they report themselves."""
    if path is None:
        return
    try:
        kind = other_kind(os.stat(path))
    except OSError:
        return
    if kind:
        raise SettingsError(
            f"--secret-file {path} is {kind}: give an ordinary file, which can be"
            " read more than once"
        )


class ListUrl:
    """The same text, served by somebody."""

    can_change = True

    def __init__(self, url: str) -> None:
        self._url = url

    def read(self) -> Listing:
        try:
            data = download(self._url, bytes_max=BYTES_MAX, deadline_seconds=URL_DEADLINE_SECONDS)
        except DownloadError as error:
            raise ReplicaError(f"{self._url}: {error}") from error
        return _listing(data, self._url)


def _listing(data: bytes, name: str) -> Listing:
    if len(data) > BYTES_MAX:
        raise ReplicaError(f"{name}: a list of replicas has at most {BYTES_MAX} bytes")
    try:
        return listed(data.decode("utf-8-sig").splitlines())  # editors may begin with a mark
    except UnicodeDecodeError as error:
        raise ReplicaError(f"{name} is not text: {error}") from error
    except ReplicaError as error:
        raise ReplicaError(f"{name}: {error}") from error


class Follower:
    """Reads a source again and again on a thread of its own, and hands on what changed.

    `on_list` and `on_trouble` are called on that thread. The thread is a daemon because a read of a
    dead file system cannot be ended; `stop` waits for it only so long.
    """

    def __init__(
        self,
        source: Source,
        last: Listing,
        *,
        on_list: Callable[[Listing], None],
        on_trouble: Callable[[str], None],
        every_seconds: float = 1.0,
    ) -> None:
        self._source = source
        self._last = self._seen = last
        self._on_list = on_list
        self._on_trouble = on_trouble
        self._every_seconds = every_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replica-list", daemon=True)
        self._trouble = ""

    def start(self) -> None:
        if self._source.can_change:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def look(self) -> None:
        """Reads once."""
        try:
            listing = self._source.read()
        except (ReplicaError, OSError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._on_trouble(self._trouble)
            return
        self._trouble = ""
        if listing != self._last and listing == self._seen:
            self._last = listing
            self._on_list(listing)
        self._seen = listing

    def _run(self) -> None:
        while not self._stopping.wait(self._every_seconds):
            try:
                self.look()
            except Exception:  # a mistake of ours: without this thread no list is read again
                log.exception("reading the list of replicas failed")


def source_of(settings: Settings, now: Callable[[], float]) -> Source:
    """Where the settings say that the replicas are. Raises SettingsError."""
    try:
        if settings.replicas:
            return FixedList(list(settings.replicas))
    except ReplicaError as error:
        raise SettingsError(f"--replicas: {error}") from error
    if settings.replica_file is not None:
        if settings.replica_file.lower().startswith(("http://", "https://")):
            return ListUrl(settings.replica_file)
        return ListFile(Path(settings.replica_file))
    from router.announced import Namespace  # the store's part; other lists need none of it

    assert settings.namespace is not None
    return Namespace(
        settings.namespace,
        secret_file=settings.secret_file,
        model=settings.model,
        now=now,
    )
