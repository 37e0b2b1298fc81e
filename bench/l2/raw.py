"""Pack writer and reader alone, beside the native client of LMCache's fs_native adapter.

    python -m bench.l2.raw --chunks 64 --chunk-kib 4096 [--rounds 9] [--dir DIR]

Rounds of the two alternate, so that noise of the machine meets both; what counts is the median of
the rounds' ratios (above 1: we are faster). As in `lmcache bench l2`, every round stores under new
names, and loading begins when all are stored, into zeroed memory; every byte is compared. Reads
come from the page cache, too much of it for any processor cache: this measures processor cost. Our
figures include hashing and verifying, which the native client does not do.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sharedfs_backend.buffers import BufferPool
from sharedfs_backend.depth import ReadDepth
from sharedfs_backend.dirty import DirtyBudget
from sharedfs_backend.fdcache import FdCache
from sharedfs_backend.files import LocalFiles
from sharedfs_backend.gate import Gate
from sharedfs_backend.layout import LayoutDescriptor, PackCommit, PackName, Seal
from sharedfs_backend.packjob import PackJob, WriteOutcome
from sharedfs_backend.reader import PackReader
from sharedfs_backend.readplan import ChunkRead
from sharedfs_backend.runtime import Lane, ThreadRuntime
from sharedfs_backend.writer import PackWriter

MIB = 1 << 20
LAYOUT = LayoutDescriptor(("uint8",), ((1,),), "bench", 256)


@dataclass(frozen=True, slots=True)
class Setup:
    """What can be tuned."""

    chunks: int
    chunk_bytes: int
    piece_bytes: int
    packs: int
    depth_max: int


class Ours:
    """Packs through PackWriter and PackReader on the real runtime."""

    def __init__(self, root: str, setup: Setup) -> None:
        self._setup = setup
        os.makedirs(os.path.join(root, "packs", "00"))
        self._runtime = ThreadRuntime()
        files, seal = LocalFiles(root), Seal()
        self._writer = PackWriter(
            files, self._runtime, seal, piece_bytes=setup.piece_bytes, dirty=DirtyBudget(1 << 40)
        )
        cores = len(os.sched_getaffinity(0))
        self._reader = PackReader(
            files,
            self._runtime,
            seal,
            fds=FdCache(files, self._runtime.now),
            buffers=BufferPool(setup.piece_bytes, 256 * MIB),
            depth=ReadDepth(cores, setup.depth_max),
        )
        self._commits: dict[int, list[PackCommit]] = {}
        self._seq = 0

    def store(self, round_: int, buffers: list[memoryview]) -> None:
        setup = self._setup
        per_pack = -(-setup.chunks // setup.packs)
        outcomes: list[WriteOutcome | None] = [None] * setup.packs
        waiters = [self._runtime.waiter() for _ in range(setup.packs)]
        for number in range(setup.packs):
            part = buffers[number * per_pack : (number + 1) * per_pack]
            self._seq += 1
            job = PackJob.plan(
                name=PackName(bytes(16), "0123456789abcdef", self._seq),
                realm=bytes(16),
                layout=LAYOUT,
                fingerprint=LAYOUT.fingerprint(Seal()),
                rank=0,
                version=1,
                keys=[key.to_bytes(16, "big") for key in range(len(part))],
                buffers=part,
                gates=[Gate()] * len(part),
                submitted=self._runtime.now(),
                ttl_seconds=300,
                align_bytes=4096,
            )

            def work(number: int = number, job: PackJob = job) -> None:
                outcomes[number] = self._writer.write(job)
                waiters[number].set()

            self._runtime.submit(Lane.WRITE, work)
        for waiter in waiters:
            waiter.wait()
        written = [outcome.written for outcome in outcomes if outcome is not None]
        self._commits[round_] = [pack.commit for pack in written if pack is not None]
        if len(self._commits[round_]) != setup.packs:
            raise RuntimeError(f"a pack was not written: {outcomes}")

    def load(self, round_: int, buffers: list[memoryview]) -> None:
        reads = [
            ChunkRead(commit.name, row.offset, row.length, row.checksum)
            for commit in self._commits[round_]
            for row in commit.entries
        ]
        task = self._reader.submit(reads, buffers, deadline=self._runtime.now() + 60)
        task.wait()
        if not all(task.loaded):
            raise RuntimeError(f"a chunk was not loaded: {task.outcomes}")

    def close(self) -> None:
        self._reader.close()
        self._runtime.close(5.0)


class Native:
    """One file for each chunk through LMCache's C++ client, as its fs_native adapter does it."""

    def __init__(self, root: str, setup: Setup, workers: int = 4) -> None:
        from lmcache.lmcache_fs import LMCacheFSClient

        os.makedirs(root)
        self._client: Any = LMCacheFSClient(root, workers, "", False, 0)
        self._poll = select.poll()
        self._poll.register(self._client.event_fd(), select.POLLIN)
        self._chunks = setup.chunks

    def _keys(self, round_: int) -> list[str]:
        return [f"bench@{chunk}@{round_:08x}{chunk:08x}@0" for chunk in range(self._chunks)]

    def _wait(self, future: int) -> None:
        while True:
            self._poll.poll(60_000)
            for done in self._client.drain_completions():
                if int(done[0]) == future:
                    if not done[1]:
                        raise RuntimeError(f"native client: {done}")
                    return

    def store(self, round_: int, buffers: list[memoryview]) -> None:
        self._wait(self._client.submit_batch_set(self._keys(round_), buffers))

    def load(self, round_: int, buffers: list[memoryview]) -> None:
        self._wait(self._client.submit_batch_get(self._keys(round_), buffers))

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one operation: elapsed, and processor time of all threads."""

    wall_seconds: float
    cpu_seconds: float


def _cost(
    work: Callable[[int, list[memoryview]], None], number: int, buffers: list[memoryview]
) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    work(number, buffers)
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def _slices(memory: NDArray[np.uint8], setup: Setup) -> list[memoryview]:
    size = setup.chunk_bytes
    whole = memory.data
    return [whole[at * size : (at + 1) * size] for at in range(setup.chunks)]


def measure(setup: Setup, rounds: int, root: str) -> dict[str, list[tuple[Cost, Cost]]]:
    """Cost of (native, ours) by operation and round, the first round left out."""
    size = setup.chunks * setup.chunk_bytes
    source = np.frombuffer(np.random.default_rng(1).bytes(size), np.uint8).copy()
    target = np.zeros(size, np.uint8)
    sides: list[Native | Ours] = [
        Native(os.path.join(root, "native"), setup),
        Ours(os.path.join(root, "ours"), setup),
    ]
    times: dict[str, list[tuple[Cost, Cost]]] = {"store": [], "load": []}
    for operation, pairs in times.items():
        for number in range(rounds + 1):
            costs = [Cost(0, 0)] * 2
            for side in (0, 1) if number % 2 else (1, 0):
                if operation == "store":
                    costs[side] = _cost(sides[side].store, number, _slices(source, setup))
                    continue
                target[:] = 0
                costs[side] = _cost(sides[side].load, number, _slices(target, setup))
                if not np.array_equal(source, target):
                    raise RuntimeError("what was loaded is not what was stored")
            if number:
                pairs.append((costs[0], costs[1]))
    for side_ in sides:
        side_.close()
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--chunk-kib", type=int, default=4096)
    parser.add_argument("--piece-kib", type=int, default=4096)
    parser.add_argument("--packs", type=int, default=2)
    parser.add_argument("--depth-max", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dir", default=None, help="where to make the scratch directory")
    given = parser.parse_args()
    setup = Setup(
        given.chunks, given.chunk_kib << 10, given.piece_kib << 10, given.packs, given.depth_max
    )
    root = tempfile.mkdtemp(prefix="bench-l2-", dir=given.dir)
    try:
        times = measure(setup, given.rounds, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    size = setup.chunks * setup.chunk_bytes / MIB
    print(
        f"{setup.chunks} x {setup.chunk_bytes >> 10} KiB, pieces of {setup.piece_bytes >> 10} KiB"
    )
    for operation, pairs in times.items():
        native = statistics.median(pair[0].wall_seconds for pair in pairs)
        ours = statistics.median(pair[1].wall_seconds for pair in pairs)
        ratio = statistics.median(pair[0].wall_seconds / pair[1].wall_seconds for pair in pairs)
        native_cpu = statistics.median(pair[0].cpu_seconds for pair in pairs)
        ours_cpu = statistics.median(pair[1].cpu_seconds for pair in pairs)
        print(
            f"  {operation:5s}  fs_native {size / native:6.0f} MiB/s  ours {size / ours:6.0f} MiB/s"
            f"  median ratio {ratio:.2f}  processor time {native_cpu * 1e3:.0f} ms, ours"
            f" {ours_cpu * 1e3:.0f} ms"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
