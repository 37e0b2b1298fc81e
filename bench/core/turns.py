"""Contenders in turns: one round lets each store, look up and load the same batch, then the next.

The order within a round rotates, so that noise and warm-up meet all alike; what a contender left
behind in a round is removed before its next turn, from behind the mount, outside of any timing.
Every loaded byte is compared. A turn that fails costs that turn: it is recorded as not measured.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.core.adapters import OURS, Arena, Driver, Timed, object_keys
from bench.core.case import Context, Parameter
from bench.core.mounts import Conditions, Mount, let_go_of_pages
from bench.core.vllm_tier import VLLM_TIER, VllmTier

WARMUP_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Keys of one submit, and the bytes of each."""

    count: int
    size: int

    @property
    def total(self) -> int:
        return self.count * self.size

    def __str__(self) -> str:
        kib = self.size // 1024
        return f"{self.count} x " + (f"{kib / 1024:g} MiB" if kib >= 1024 else f"{kib} KiB")


class Memory:
    """What is stored from and loaded into; made once for a batch, used by every contender."""

    def __init__(self, batch: Batch, seed: int, distinct: int | None = None) -> None:
        self.batch = batch
        self.source = Arena(batch.count, batch.size, distinct=distinct)
        self.target = Arena(batch.count, batch.size, distinct=distinct)
        self.source.fill(seed)

    def wrong_chunks(self) -> int:
        """Loaded chunks that differ from what was stored."""
        words = np.uint64 if self.batch.size % 8 == 0 else np.uint8  # words: far quicker
        same = (self.source.array().view(words) == self.target.array().view(words)).all(axis=1)
        return int(np.count_nonzero(~same))


class Turn:
    """One contender within a cell: its driver, and the numbers of the keys it used so far."""

    def __init__(
        self, name: str, mount: Mount, cell: str, memory: Memory, adapter: str = ""
    ) -> None:
        adapter = adapter or name
        slug = re.sub(r"[^a-z0-9._]+", "-", f"{cell}-{name}".lower())
        self.name, self._mount, self._folder, self.memory = name, mount, slug, memory
        root = mount.path / self._folder
        self.driver: Any = (
            VllmTier(root, memory.source, memory.target)
            if adapter == VLLM_TIER
            else Driver(adapter, root, memory.source)
        )
        self._first = 0

    def next_keys(self) -> list[object]:
        self._first += self.memory.batch.count
        return object_keys(self._first, self.memory.batch.count)

    def let_go(self) -> None:
        """What was stored is served from where it lies, for every contender alike."""
        let_go_of_pages(self._mount.backing / self._folder)

    def remove_data(self) -> None:
        """What was stored so far, from behind the mount. Ours keeps its journals."""
        self.driver.close_files()
        for path in (self._mount.backing / self._folder).rglob("*"):
            is_pack = path.parent.parent.name == "packs"
            if path.is_file() and (is_pack or self.driver.name != OURS):
                path.unlink()

    def close(self) -> None:
        self.driver.close()
        shutil.rmtree(self._mount.backing / self._folder, ignore_errors=True)


@contextlib.contextmanager
def turns(
    names: Sequence[str],
    mount: Mount,
    cell: str,
    memory: Memory,
    adapters: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Turn]]:
    """A turn for each contender, made without any added latency, closed at the end. `adapters`
    says whose adapter a contender uses if not the one of its name."""
    mount.apply(Conditions())
    made: dict[str, Turn] = {}
    try:
        for name in names:
            made[name] = Turn(name, mount, cell, memory, (adapters or {}).get(name, ""))
        yield made
    finally:
        mount.apply(Conditions())
        for turn in made.values():
            turn.close()


def rotated(names: Sequence[str], round_: int) -> list[str]:
    """The order of a round."""
    at = round_ % len(names)
    return [*names[at:], *names[:at]]


def store_lookup_load(
    context: Context,
    mount: Mount,
    names: Sequence[str],
    memory: Memory,
    conditions: Conditions,
    *,
    cell: str,
    rounds: int,
    **params: Parameter,
) -> None:
    """Rounds of all three operations. Rows: store, lookup, load, lookup_load in ms, and processor
    ms of the process beside each."""
    with turns(names, mount, cell, memory) as made:
        mount.apply(conditions)
        for number in range(-WARMUP_ROUNDS, rounds):
            for name in rotated(names, number):
                context.progress.step(f"{cell}, {name}, round {number + 1} of {rounds}")
                turn = made[name]
                fixed: dict[str, Parameter] = {"cell": cell, "adapter": name, **params}
                try:
                    timed = one_turn(turn)
                except (TurnFailed, TimeoutError, OSError) as error:
                    if number >= 0:
                        for metric in ("store", "lookup", "load", "lookup_load"):
                            context.record(
                                metric, None, "ms", repeat=number, note=str(error), **fixed
                            )
                    turn.remove_data()  # a full directory must not fail the next turn too
                    continue
                if number >= 0:
                    record(context, timed, number, fixed)
                turn.remove_data()


def one_turn(turn: Turn) -> dict[str, Timed]:
    """Store, look up, load, compare. Raises TurnFailed where not every chunk made it."""
    keys = turn.next_keys()
    driver, memory = turn.driver, turn.memory
    timed = {"store": driver.store(keys, memory.source.objects)}
    turn.let_go()
    timed["lookup"] = driver.lookup(keys)
    memory.target.clear()
    timed["load"] = driver.load(keys, memory.target.objects)
    driver.unlock(keys)
    for operation, one in timed.items():
        if not one.complete:
            raise TurnFailed(f"{operation}: {one.succeeded} of {one.asked} chunks")
    wrong = memory.wrong_chunks()
    if wrong:
        raise TurnFailed(f"load: {wrong} of {memory.batch.count} chunks hold other bytes")
    return timed


class TurnFailed(Exception):
    """A contender did not do what it was asked; the text says what."""


def record(
    context: Context, timed: dict[str, Timed], number: int, fixed: dict[str, Parameter]
) -> None:
    for operation, one in timed.items():
        context.record(operation, one.seconds * 1e3, "ms", repeat=number, note="", **fixed)
        context.record(
            f"{operation}_cpu", one.cpu_seconds * 1e3, "ms", repeat=number, note="", **fixed
        )
    together = (timed["lookup"].seconds + timed["load"].seconds) * 1e3
    context.record("lookup_load", together, "ms", repeat=number, note="", **fixed)
