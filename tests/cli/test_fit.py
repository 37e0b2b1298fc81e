"""`sharedfs fit`: the answer, its exit status, and what is said about a wrong question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharedfs_backend.cli import fitting
from sharedfs_backend.cli.output import Status
from sharedfs_backend.economics.judging import Tier
from tests.cli.test_cli import sharedfs
from tests.economics.test_judging import GOOD
from tests.economics.test_models import LLAMA_8B


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B | {"torch_dtype": "bfloat16"}))
    return path


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[Tier]:
    """The tier a probe finds."""
    found = [GOOD]
    monkeypatch.setattr(fitting, "probe_tier", lambda *_: found[-1])
    return found


def fit(path: Path, model: Path, *more: object) -> Any:
    words = ("fit", "--path", path, "--model", model, "--prefill-tokens-per-second", 8000)
    return sharedfs(*words, *more)


@pytest.mark.usefixtures("probed")
def test_it_answers_in_words(tmp_path: Path, model: Path) -> None:
    result = fit(tmp_path, model)
    assert result.exit_code == Status.OK
    assert "Yes: from 256 tokens on a reload is quicker than computing" in result.stdout
    assert "131,072 bytes of KV per token" in result.stdout


@pytest.mark.usefixtures("probed")
def test_a_directory_of_a_model_will_do_and_programs_get_one_object(
    tmp_path: Path, model: Path
) -> None:
    seen = json.loads(fit(tmp_path, model.parent, "--json").stdout)
    assert (seen["answer"], seen["pack_bytes"]) == ("yes", 64 << 20)
    assert seen["tier"]["open_seconds"] == GOOD.open_seconds


@pytest.mark.usefixtures("probed")
def test_the_kvs_own_dtype_counts(tmp_path: Path, model: Path) -> None:
    seen = json.loads(fit(tmp_path, model, "--json", "--kv-dtype", "fp8").stdout)
    assert seen["kv_bytes_per_token"] == 65_536


def test_a_tier_that_never_pays_is_an_exit_status_of_its_own(
    tmp_path: Path, model: Path, probed: list[Tier]
) -> None:
    probed.append(Tier(1, 1, 1, 1, 1, 1, 1e6, 1e6, 1e6))
    result = fit(tmp_path, model)
    assert result.exit_code == Status.PROBLEMS and "Do without a shared tier" in result.stdout


def test_a_real_directory_is_probed_and_left_as_it_was(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharedfs_backend.economics.probing.FILE_BYTES", 8 << 20)
    monkeypatch.setattr("sharedfs_backend.economics.probing.ROUND_SECONDS", 0.02)
    mount = tmp_path / "mount"
    mount.mkdir()
    seen = json.loads(fit(mount, model, "--json").stdout)
    assert seen["tier"]["read_bytes_per_second"] > 0 and seen["words"]
    assert list(mount.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "said"),
    [("{}", "num_hidden_layers"), ("[1]", "one JSON object"), ("no", "not JSON")],
)
@pytest.mark.usefixtures("probed")
def test_a_wrong_model_is_named(tmp_path: Path, model: Path, config: str, said: str) -> None:
    model.write_text(config)
    result = fit(tmp_path, model)
    assert result.exit_code == Status.USAGE and said in result.stderr


def test_a_directory_that_is_not_there_is_named(tmp_path: Path, model: Path) -> None:
    result = fit(tmp_path / "no", model)
    assert result.exit_code == Status.NAMESPACE and "mounted here" in result.stderr


def test_a_mount_that_hangs_is_given_up(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    release = threading.Event()
    monkeypatch.setattr(fitting, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(fitting, "probe_tier", lambda *_: release.wait(30) or GOOD)
    result = fit(tmp_path, model)
    release.set()
    assert result.exit_code == Status.NAMESPACE and "hangs" in result.stderr


@pytest.mark.usefixtures("probed")
@pytest.mark.parametrize("option", [("--kv-dtype", "int3"), ("--prefill-tokens-per-second", 0)])
def test_a_wrong_option_says_what_is_allowed(
    tmp_path: Path, model: Path, option: tuple[str, object]
) -> None:
    assert fit(tmp_path, model, *option).exit_code == Status.USAGE
