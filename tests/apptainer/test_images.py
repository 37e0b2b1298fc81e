"""build.sh and run.sh, against a stand-in that takes Apptainer's flags and runs in place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "launch" / "apptainer"
BIN = Path(__file__).parent / "bin"
LIBRARY = "/opt/gekkofs/lib/libgkfs_intercept.so"


@dataclass
class Site:
    """A machine with Apptainer, images and settings."""

    directory: Path
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def images(self) -> Path:
        return self.directory / "images"

    @property
    def calls(self) -> list[dict[str, Any]]:
        log = self.directory / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def script(
        self,
        name: str,
        *words: str,
        environ: Mapping[str, str] | None = None,
        cwd: Path | str = "/",
    ) -> subprocess.CompletedProcess[str]:
        """Runs one of the scripts from another directory than the checkout."""
        file = self.directory / "images.env"
        values = {"IMAGE_DIR": str(self.images), "IMAGE_CACHE": str(self.directory / "cache")}
        lines = [f'{key}="{value}"\n' for key, value in (values | self.settings).items()]
        file.write_text("".join(lines))
        environment = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": "/nonexistent",
            "IMAGE_SETTINGS": str(file),
            "APPTAINER_STANDIN": str(self.directory / "calls"),
        }
        return subprocess.run(
            [str(SCRIPTS / name), *words],
            cwd=cwd,
            env=environment | dict(environ or {}),
            capture_output=True,
            text=True,
            check=False,
        )

    def run(
        self, *words: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self.script("run.sh", *words, environ=environ)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    found = Site(tmp_path)
    found.images.mkdir()
    for name in ("engine", "router", "gekkofs"):
        (found.images / f"{name}.sif").write_text("an image")
    return found


def options(call: Mapping[str, Any], name: str) -> list[str]:
    return [value for key, value in call["options"] if key == name]


@pytest.mark.parametrize("name", ["engine", "router"])
def test_an_image_is_built_from_the_checkout_and_takes_its_name_when_whole(
    site: Site, name: str
) -> None:
    done = site.script("build.sh", name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"built {site.images}/{name}.sif\n"
    assert site.calls[0]["target"] == f"{site.images}/{name}.new.sif"
    assert "{{" not in (site.images / f"{name}.sif").read_text()


def test_a_version_is_an_argument(site: Site) -> None:
    done = site.script("build.sh", "engine", "--build-arg", "VLLM_VERSION=0.33.1")
    assert done.returncode == 0, done.stderr
    assert "From: vllm/vllm-openai:v0.33.1\n" in (site.images / "engine.sif").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["engine", "--build-arg", "VLMM_VERSION=1"], "unused build args: VLMM_VERSION"),
        (["engine", "--fakerot"], "unknown flag: --fakerot"),
        (["engin"], "name one image"),
        ([], "name one image"),
    ],
)
def test_a_failed_build_leaves_the_image_that_was_there(
    site: Site, words: list[str], said: str
) -> None:
    done = site.script("build.sh", *words)
    assert done.returncode != 0
    assert said in done.stderr
    assert (site.images / "engine.sif").read_text() == "an image"
    assert not (site.images / "engine.new.sif").exists()


def test_gekkofs_is_copied_out_of_its_image(site: Site) -> None:
    """In place the image's /opt/gekkofs is this machine's, which has none: the copy fails, and
    what was copied before stays."""
    (site.images / "gekkofs").mkdir()
    done = site.script("build.sh", "gekkofs")
    assert done.returncode != 0
    copy = site.calls[1]
    assert copy["command"] == ["cp", "-a", "/opt/gekkofs/.", "/out"]
    assert options(copy, "bind") == [f"{site.images}/gekkofs.new:/out"]
    assert (site.images / "gekkofs").is_dir()


def test_a_command_runs_with_the_flags_that_a_replica_needs(site: Site) -> None:
    done = site.run("engine", "echo", "a b", "c")
    assert done.stdout == "a b c\n"
    (call,) = site.calls
    assert call["image"] == f"{site.images}/engine.sif"
    assert {name for name, _ in call["options"]} == {
        *("cleanenv", "no-eval", "no-home", "no-mount", "cwd", "nv", "bind")
    }
    assert f"{ROOT}:{ROOT}:ro" in options(call, "bind")
    assert options(call, "cwd") == [str(ROOT)]


@pytest.mark.parametrize(
    ("image", "gpu", "count"),
    [("engine", "nv", 1), ("engine", "none", 0), ("engine", "", 1), ("router", "nv", 0)],
)
def test_gpus_go_where_they_are_used(site: Site, image: str, gpu: str, count: int) -> None:
    site.settings["IMAGE_GPU"] = gpu
    site.run(image, "true")
    assert len(options(site.calls[0], "nv")) == count


def test_the_sites_paths_are_bound_and_a_missing_one_is_named(site: Site, tmp_path: Path) -> None:
    site.settings["IMAGE_BINDS"] = "/usr/share /etc"
    assert site.run("engine", "true").returncode == 0
    assert {"/usr/share", "/etc"} <= set(options(site.calls[0], "bind"))
    site.settings["IMAGE_BINDS"] = "/usr/share /lustre/nowhere"
    done = site.run("engine", "true")
    assert done.returncode == 2
    assert "/lustre/nowhere is to be bound and is not on" in done.stderr


def test_paths_with_blanks_are_bound_from_a_list(site: Site, tmp_path: Path) -> None:
    (tmp_path / "my project").mkdir()
    file = tmp_path / "blanks.env"
    file.write_text(
        f'IMAGE_DIR="{site.images}"\nIMAGE_CACHE="{tmp_path}/cache"\n'
        'IMAGE_BINDS=("/usr/share" "/etc/my project")\n'
    )
    environ = {"IMAGE_SETTINGS": str(file)}
    assert "/etc/my project is to be bound" in site.run("engine", "true", environ=environ).stderr
    file.write_text(file.read_text().replace("/etc/my project", f"{tmp_path}/my project"))
    assert site.run("engine", "true", environ=environ).returncode == 0
    assert "/usr/share" in options(site.calls[0], "bind")


def test_a_path_that_apptainer_would_split_is_refused(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    site.settings["IMAGE_BINDS"] = f"{tmp_path}/a,b"
    done = site.run("engine", "true")
    assert (done.returncode, site.calls) == (2, [])
    assert "a,b cannot be bound" in done.stderr


def test_a_missing_image_and_a_missing_apptainer_are_named(site: Site) -> None:
    (site.images / "engine.sif").unlink()
    done = site.run("engine", "true")
    assert done.returncode == 2
    assert done.stderr.endswith("build it with launch/apptainer/build.sh engine\n")
    site.settings["IMAGE_COMMAND"] = "aptainer"
    assert "there is no command aptainer here" in site.run("router", "true").stderr


def test_what_the_fleet_says_passes_and_a_login_shell_does_not(site: Site) -> None:
    site.settings["IMAGE_PASS"] = "SITE_* ONE"
    outside = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "SLURM_JOB_ID": "17",
        "FLEET_STORE_SETTINGS": '{"lease_seconds": 60, "x": "$HOME `id`"}',
        "SITE_A": "1",
        "ONE": "2",
        "PYTHONSTARTUP": "/home/me/x.py",
        "LD_LIBRARY_PATH": "/home/me/lib",
    }
    done = site.run("engine", "env", "-0", environ=outside)
    inside = dict(line.split("=", 1) for line in done.stdout.strip("\0").split("\0"))
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "FLEET_STORE_SETTINGS", "SITE_A", "ONE"):
        assert inside[name] == outside[name]
    assert not {"PYTHONSTARTUP", "LD_LIBRARY_PATH"} & set(inside)


def test_singularity_gets_its_own_variables(site: Site) -> None:
    (site.directory / "singularity").symlink_to(BIN / "apptainer")
    site.settings["IMAGE_COMMAND"] = str(site.directory / "singularity")
    site.settings["IMAGE_PASS"] = "PYTHONPATH"
    outside = {"FLEET_MODEL": "/m", "PYTHONPATH": "/more"}
    done = site.run("engine", "sh", "-c", "echo $FLEET_MODEL $PYTHONPATH", environ=outside)
    assert done.stdout == f"/m {ROOT}:/more\n"
    assert not any(name.startswith("APPTAINERENV") for name in site.calls[0]["outside"])


def test_patterns_are_not_the_names_of_files(site: Site, tmp_path: Path) -> None:
    (tmp_path / "HF_TOKEN.txt").touch()
    words = ("run.sh", "engine", "printenv", "HF_TOKEN")
    assert site.script(*words, environ={"HF_TOKEN": "x"}, cwd=tmp_path).stdout == "x\n"


def test_nothing_is_written_to_a_home(site: Site) -> None:
    site.run("engine", "true")
    inside = site.calls[0]["environment"]
    cache = f"{site.directory}/cache"
    assert inside["XDG_CACHE_HOME"] == inside["FLASHINFER_WORKSPACE_BASE"] == cache
    assert inside["HF_HOME"] == f"{cache}/huggingface"
    assert inside["PYTHONPATH"] == str(ROOT)
    assert Path(cache).is_dir()


def test_a_preload_reaches_the_command_and_nothing_on_the_way(site: Site) -> None:
    """Not Apptainer, nor its start scripts in the container, which fork."""
    words = ["--preload", LIBRARY, "engine", "printenv", "LD_PRELOAD"]
    done = site.run(*words)
    assert done.stdout.strip() == LIBRARY
    (call,) = site.calls
    assert call["command"][:2] == ["env", f"LD_PRELOAD={LIBRARY}"]
    assert "LD_PRELOAD" not in call["environment"]


@pytest.mark.parametrize(
    "variable", ["LD_PRELOAD", "APPTAINERENV_LD_PRELOAD", "SINGULARITYENV_LD_PRELOAD"]
)
def test_a_preload_from_outside_does_not_pass(site: Site, variable: str) -> None:
    done = site.run("engine", "printenv", "LD_PRELOAD", environ={variable: "/nonexistent.so"})
    assert done.stdout == ""
    assert done.returncode == 1


@pytest.mark.parametrize(
    "command",
    [
        ["vllm", "serve", "m"],
        ["/usr/local/bin/vllm", "serve", "m"],
        ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        ["python3", "-m", "launch.node"],
    ],
)
def test_a_preload_into_what_forks_is_refused(site: Site, command: list[str]) -> None:
    done = site.run("--preload", LIBRARY, "engine", *command)
    assert done.returncode == 2
    assert "belongs into the LMCache server alone" in " ".join(done.stderr.split())
    assert site.calls == []


def test_a_model_path_that_holds_vllms_name_is_not_refused(site: Site) -> None:
    assert site.run("--preload", LIBRARY, "engine", "echo", "/models/vllm/x").returncode == 0


def test_gekkofs_is_bound_where_it_was_built_for(site: Site) -> None:
    site.run("engine", "true")
    (site.images / "gekkofs").mkdir()
    site.run("engine", "true")
    bind = f"{site.images}/gekkofs:/opt/gekkofs:ro"
    assert [bind in options(call, "bind") for call in site.calls] == [False, True]


def test_gekkofs_daemon_runs_in_its_image_with_its_data(site: Site) -> None:
    """As launch/slurm/gekkofs.sh starts it; here there is no such program, which is said."""
    environ = {"FLEET_GEKKOFS_DATA": "/usr/share", "FLEET_GEKKOFS_MOUNT": "/nowhere"}
    words = ["--rootdir", "/usr/share/x", "--mountdir", "/nowhere"]
    done = site.script("gkfs_daemon.sh", *words, environ=environ)
    assert "executable file not found" in done.stderr
    (call,) = site.calls
    assert call["image"] == f"{site.images}/gekkofs.sif"
    assert call["command"] == ["gkfs_daemon", *words]
    assert "/usr/share" in options(call, "bind") and "/nowhere" not in options(call, "bind")


def test_a_signal_reaches_the_command_and_its_status_comes_back(site: Site) -> None:
    assert site.run("router", "sh", "-c", "kill -TERM $$").returncode == -15
    assert site.run("router", "sh", "-c", "exit 7").returncode == 7


def test_a_fleets_python_runs_in_the_container(site: Site) -> None:
    """As site.env's FLEET_PYTHON does it: modules of the checkout, wherever it was called."""
    program = "import launch, sys; print(launch.__file__)"
    done = site.run("engine", "python3", "-c", program)
    assert done.stdout.strip() == str(ROOT / "launch" / "__init__.py")


