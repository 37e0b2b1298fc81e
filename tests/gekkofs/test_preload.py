"""Processes under the preload client: who is refused, who is guarded, what happens without."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedfs_backend.exceptions import ConfigError
from sharedfs_backend.preload import ENGINE_MODULES, prepare_process
from tests.gekkofs.standin import Standin, missing

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = {"LD_PRELOAD": "/opt/gkfs/lib/libgkfs_intercept.so"}

needs_compiler = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(autouse=True)
def spawning_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for switch in ("_USE_VFORK", "_USE_POSIX_SPAWN"):
        monkeypatch.setattr(subprocess, switch, getattr(subprocess, switch))


@pytest.mark.parametrize("module", sorted(ENGINE_MODULES))
def test_a_vllm_process_is_refused_and_told_where_the_client_belongs(module: str) -> None:
    with pytest.raises(ConfigError, match="LMCache server alone"):
        prepare_process(PRELOADED, {"os", module})


def test_the_names_of_vllms_modules_are_real() -> None:
    """A rename in vLLM must not turn the refusal off."""
    from importlib.util import find_spec

    assert [name for name in ENGINE_MODULES if find_spec(name.split(".")[0]) is None] == []
    package = Path(str(find_spec("vllm").submodule_search_locations[0]))  # type: ignore[union-attr,index]
    files = {
        name: package.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in ENGINE_MODULES
    }
    assert {name for name, path in files.items() if not path.exists()} == set()


def test_an_engine_without_the_client_is_no_concern_of_ours() -> None:
    assert prepare_process({}, set(ENGINE_MODULES)) is None


def test_a_server_under_the_client_spawns_without_vfork() -> None:
    assert prepare_process(PRELOADED, {"lmcache"}) == PRELOADED["LD_PRELOAD"]
    assert subprocess._USE_VFORK is False
    assert subprocess._USE_POSIX_SPAWN is False


# -- for real -----------------------------------------------------------------------------------


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[Standin]:
    with Standin(tmp_path) as made:
        yield made


def run(standin: Standin, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(standin.mount)],
        env=standin.environ(),
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


SPAWNS = """
import subprocess, sys
{before}
done = subprocess.run(["/bin/echo", "alive"], close_fds={close}, capture_output=True, text=True)
print(done.stdout.strip())
"""


@needs_compiler
@pytest.mark.parametrize("close", [True, False])
def test_a_spawn_kills_the_process_unless_a_store_was_opened(standin: Standin, close: bool) -> None:
    opened = "from sharedfs_backend import Store; store = Store(sys.argv[1] + '/kv')"
    assert run(standin, SPAWNS.format(before="", close=close)).returncode == -6
    guarded = run(standin, SPAWNS.format(before=opened, close=close))
    assert (guarded.returncode, guarded.stdout) == (0, "alive\n")


@needs_compiler
def test_a_program_that_spawns_before_any_store_is_guarded_by_its_starter(
    standin: Standin, tmp_path: Path
) -> None:
    (tmp_path / "spawner.py").write_text(SPAWNS.format(before="print(sys.argv[1])", close=True))
    command = [sys.executable, "-m", "sharedfs_backend.preload", "spawner", "word"]
    environ = standin.environ() | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(command, env=environ, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, "word\nalive\n")


@needs_compiler
def test_a_store_is_created_found_and_gone_through_under_the_client(standin: Standin) -> None:
    code = """
import json, sys
from sharedfs_backend import Store
from sharedfs_backend.store import DIRECT_LAYOUT, PutItem
keys = [bytes([n]) * 16 for n in range(8)]
with Store(sys.argv[1] + "/kv") as store:
    items = [PutItem(key, memoryview(key * 4096), DIRECT_LAYOUT) for key in keys]
    assert store.put(items).failed is None
with Store(sys.argv[1] + "/kv") as store:
    store.wait_current()
    buffers = [bytearray(65536) for _ in keys]
    assert store.lookup(keys) == [True] * 8 and store.load(keys, buffers) == [True] * 8
    assert [bytes(buffer) for buffer in buffers] == [key * 4096 for key in keys]
    print(store.parts.profile.name, store.parts.profile.vectored)
"""
    done = run(standin, code)
    assert (done.returncode, done.stdout) == (0, "gekkofs False\n"), done.stderr
    counts = {name: standin.control[name] for name in ("lies", "poisoned", "recreated")}
    assert counts == {"lies": 0, "poisoned": 0, "recreated": 0}


@needs_compiler
def test_commands_and_staging_work_under_the_client(standin: Standin, tmp_path: Path) -> None:
    code = f"""
import sys
from sharedfs_backend import Store
from sharedfs_backend.cli import main
from sharedfs_backend.store import DIRECT_LAYOUT, PutItem
root, kept = sys.argv[1] + "/kv", {str(tmp_path / "kept")!r}
with Store(root) as store:
    store.put([PutItem(b"k" * 16, memoryview(b"k" * 65536), DIRECT_LAYOUT)])
def run(*words):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        print(words[0], end.code)
run("stage", "--from", root, "--to", kept, "--json")
run("stage", "--from", kept, "--to", root + "2", "--json")
run("verify", root + "2", "--json")
run("gc", root + "2", "--json", "--set", "drop_delay_seconds=0.2",
    "--set", "load_deadline_seconds=0.1", "--set", "refresh_seconds=0.05")
"""
    done = run(standin, code)
    ends = [line for line in done.stdout.splitlines() if line[:1].isalpha()]
    assert ends == ["stage 0", "stage 0", "verify 0", "gc 0"], done.stdout + done.stderr
    assert standin.control["poisoned"] == standin.control["lies"] == 0


@needs_compiler
def test_a_daemon_that_never_answers_costs_a_load_its_deadline_only(standin: Standin) -> None:
    code = """
import os, sys, time
from sharedfs_backend import Store
from sharedfs_backend.settings import Settings
from sharedfs_backend.store import DIRECT_LAYOUT, PutItem
settings = Settings(root=sys.argv[1] + "/kv", load_deadline_seconds=0.3, open_files_max=8)
store = Store(settings=settings)
key = b"k" * 16
assert store.put([PutItem(key, memoryview(key * 4096), DIRECT_LAYOUT)]).failed is None
print("stored", flush=True)
sys.stdin.readline()
before = time.monotonic()
print(store.lookup([key]), store.load([key], [bytearray(65536)]), flush=True)
assert time.monotonic() - before < 30.0
os._exit(0)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(standin.mount)],
        env=standin.environ(),
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "stored\n"
    standin.control["hang"] = 1
    out, _ = process.communicate("go\n", timeout=60)
    assert (process.returncode, out) == (0, "[True] [False]\n")
