"""Throttle: one throttled mount, from its start to its end.

The file system is a process of its own that lives as long as this one holds its standard input: it
cannot outlast us, whatever happens to us. `set` states the whole behaviour, so what is not named is
off, and nothing of an earlier case is left. `fail` and `hang` come on top, until `clear`.

Two mounts of one backing directory are two clients: with `visible_at_close`, stale attributes or
negative entries, one really sees late what the other did.
"""

from __future__ import annotations

import select
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from bench.throttle.available import ThrottleUnavailable, is_mounted, require
from bench.throttle.control import ANY, CLASSES, Control, Counters
from bench.throttle.quirks import Quirks, named

if TYPE_CHECKING:
    from bench.throttle.accuracy import Measured

START_SECONDS = 20.0
STOP_SECONDS = 10.0
BURST_MS = 1.0
"""Enough for the next request of a reader that asks for one piece after the other."""
NUMBER_MAX = 1e9
"""More than any latency or bandwidth that is meant."""
CACHED_MS = 1000.0
"""With the kernel's caches on, names and attributes are believed as long as is usual for FUSE."""


class Throttle:
    """The directory `backing`, mounted again at `mountpoint` (both are made if missing).

    `cache=True` lets the kernel cache pages, names and attributes; else each call is a request.
    Raises ThrottleUnavailable, whose message says what to install.
    """

    def __init__(self, backing: Path, mountpoint: Path, *, cache: bool = False) -> None:
        program = require()
        backing.mkdir(parents=True, exist_ok=True)
        mountpoint.mkdir(parents=True, exist_ok=True)
        self.backing = backing
        self.mountpoint = mountpoint
        self.cache = cache
        self._folder = tempfile.mkdtemp(prefix="throttle-")  # a socket's path has 107 bytes at most
        self.control = Control(Path(self._folder) / "control")
        self._process = subprocess.Popen(
            [program, mountpoint, backing, self.control.socket_path, *_words(self._settings())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process that serves the mount: for its CPU time and memory."""
        return self._process.pid

    def set(
        self,
        *,
        latency_ms: float | Mapping[str, float] = 0.0,
        bandwidth_mb_s: float | None = None,
        jitter_ms: float = 0.0,
        burst_ms: float = BURST_MS,
        quirks: Quirks | str | None = None,
        seed: int = 1,
    ) -> None:
        """Behave so from now on; what is not given is off.

        `latency_ms`: one number for metadata, open, read and write, or a number for each class in
        `CLASSES`. It is added to what the operation itself takes in the backing directory, save
        what passes meanwhile. A close costs nothing unless named. `jitter_ms`: each latency is
        uniform within +-. `bandwidth_mb_s` (10^6 bytes) is the limit of reads and, apart, of
        writes; what it passes in `burst_ms` passes at once after a pause. `quirks`: a value, or
        the name of a file system in tests/quirks.toml.
        """
        self.control.change(
            self._settings(latency_ms, bandwidth_mb_s, jitter_ms, burst_ms, quirks, seed)
        )

    def counters(self) -> Counters:
        """What was asked of the mount since it began."""
        return self.control.counters()

    def fail(self, error: str, *, of: str = ANY, at: int = 1, count: int = 1) -> None:
        """See `Control.fail`."""
        self.control.fail(error, of=of, at=at, count=count)

    def hang(self, *, of: str = ANY, at: int = 1, count: int = 0) -> None:
        """See `Control.hang`."""
        self.control.hang(of=of, at=at, count=count)

    def clear(self) -> None:
        """No faults from now on; what hangs goes on."""
        self.control.clear()

    def accuracy(self) -> list[Measured]:
        """Asked against got, measured now on this mount; its settings are put back."""
        from bench.throttle.accuracy import measure  # which needs this module

        return measure(self)

    def close(self) -> None:
        """Unmount and end the process; calls that hang go on first."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        if is_mounted(self.mountpoint):  # it was killed, by us or by somebody else
            subprocess.run(["fusermount3", "-uz", self.mountpoint], check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Throttle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _settings(
        self,
        latency_ms: float | Mapping[str, float] = 0.0,
        bandwidth_mb_s: float | None = None,
        jitter_ms: float = 0.0,
        burst_ms: float = BURST_MS,
        quirks: Quirks | str | None = None,
        seed: int = 1,
    ) -> dict[str, int]:
        chosen = named(quirks) if isinstance(quirks, str) else quirks or Quirks()
        for what, number in (
            *((f"latency_ms of {name}", ms) for name, ms in _each(latency_ms).items()),
            ("jitter_ms", jitter_ms),
            ("burst_ms", burst_ms),
            ("bandwidth_mb_s", bandwidth_mb_s or 0.0),
        ):
            if not 0 <= number < NUMBER_MAX:
                raise ValueError(f"{what}: {number!r} is below 0 or too much")
        bytes_per_second = round((bandwidth_mb_s or 0.0) * 1e6)
        if bandwidth_mb_s and not bytes_per_second:  # 0 means no limit
            raise ValueError(f"bandwidth_mb_s: {bandwidth_mb_s!r} is less than a byte per second")
        settings = chosen.settings() | {
            **{f"latency_{name}_us": 0 for name in CLASSES},
            **{f"latency_{name}_us": round(ms * 1e3) for name, ms in _each(latency_ms).items()},
            "jitter_us": round(jitter_ms * 1e3),
            "read_bytes_per_second": bytes_per_second,
            "write_bytes_per_second": bytes_per_second,
            "burst_us": round(burst_ms * 1e3),
            "direct_io": int(not self.cache),
            "keep_cache": int(self.cache),
            "seed": seed,
        }
        if self.cache:
            for name in ("entry_us", "directory_us", "attribute_us"):
                settings[name] = settings[name] or round(CACHED_MS * 1e3)
        return settings

    def _await_ready(self) -> None:
        output = self._process.stdout
        assert output is not None
        if select.select([output], [], [], START_SECONDS)[0] and output.readline() == b"ready\n":
            return
        self._process.kill()
        said = self._process.communicate()[1].decode(errors="replace").strip()
        raise ThrottleUnavailable(f"{self.mountpoint} could not be mounted: {said or 'no answer'}")


def _each(latency_ms: float | Mapping[str, float]) -> Mapping[str, float]:
    if isinstance(latency_ms, Mapping):
        if unknown := latency_ms.keys() - set(CLASSES):
            raise ValueError(f"no such classes of operations: {sorted(unknown)}")
        return latency_ms
    return {name: latency_ms for name in CLASSES if name != "close"}


def _words(settings: Mapping[str, int]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]