def test_a_job_checks_its_settings_in_the_container(site: Site) -> None:
    """The first thing fleet.sbatch does, with FLEET_PYTHON as site.env.example has it."""
    site.settings["IMAGE_PASS"] = "SLURMD_NODENAME"
    logs, scratch = site.directory / "logs", site.directory / "scratch"
    logs.mkdir()
    scratch.mkdir()
    fleet = {
        "FLEET_MODEL": str(logs),
        "FLEET_NAMESPACE": "/lustre/kv",
        "FLEET_ROUTER_PORT": "0",
        "FLEET_DEVICE": "cpu",
        "FLEET_INTERFACE": "lo",
        "FLEET_LOGS": str(logs),
        "FLEET_SCRATCH": str(scratch),
        "SLURM_JOB_NUM_NODES": "3",
        "SLURMD_NODENAME": "n7",
    }
    done = site.run("engine", sys.executable, "-m", "launch.tier", "check", environ=fleet)
    assert done.returncode == 0, done.stderr
    assert f"3 node(s), 1 replica(s) of CPU on each, model {logs}" in done.stdout


@pytest.mark.parametrize("name", ["LOGS", "SCRATCH"])
def test_a_jobs_own_directories_are_bound(site: Site, name: str) -> None:
    site.run("engine", "true", environ={f"FLEET_{name}": "/usr/share"})
    assert "/usr/share" in options(site.calls[0], "bind")


