"""`sharedfs fit`: whether a mounted directory can pay for a model, in plain words.

Reads the model's config, probes the directory on a thread that a hanging mount may keep, judges,
prints. The formulas and the probe are `economics`'; nothing of a namespace is read or written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharedfs_backend.cli.output import Output, Report, Status
from sharedfs_backend.economics.judging import Answer, Tier, Verdict, in_words, judge
from sharedfs_backend.economics.models import SPEED_TOKENS, prefill_of_speed
from sharedfs_backend.economics.probing import SECONDS_MAX, Prober
from sharedfs_backend.exceptions import ConfigError, NamespaceMissing
from sharedfs_backend.files import (
    CachedReads,
    FailureKind,
    FileFailure,
    FlushMethod,
    Handle,
    LocalFiles,
    probe,
)

__all__ = ["SPEED_TOKENS", "Question", "answer", "probe_tier", "read_config"]

CONFIG_BYTES_MAX = 4 << 20
PATIENCE_SECONDS = 55.0
"""Beyond the probe's own time a mount is taken to hang."""
TOKENS_PER_SECOND_MAX = 1e12
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "auto": 0}
"""Bytes of one number of KV by its dtype; auto: the model's own."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be decided."""

    path: Path
    model: Path
    tokens_per_second: float
    at_tokens: int
    kv_dtype: str


def answer(question: Question, output: Output, *, seconds_max: float = SECONDS_MAX) -> Status:
    """Probe, judge, print. Raises ConfigError, NamespaceMissing, FileFailure."""
    config = read_config(question.model)
    dtype_bytes = _dtype_bytes(question.kv_dtype, config)
    if not 0 < question.tokens_per_second <= TOKENS_PER_SECOND_MAX:
        raise ConfigError(
            f"--prefill-tokens-per-second: must be more than 0, {TOKENS_PER_SECOND_MAX:g} at most"
        )
    try:
        prefill = prefill_of_speed(config, question.tokens_per_second, question.at_tokens)
        judge(_PLACEHOLDER, config, prefill, dtype_bytes)  # before a minute is spent on probing
        with output.progress("probing", "parts") as progress:
            tier = _within(PATIENCE_SECONDS, lambda: _probed(question.path, progress, seconds_max))
        verdict = judge(tier, config, prefill, dtype_bytes)
    except ValueError as error:
        raise ConfigError(f"--model {question.model}: {error}") from None
    _show(output, question, tier, verdict)
    return Status.PROBLEMS if verdict.answer is Answer.NO else Status.OK


def _probed(path: Path, progress: Report, seconds_max: float) -> Tier:
    """Looking at the path is part of it: where a mount hangs, that hangs too."""
    if not path.is_dir():
        raise NamespaceMissing(
            f"{path}: is no directory; check the path, and that it is mounted here"
        )
    return probe_tier(path, progress, seconds_max)


def probe_tier(path: Path, progress: Report, seconds_max: float = SECONDS_MAX) -> Tier:
    """What the directory's operations and bytes cost. Raises FileFailure."""
    root = os.path.abspath(path)
    profile = probe(root)
    if profile.flush is FlushMethod.NONE and profile.fadvise:
        profile = dataclasses.replace(profile, flush=FlushMethod.RANGE)  # pages must go, here
    files = LocalFiles(root, profile)

    def is_cached(handle: Handle, offset: int, into: memoryview) -> bool:
        if profile.cached_reads is CachedReads.NONE:
            return False
        return files.read_cached(handle, offset, [into]) == into.nbytes

    prober = Prober(files, time.perf_counter, os.urandom, is_cached, progress, seconds_max)
    try:
        return prober.probe(profile.name)
    finally:
        with contextlib.suppress(OSError):  # an empty directory is left
            os.rmdir(os.path.join(root, prober.scratch))


def read_config(path: Path) -> dict[str, Any]:
    """A model's config: the file, or the directory that holds a `config.json`. ConfigError."""
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as stream:
            config = json.loads(stream.read(CONFIG_BYTES_MAX))
    except OSError as error:
        raise ConfigError(f"--model {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--model {file}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"--model {file}: must hold one JSON object")
    return config


def _dtype_bytes(kv_dtype: str, config: dict[str, Any]) -> int:
    if kv_dtype not in DTYPES:
        raise ConfigError(f"--kv-dtype {kv_dtype}: one of {', '.join(DTYPES)}")
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    own = str(inner.get("dtype") or inner.get("torch_dtype") or config.get("torch_dtype") or "")
    return DTYPES[kv_dtype] or DTYPES.get(own, 2)


def _within(seconds: float, work: Callable[[], Tier]) -> Tier:
    """What `work` returns, or raises; FileFailure if it takes longer. Its thread is then lost."""
    found: list[Tier] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # raised again where it can be told
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise FileFailure(
            FailureKind.TIMEOUT, "probe", "", f"no answer within {seconds:.0f} s: the mount hangs"
        )
    return found[0]


def _show(output: Output, question: Question, tier: Tier, verdict: Verdict) -> None:
    words = in_words(tier, verdict)
    fields = dataclasses.asdict(verdict) | {
        "answer": verdict.answer.value,
        "bytes_per_second_min": _finite(verdict.bytes_per_second_min),
        "tier": dataclasses.asdict(tier),
        "words": words,
    }
    speed = f"{question.tokens_per_second:,.0f} tokens/s at {question.at_tokens:,} tokens"
    output.result(
        fields,
        [
            ("directory", f"{question.path} ({tier.file_system})"),
            ("model", f"{question.model}, {verdict.kv_bytes_per_token:,} bytes of KV per token"),
            ("prefill", f"{speed}, as given"),
            ("stat", _micro(tier.stat_seconds)),
            ("open", _micro(tier.open_seconds)),
            ("read of 4 KiB", _micro(tier.read_seconds)),
            ("create and close", _micro(tier.create_seconds)),
            ("read", f"{tier.read_bytes_per_second / 1e6:,.0f} MB/s"),
            ("read, one at a time", f"{tier.single_bytes_per_second / 1e6:,.0f} MB/s"),
            ("write", f"{tier.write_bytes_per_second / 1e6:,.0f} MB/s"),
        ],
    )
    output.sentences(words)


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us"


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value


_PLACEHOLDER = Tier(1.0, 1.0, 1.0, 1.0, 1.0, 1, 1.0, 1.0, 1.0)
