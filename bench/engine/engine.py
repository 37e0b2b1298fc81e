"""SyntheticEngine: one request after the other through an adapter, as LMCache's controllers do it.

The order of LMCache's prefetch controller: lock what L1 holds; look up *all* keys in one call, rank
by rank; fold to the longest prefix every rank has; return the locks outside the plan; reserve
buffers for what L1 lacks; load it in one call; return the plan's locks; keep loaded objects until
the request has used them. Then of its store controller: what was computed becomes resident one
scheduler step at a time, and each step is submitted in one call for each rank, the objects being
lent until the adapter reports. Bytes are real and may be checked. Computing is not done: its
seconds come from the cost model, and the copy to a GPU is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.adapters import Arena
from bench.engine.calls import Calls
from bench.engine.content import Content
from bench.engine.l1 import L1
from bench.engine.models import TORCH_DTYPES, Model
from sharedfs_backend.economics import Prefill

STEP_TOKENS = 8192
"""Prompt tokens of one scheduler step (vLLM's usual max_num_batched_tokens for serving)."""


@dataclass(frozen=True, slots=True)
class Served:
    """What one request took and found. Chunks are counted once, whatever the number of ranks."""

    lookup_seconds: float
    load_seconds: float
    compute_seconds: float
    """Modelled."""
    submit_seconds: float
    """Of the store calls: what storing costs the request's thread before it goes its own way."""
    l1_chunks: int
    l2_chunks: int
    computed_tokens: int
    stored_chunks: int
    damaged_chunks: int

    @property
    def ttft_seconds(self) -> float:
        return self.lookup_seconds + self.load_seconds + self.compute_seconds


def arena_of(model: Model, chunk_tokens: int, chunks: int) -> Arena:
    """Memory for so many chunks of all ranks."""
    import torch

    return Arena(
        chunks * model.ranks,
        model.chunk_bytes(chunk_tokens),
        shape=model.chunk_shape(chunk_tokens),
        dtype=getattr(torch, TORCH_DTYPES[model.dtype]),
    )


class _Grid:
    """A request's keys, one row for each rank, flat and row by row as LMCache submits them."""

    def __init__(self, rows: list[list[Any]]) -> None:
        self.rows = rows
        self.keys = [key for row in rows for key in row]
        self.width = len(rows[0])

    def fold(self, found: Sequence[bool]) -> int:
        """Leading chunks that every rank has."""
        depth, rows = 0, range(0, len(self.keys), max(1, self.width))
        while depth < self.width and all(found[start + depth] for start in rows):
            depth += 1
        return depth

    def before(self, depth: int) -> list[int]:
        """Places of the first `depth` chunks, in the order of `keys`."""
        starts = range(0, len(self.keys), max(1, self.width))
        return [place for start in starts for place in range(start, start + depth)]


class SyntheticEngine:
    """One replica's cache server. Not thread-safe."""

    def __init__(
        self,
        adapter: Any,
        model: Model,
        arena: Arena,
        *,
        chunk_tokens: int,
        prefill: Prefill,
        step_tokens: int = STEP_TOKENS,
        is_checked: bool = False,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.calls = Calls(adapter, now)
        self.l1 = L1(arena.objects)
        self._model, self._layout = model, arena.layout
        self._chunk_tokens, self._step_chunks = chunk_tokens, max(1, step_tokens // chunk_tokens)
        self._prefill, self._now, self._is_checked = prefill, now, is_checked
        self._content = Content(arena.size)
        self._lent: dict[int, list[Any]] = {}
        self.failed_stores = 0
        self.store_seconds: list[float] = []
        """Of each finished store, from its submit."""

    def serve(self, chunks: Sequence[int], prompt_tokens: int, *, may_load: bool = True) -> Served:
        """One request whose whole chunks have these identities."""
        grid = _Grid(self._rows(chunks))
        local = self.l1.lock(grid.keys)
        try:
            depth, local_depth, looked_s, loaded_s, damaged = self._prefetch(grid, local, may_load)
        finally:
            self.l1.unlock(key for key, here in zip(grid.keys, local, strict=True) if here)
        computed = prompt_tokens - min(depth * self._chunk_tokens, prompt_tokens - 1)
        stored, submit_seconds = self._store([row[depth:] for row in grid.rows])
        return Served(
            lookup_seconds=looked_s,
            load_seconds=loaded_s,
            compute_seconds=self._prefill.seconds(computed, prompt_tokens),
            submit_seconds=submit_seconds,
            l1_chunks=local_depth,
            l2_chunks=depth - local_depth,
            computed_tokens=computed,
            stored_chunks=stored,
            damaged_chunks=damaged,
        )

    def finds(self, chunks: Sequence[int]) -> bool:
        """Whether a lookup has all of these, in the adapter; nothing stays locked."""
        keys = _Grid(self._rows(chunks)).keys
        found = self.calls.lookup(keys, {0: self._layout}).found
        self.calls.unlock([key for key, here in zip(keys, found, strict=True) if here])
        return all(found)

    def drain(self) -> None:
        """Wait for every store; the buffers are L1's again."""
        self._returned(self.calls.finished_stores(wait_for=self.calls.open_stores))

    # -- reading -----------------------------------------------------------------------------

    def _prefetch(
        self, grid: _Grid, local: list[bool], may_load: bool
    ) -> tuple[int, int, float, float, int]:
        """Chunks found, of which L1 had, seconds of lookup and of load, damaged chunks."""
        local_depth = grid.fold(local)
        if not grid.keys:
            return 0, 0, 0.0, 0.0, 0
        looked = self.calls.lookup(grid.keys, {0: self._layout})
        depth = local_depth
        if may_load:
            depth = grid.fold([a or b for a, b in zip(local, looked.found, strict=True)])
        planned = [place for place in grid.before(depth) if not local[place]]
        reserved = self.l1.reserve(grid.keys[place] for place in planned)
        if len(reserved) < len(planned):  # L1 is full: the prefix ends where a buffer is missing
            depth = grid.fold(
                [a or key in reserved for a, key in zip(local, grid.keys, strict=True)]
            )
            kept = {grid.keys[place] for place in grid.before(depth)}
            self.l1.discard([key for key in reserved if key not in kept])
            planned = [place for place in grid.before(depth) if not local[place]]
        wanted = set(planned)
        self.calls.unlock(
            [key for p, key in enumerate(grid.keys) if looked.found[p] and p not in wanted]
        )
        if not planned:
            return depth, local_depth, looked.seconds, 0.0, 0
        whole, load_seconds, damaged = self._load([grid.keys[p] for p in planned], reserved)
        have = list(local)
        for place, good in zip(planned, whole, strict=True):
            have[place] = good
        return grid.fold(have), local_depth, looked.seconds, load_seconds, damaged

    def _load(self, keys: list[Any], reserved: dict[Any, Any]) -> tuple[Sequence[bool], float, int]:
        """Which came, seconds, and how many of them are not what was stored."""
        loaded = self.calls.load(keys, [reserved[key] for key in keys])
        good = [key for key, whole in zip(keys, loaded.found, strict=True) if whole]
        damaged = 0
        if self._is_checked:
            damaged = sum(
                not self._content.matches(_bytes_of(reserved[key]), _identity(key)) for key in good
            )
        self.l1.commit(good, temporary=True)
        self.l1.discard([key for key, whole in zip(keys, loaded.found, strict=True) if not whole])
        self.calls.unlock(keys)
        self.l1.unlock(good)  # the GPU has them
        return loaded.found, loaded.seconds, damaged

    # -- writing -----------------------------------------------------------------------------

    def _store(self, rows: list[list[Any]]) -> tuple[int, float]:
        """Submit what was computed, step by step and rank by rank; chunks submitted of rank 0, and
        seconds in the submits."""
        submitted, width, seconds = 0, len(rows[0]), 0.0
        for start in range(0, width, self._step_chunks):
            for rank, row in enumerate(rows):
                keys = row[start : start + self._step_chunks]
                given = self._reserve_for_store(keys)
                if not given:
                    continue
                for key, memory in given.items():
                    self._content.fill(_bytes_of(memory), _identity(key))
                self.l1.commit(given)
                began = self._now()
                task = self.calls.submit_store(list(given), list(given.values()))
                seconds += self._now() - began
                self._lent[task] = list(given)
                submitted += len(given) if rank == 0 else 0
        return submitted, seconds

    def _reserve_for_store(self, keys: list[Any]) -> dict[Any, Any]:
        """Waits for stores under way where their buffers fill L1, as a real server's writers do."""
        self._returned(self.calls.finished_stores())
        given = self.l1.reserve(keys)
        while self.calls.open_stores and any(
            key not in given and not self._is_resident(key) for key in keys
        ):
            self._returned(self.calls.finished_stores(wait_for=1))
            given |= self.l1.reserve(key for key in keys if key not in given)
        return given

    def _is_resident(self, key: Any) -> bool:
        (here,) = self.l1.lock([key])
        if here:
            self.l1.unlock([key])
        return here

    def _returned(self, done: dict[int, tuple[bool, float]]) -> None:
        for task, (succeeded, seconds) in done.items():
            self.l1.unlock(self._lent.pop(task))
            self.store_seconds.append(seconds)
            self.failed_stores += not succeeded

    def _rows(self, chunks: Sequence[int]) -> list[list[Any]]:
        """Keys of each rank, in prefix order: LMCache's grid."""
        from lmcache.v1.distributed.api import ObjectKey

        ranks, name = self._model.ranks, self._model.name
        return [
            [
                ObjectKey(
                    chunk_hash=chunk.to_bytes(32, "big"),
                    model_name=name,
                    kv_rank=ObjectKey.ComputeKVRank(ranks, rank, ranks, rank),
                )
                for chunk in chunks
            ]
            for rank in range(ranks)
        ]


def _bytes_of(memory: Any) -> Any:
    return memory.raw_data.numpy()


def _identity(key: Any) -> bytes:
    """What the content is a function of: the chunk and the rank."""
    chunk: bytes = key.chunk_hash
    return int(key.kv_rank).to_bytes(8, "big") + chunk
