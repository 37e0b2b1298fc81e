"""Probing: what one operation and one byte cost on a mounted directory, found in under a minute.

Everything happens in a scratch directory of a name that is never used again, removed afterwards.
Each phase stops at its share of the time, so a slow mount gets few samples instead of a long wait.
What was written is flushed and its pages dropped before it is read, as far as the mount allows;
where a sample is then still in memory, the result says so. Names, attributes and, on some clients,
data stay cached all the same: only another machine sees the mount cold.

Effects only, through `Files`; time and randomness are arguments. A mount may hang: callers run this
on a thread they can afford to lose, and remove the emptied scratch directory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from sharedfs_backend.economics.judging import Tier
from sharedfs_backend.files import FileFailure, Files, Handle
from sharedfs_backend.files.probe import SCRATCH_PREFIX

KIB, MIB = 1 << 10, 1 << 20
SMALL_BYTES = 4 * KIB
SMALL_FILES = 64
PIECE_BYTES = 4 * MIB
FILE_BYTES = 96 * MIB
FILES = 4
"""Written and read at the same time: kernels admit one writer of a file at a time."""
WORKERS = (1, 4, 8, 16, 32)
SECONDS_MAX = 40.0
PHASES = 8
ROUND_SECONDS, ROUND_SECONDS_MAX = 0.5, 2.0
ROUND_OPERATIONS = 20
"""A round with so many threads takes as long as this many of its operations alone."""
PART_BYTES, PART_READS = 768 * KIB, 8
"""One request to a network mount, also where memory is not aligned to pages: those end at 1 MiB."""
MOSTLY = 2.0
"""A piece that takes so many times what its bytes alone take is mostly latency."""
SHORT_OF = 0.8
REACHED = 0.25
"""See `latency_limits`."""

Now = Callable[[], float]
IsCached = Callable[[Handle, int, memoryview], bool]
"""Whether a range of an open file could be had from this machine's memory, without waiting."""


