"""vLLM's own file tier, driven as its tiering manager does: one job for all chunks of a request.

A lookup asks for every key, ends the step (`on_schedule_end`, which hands the keys to the tier's
thread) and asks again until no answer is outstanding; a load or a store is one job whose end is
polled for. Same interface as `adapters.Driver`. What a real engine adds (a copy between its CPU
tier and the accelerator, whole scheduler steps of waiting) is left out: this is its best case.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.core.adapters import WAIT_SECONDS, Arena, Timed

VLLM_TIER = "vllm file tier"
POLL_SECONDS = 0.0001


class VllmTier:
    """Stores from `source`, loads into `target`; both as their adapters' first tier."""

    name = VLLM_TIER

    def __init__(self, root: Path, source: Arena, target: Arena) -> None:
        """ImportError where this vLLM has no such tier."""
        from vllm.v1.kv_offload.base import ReqContext, make_offload_key
        from vllm.v1.kv_offload.tiering.base import TransferJob
        from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

        self._context, self._key, self._job = ReqContext, make_offload_key, TransferJob
        root.mkdir(parents=True, exist_ok=True)
        self._stores, self._loads = (
            FileSystemTierManager(_spec(), memoryview(arena.array().data), "fs", str(root))
            for arena in (source, target)
        )
        self._ids = itertools.count()
        self._distinct = source.distinct

    def close_files(self) -> None:
        """It keeps none open."""

    def counts(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._stores.shutdown()
        self._loads.shutdown()

    def unlock(self, keys: Sequence[Any]) -> None:
        """It locks nothing in this tier."""

    def store(self, keys: Sequence[Any], objects: Sequence[Any]) -> Timed:
        return self._transfer(self._stores, self._stores.submit_store, keys, loading=False)

    def load(self, keys: Sequence[Any], objects: Sequence[Any]) -> Timed:
        return self._transfer(self._loads, self._loads.submit_load, keys, loading=True)

    def lookup(self, keys: Sequence[Any]) -> Timed:
        wanted, context = self._keys(keys), self._context(f"lookup {next(self._ids)}")

        def answers() -> list[str]:
            return [self._loads.lookup(key, context).name for key in wanted]

        def ask() -> int | None:
            self._loads.on_schedule_end(None)  # each step collects what has been answered
            found = answers()
            return found.count("HIT") if "RETRY" not in found else None

        def begin() -> None:
            answers()
            self._loads.on_schedule_end(None)

        timed = _timed(begin, ask, len(keys))
        self._loads.on_request_finished(context)
        return timed

    def _transfer(
        self, tier: Any, submit: Callable[[Any], None], keys: Sequence[Any], *, loading: bool
    ) -> Timed:
        number = next(self._ids)
        job = self._job(
            job_id=number,
            keys=self._keys(keys),
            chunk_ids=np.arange(len(keys), dtype=np.int32) % self._distinct,
            is_promotion=loading,
            req_context=self._context(f"request {number}"),
        )

        def ended() -> int | None:
            for result in tier.get_finished_jobs():
                if result.job_id == number:
                    return len(keys) if result.success else len(result.successful_keys or ())
            return None

        return _timed(lambda: submit(job), ended, len(keys))

    def _keys(self, keys: Sequence[Any]) -> list[Any]:
        return [self._key(key.chunk_hash, 0) for key in keys]


def _timed(begin: Callable[[], None], ended: Callable[[], int | None], asked: int) -> Timed:
    start, processor = time.perf_counter(), time.process_time()
    begin()
    while (done := ended()) is None:
        if time.perf_counter() - start > WAIT_SECONDS:
            raise TimeoutError(f"{VLLM_TIER}: no result within {WAIT_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)
    return Timed(time.perf_counter() - start, time.process_time() - processor, done, asked)


def _spec() -> Any:
    """What the tier reads of an engine's offloading configuration."""
    parallel = SimpleNamespace(
        tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, rank=0, is_parallelism_agnostic=True
    )
    config = SimpleNamespace(
        groups=[SimpleNamespace(tokens_per_block=256, layer_names=["bench"])],
        parallel=parallel,
        canonical_layout=False,
        replicated_layout=False,
        model=SimpleNamespace(name="bench-model", dtype="uint8"),
        cache=SimpleNamespace(tokens_per_hash=256),
    )
    return SimpleNamespace(config=config, blocks_per_chunk=1, kv_events_config=None)
