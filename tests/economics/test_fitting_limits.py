"""`sharedfs fit` where question or mount are at their worst: it answers, and in time."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharedfs_backend.cli import fitting
from sharedfs_backend.cli.fitting import Question, answer, read_config
from sharedfs_backend.cli.output import Output, Status
from sharedfs_backend.economics import prefill_of_speed
from sharedfs_backend.economics.judging import judge
from sharedfs_backend.economics.probing import SECONDS_MAX
from sharedfs_backend.exceptions import ConfigError
from tests.cli.test_cli import sharedfs
from tests.economics.test_judging import GOOD, PREFILL
from tests.economics.test_models import LLAMA_8B


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B))
    return path


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A mount where no stat comes back before the test's end."""
    ended, stat = threading.Event(), os.stat

    def hangs(path: Any, *more: Any, **named: Any) -> os.stat_result:
        if str(path).endswith("hangs"):
            assert threading.current_thread() is not threading.main_thread()
            ended.wait(20)
        return stat(path, *more, **named)

    monkeypatch.setattr(os, "stat", hangs)
    yield
    ended.set()


@pytest.mark.usefixtures("hanging")
def test_a_mount_on_which_even_a_stat_hangs_is_given_up(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "PATIENCE_SECONDS", 0.01)
    words = ("fit", "--path", tmp_path / "hangs", "--model", model)
    result = sharedfs(*words, "--prefill-tokens-per-second", 8000)
    assert result.exit_code == Status.NAMESPACE and "the mount hangs" in result.stderr


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_a_speed_that_is_none_is_refused(speed: float, tmp_path: Path, model: Path) -> None:
    with pytest.raises(ConfigError, match="prefill-tokens-per-second"):
        answer(Question(tmp_path, model, speed, 4096, "auto"), Output(as_json=True))


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": ["linear_attention"] * 32},
        {"head_dim": 0, "hidden_size": 16},
    ],
)
def test_a_model_without_kv_is_refused_before_a_minute_is_spent(change: dict[str, Any]) -> None:
    config = LLAMA_8B | change
    with pytest.raises(ValueError, match="keeps KV"):
        judge(GOOD, config, PREFILL)


def test_a_config_nested_beyond_reading_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[" * 200_000)
    with pytest.raises(ConfigError, match="not JSON"):
        read_config(path)


def test_patience_outlasts_the_probe() -> None:
    assert fitting.PATIENCE_SECONDS > SECONDS_MAX
    assert prefill_of_speed(LLAMA_8B, fitting.TOKENS_PER_SECOND_MAX).token_seconds > 0