@dataclass(slots=True)
class Prober:
    """One probe of one directory. `probe` once; not thread-safe."""

    files: Files
    now: Now
    random_bytes: Callable[[int], bytes]
    is_cached: IsCached = lambda handle, offset, into: False
    progress: Callable[[int, int], None] = lambda done, total: None
    seconds_max: float = SECONDS_MAX
    scratch: str = ""
    made: int = 0

    def probe(self, file_system: str = "") -> Tier:
        """The tier as it is now. Raises FileFailure where the directory cannot be used."""
        self.scratch = SCRATCH_PREFIX + self.random_bytes(8).hex()
        self.files.make_dir(self.scratch)
        try:
            return self._probe(file_system)
        finally:
            self._remove()

    def _probe(self, file_system: str) -> Tier:
        create = self._create()
        self.progress(1, PHASES)
        stat, opened, read, whole = self._operations()
        self.progress(2, PHASES)
        overlap, workers = self._overlap(whole)
        self.progress(4, PHASES)
        names, written = self._write()
        self.progress(6, PHASES)
        cached = self._any_cached(names[-1])
        part = self._part_seconds(names[0])
        single = self._read(names[:1], 1)
        self.progress(7, PHASES)
        best = max(self._read(names[1:] or names, width) for width in WORKERS[1:])
        self.progress(8, PHASES)
        return Tier(
            stat_seconds=stat,
            open_seconds=opened,
            read_seconds=read,
            create_seconds=create,
            overlap=overlap,
            workers=workers,
            read_bytes_per_second=max(best, single),
            single_bytes_per_second=single,
            write_bytes_per_second=written,
            is_cached=cached,
            is_latency_bound=latency_limits(read, part, single, best),
            file_system=file_system,
        )

    # -- operations --------------------------------------------------------------------------

    def _create(self) -> float:
        data, taken = self.random_bytes(SMALL_BYTES), []
        for _ in self._until(SMALL_FILES):
            name = f"{self.scratch}/s{self.made}"
            began = self.now()
            handle = self.files.create(name)
            self.made += 1
            try:
                self.files.write(handle, 0, [data])
                written = self.now()
                self._drop(handle, SMALL_BYTES)
                dropped = self.now()
            finally:
                self.files.close(handle)
            taken.append(self.now() - dropped + written - began)
        return _median(taken)

    def _operations(self) -> tuple[float, float, float, float]:
        """Seconds of a stat, of an open, of a small read, and of open, read and close together."""
        into = memoryview(bytearray(SMALL_BYTES))
        stats, opens, reads, wholes = [], [], [], []
        for number in self._until(self.made):
            name = f"{self.scratch}/s{number}"
            at = self.now()
            self.files.size(name)
            after_stat = self.now()
            handle = self.files.open_read(name)
            after_open = self.now()
            try:
                self.files.read(handle, 0, into)
                reads.append(self.now() - after_open)
                self._drop(handle, SMALL_BYTES)
            finally:
                self.files.close(handle)
            stats.append(after_stat - at)
            opens.append(after_open - after_stat)
            wholes.append(self.now() - after_stat)
        return _median(stats), _median(opens), _median(reads), _median(wholes)

    def _overlap(self, one_seconds: float) -> tuple[float, int]:
        """How many open-and-reads the mount works on at once, and with how many threads seen."""
        best, workers = 1.0, 1
        seconds = min(ROUND_SECONDS_MAX, max(ROUND_SECONDS, ROUND_OPERATIONS * one_seconds))
        for width in WORKERS[1:]:
            reached = self._rate(width, seconds) * one_seconds
            if reached > best:
                best, workers = reached, width
            if reached < width / 8:
                break  # more threads will not overlap more
        return min(best, float(workers)), workers

    def _rate(self, width: int, seconds: float) -> float:
        """Open-and-reads per second with so many threads."""
        began, counts = self.now(), [0] * width

        def work(place: int) -> None:
            into = memoryview(bytearray(SMALL_BYTES))
            number = place
            while self.now() - began < seconds:
                handle = self.files.open_read(f"{self.scratch}/s{number % self.made}")
                try:
                    self.files.read(handle, 0, into)
                    self._drop(handle, SMALL_BYTES)
                finally:
                    self.files.close(handle)
                counts[place] += 1
                number += width

        _in_parallel(width, work)
        return sum(counts) / max(self.now() - began, 1e-9)

    # -- bytes -------------------------------------------------------------------------------

    def _write(self) -> tuple[list[tuple[str, int]], float]:
        """(name, bytes) of the files made, and bytes per second, closing and flushing included."""
        block = memoryview(self.random_bytes(PIECE_BYTES))
        names = [f"{self.scratch}/b{number}" for number in range(FILES)]
        sizes = [0] * FILES
        began, share = self.now(), self.seconds_max / 4

        def work(place: int) -> None:
            handle = self.files.create(names[place])
            try:
                while sizes[place] < FILE_BYTES:
                    cut = (sizes[place] // PIECE_BYTES * FILES + place + 1) * SMALL_BYTES
                    cut %= PIECE_BYTES  # no two pieces are alike
                    self.files.write(handle, sizes[place], [block[cut:], block[:cut]])
                    sizes[place] += PIECE_BYTES
                    if self.now() - began > share:
                        break
                self._drop(handle, sizes[place])
            finally:
                self.files.close(handle)

        _in_parallel(FILES, work)
        seconds = self.now() - began
        made = [(name, size) for name, size in zip(names, sizes, strict=True) if size]
        return made, sum(sizes) / max(seconds, 1e-9)

    def _any_cached(self, file: tuple[str, int]) -> bool:
        name, _ = file
        handle = self.files.open_read(name)
        try:
            return self.is_cached(handle, 0, memoryview(bytearray(SMALL_BYTES)))
        finally:
            self.files.close(handle)

    def _part_seconds(self, file: tuple[str, int]) -> float:
        """Of reading one part, alone: what clients ask for in one request."""
        handle, taken = self.files.open_read(file[0]), []
        into = memoryview(bytearray(PART_BYTES))
        try:
            for number in self._until(PART_READS):
                began = self.now()
                self.files.read(handle, number * PIECE_BYTES % file[1], into)
                taken.append(self.now() - began)
            self._drop(handle, file[1])
        finally:
            self.files.close(handle)
        return _median(taken)

    def _read(self, files: list[tuple[str, int]], width: int) -> float:
        """Bytes per second of pieces of these files, `width` in flight."""
        handles = [(self.files.open_read(name), size) for name, size in files]
        pieces = iter(
            [
                (handle, offset)
                for offset in range(0, FILE_BYTES, PIECE_BYTES)
                for handle, size in handles
                if offset < size
            ]
        )
        lock, done = threading.Lock(), [0] * width
        began, share = self.now(), self.seconds_max / 10

        def work(place: int) -> None:
            into = memoryview(bytearray(PIECE_BYTES))
            while self.now() - began < share or not done[place]:
                with lock:
                    piece = next(pieces, None)
                if piece is None:
                    return
                done[place] += self.files.read(piece[0], piece[1], into)

        try:
            _in_parallel(width, work)
            return sum(done) / max(self.now() - began, 1e-9)
        finally:
            for handle, size in handles:
                self._drop(handle, size)
                self.files.close(handle)

    # -- inside ------------------------------------------------------------------------------

    def _until(self, count: int) -> Iterator[int]:
        """0, 1, ... below `count`, ended early by the phase's time; at least one."""
        began = self.now()
        for number in range(count):
            if number and self.now() - began > self.seconds_max / PHASES:
                return
            yield number

    def _drop(self, handle: Handle, size: int) -> None:
        """Let go of a file's pages, so that the next read asks the file system."""
        with contextlib.suppress(FileFailure):  # then the result says that reads were cached
            self.files.flush(handle, 0, size)

    def _remove(self) -> None:
        names = [f"{self.scratch}/s{number}" for number in range(self.made)]
        names += [f"{self.scratch}/b{number}" for number in range(FILES)]
        for name in names:
            with contextlib.suppress(FileFailure):  # a few MiB left for `gc`
                self.files.unlink(name)


def latency_limits(small_seconds: float, part_seconds: float, single: float, best: float) -> bool:
    """Whether latency, not bytes, limits the bandwidth `best` of many reads in flight.

    A small read is latency alone; what a part takes beyond it are its bytes, which gives the rate
    of one stream without latency. Latency limits where a lone piece is mostly latency, where even
    all streams together fall short of one without it, and where they come near what that latency
    lets so many of them do (else it is the processor that is short).
    """
    stream = PART_BYTES / max(part_seconds - small_seconds, 1e-9)
    is_mostly = PIECE_BYTES / single > MOSTLY * PIECE_BYTES / stream
    return is_mostly and best < SHORT_OF * stream and best >= REACHED * WORKERS[-1] * single


def _in_parallel(width: int, work: Callable[[int], None]) -> None:
    """Run `work(0)` ... `work(width - 1)` on threads; the first failure is raised here."""
    failures: list[FileFailure] = []

    def run(place: int) -> None:
        try:
            work(place)
        except FileFailure as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _median(taken: list[float]) -> float:
    return max(median(taken), 1e-7)
