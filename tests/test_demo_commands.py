"""The commands and environments a replica is started with, and the installer's commands."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from bench.demo import install
from bench.demo.replica_spec import (
    EXAMPLES,
    Ports,
    ReplicaSpec,
    child_environment,
    engine_command,
    plugin_adapter,
    server_command,
)

PORTS = Ports(engine=1, server=2, server_http=3)


def after(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_the_adapter_is_handed_to_the_server_as_one_json_argument() -> None:
    spec = ReplicaSpec("A", Path("/m"), adapter=plugin_adapter("/mnt/kv"))
    given = json.loads(after(server_command(spec, PORTS), "--l2-adapter"))
    assert given == {
        "type": "plugin",
        "module_path": "sharedfs_backend.mp",
        "class_name": "SharedFSL2Adapter",
        "adapter_params": {"root": "/mnt/kv"},
    }


def test_the_example_launch_script_hands_both_configurations_over_whole(tmp_path: Path) -> None:
    done = tmp_path / "lmcache.out"
    for name, first in (("lmcache", ":"), ("vllm", f"until [ -e {done} ]; do sleep 0.01; done")):
        out = tmp_path / name
        write = f'for a in "$@"; do printf "%s\\0" "$a"; done >{out}.new; mv {out}.new {out}.out'
        out.write_text(f"#!/bin/sh\n{first}\n{write}\n")
        out.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    script = EXAMPLES / "mp.sh"
    subprocess.run([script, "--port", "1"], env={"PATH": path, "MODEL": "/models/m"}, check=True)
    server = done.read_text().split("\0")
    engine = (tmp_path / "vllm.out").read_text().split("\0")
    assert json.loads(after(server, "--l2-adapter")) == plugin_adapter("/mnt/shared/kv")
    connector = json.loads(after(engine, "--kv-transfer-config"))["kv_connector_extra_config"]
    assert str(connector["lmcache.mp.port"]) == after(server, "--port")
    assert engine[:2] == ["serve", "/models/m"]
    assert engine[-3:-1] == ["--port", "1"]


def test_without_an_adapter_the_server_has_no_second_tier() -> None:
    assert "--l2-adapter" not in server_command(ReplicaSpec("A", Path("/m")), PORTS)


def test_the_engine_finds_its_own_server() -> None:
    command = engine_command(ReplicaSpec("A", Path("/m")), PORTS)
    extra = json.loads(after(command, "--kv-transfer-config"))["kv_connector_extra_config"]
    assert extra["lmcache.mp.port"] == PORTS.server
    assert after(command, "--port") == "1"


def test_in_process_mode_hands_over_the_callers_connector() -> None:
    connector = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    spec = ReplicaSpec("A", Path("/m"), kv_transfer_config=connector)
    assert spec.in_process
    assert json.loads(after(engine_command(spec, PORTS), "--kv-transfer-config")) == connector


def test_loras_ranks_and_dtype_reach_the_engine() -> None:
    spec = ReplicaSpec(
        "A", Path("/m"), dtype="bfloat16", tensor_parallel=2, loras={"one": Path("/l")}
    )
    command = engine_command(spec, PORTS)
    assert after(command, "--dtype") == "bfloat16"
    assert after(command, "--tensor-parallel-size") == "2"
    assert after(command, "--lora-modules") == "one=/l"


def test_children_work_offline_and_report_nothing_to_anyone(tmp_path: Path) -> None:
    environment = child_environment(ReplicaSpec("A", Path("/m"), core="1"), tmp_path)
    wanted = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_OMP_THREADS_BIND": "1"}
    assert environment.items() >= wanted.items()


def test_torch_is_asked_for_without_a_further_index_first() -> None:
    lock = (install.REPOSITORY / "requirements.lock").read_text()
    torch = install.torch_pin(lock)
    assert torch == "torch==2.13.0+cpu"
    plain, fallback, rest = install.pip_commands(
        Path("python"), [Path("requirements.lock")], torch, "https://index"
    )
    assert "--extra-index-url" not in plain
    assert fallback[fallback.index("--extra-index-url") + 1] == "https://index"
    assert all("--no-deps" in command for command in [plain, fallback, *rest])


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A repository whose `.venv` holds what tests need."""
    (tmp_path / install.LOOPS).parent.mkdir(parents=True)
    for name in (*install.LOCKS["test"], "pyproject.toml", install.LOOPS):
        (tmp_path / name).write_text(f"{name}==1\n")
    (tmp_path / ".venv").mkdir()
    install.stamp("test", tmp_path).write_text(install.digest("test", tmp_path))
    return tmp_path


def test_what_tests_need_includes_what_the_demo_needs(installed: Path) -> None:
    assert install.is_current("test", installed)
    assert install.is_current("run", installed)


@pytest.mark.parametrize(
    "name", ["requirements.lock", "requirements-dev.lock", "pyproject.toml", install.LOOPS]
)
def test_a_changed_lock_or_project_is_installed_again(installed: Path, name: str) -> None:
    (installed / name).write_text("other==2\n")
    assert not install.is_current("test", installed)


def test_what_the_demo_needs_is_not_all_that_tests_need(installed: Path) -> None:
    install.stamp("test", installed).rename(install.stamp("run", installed))
    install.stamp("run", installed).write_text(install.digest("run", installed))
    assert install.is_current("run", installed)
    assert not install.is_current("test", installed)


def test_the_lock_pins_every_line_and_leaves_out_what_breaks_the_engine() -> None:
    lines = (install.REPOSITORY / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all("==" in pin for pin in pins)
    names = {pin.split("==")[0] for pin in pins}
    assert names >= {"vllm-cpu", "lmcache", "pyarrow", "xxhash", "msgpack", "blake3", "typer"}
    assert not names & {"torchvision", "torchaudio", "torchcodec", "triton", "pytest"}