@pytest.mark.parametrize("name", ["build.sh", "run.sh", "common.sh", "gkfs_daemon.sh"])
def test_the_scripts_pass_shellcheck(name: str) -> None:
    done = subprocess.run(
        ["shellcheck", "-x", f"launch/apptainer/{name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""


def standin(*words: str) -> tuple[int, str]:
    environ = {"PATH": os.environ["PATH"], "SHELL_VALUE": "1,2"}
    done = subprocess.run(
        [str(BIN / "apptainer"), *words], env=environ, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exec", "--no-hom", "/etc/hosts", "true"], "unknown flag: --no-hom"),
        (["exec", "-x", "/etc/hosts", "true"], "unknown shorthand flag"),
        (["exec", "--bind"], "flag needs an argument: --bind"),
        (["exec", "/etc/hosts"], "requires at least 2 arg(s)"),
        (["exec", "/nowhere.sif", "true"], "no such file or directory"),
        (["exec", "--bind", "/nowhere", "/etc/hosts", "true"], "doesn't exist"),
        (["exec", "--bind", "/etc:/etc:rx", "/etc/hosts", "true"], "unknown option"),
        (["exec", "--no-mount", "cdw", "/etc/hosts", "true"], "unknown mount cdw"),
        (["exec", "--env", "A=1,2", "/etc/hosts", "true"], "invalid argument"),
        (["exec", "--nv=yes", "/etc/hosts", "true"], "invalid argument"),
        (["exce", "/etc/hosts", "true"], "unknown command"),
        (["build", "/tmp/x.sif"], "accepts 2 arg(s)"),
    ],
)
def test_the_stand_in_refuses_what_apptainer_refuses(words: list[str], said: str) -> None:
    status, text = standin(*words)
    assert status != 0
    assert said in text


def test_the_stand_in_ends_flags_at_the_image_and_evaluates_values_unless_told_not_to() -> None:
    assert standin("exec", "/etc/hosts", "echo", "--no-hom") == (0, "--no-hom\n")
    environ = {"PATH": os.environ["PATH"], "APPTAINERENV_A": "$HERE", "HERE": "1"}
    shown = [
        subprocess.run(
            [str(BIN / "apptainer"), "exec", *flags, "/etc/hosts", "printenv", "A"],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for flags in ([], ["--no-eval"])
    ]
    assert shown == ["1", "$HERE"]
