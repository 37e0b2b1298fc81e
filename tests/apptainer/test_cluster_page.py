"""docs/CLUSTER.md says what is there: settings, files, commands, options, messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import typer.main

from launch.site import SHELL_SETTINGS, Site, variable_of
from sharedfs_backend.cli.commands import app
from sharedfs_backend.files import striping
from sharedfs_backend.files.mounts import Mount, warnings_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "CLUSTER.md").read_text()


def code() -> Iterator[str]:
    """Every line of a code block, with continuations joined, and every code span."""
    for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()
    rest = re.sub(r"^```\n.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`]+)`", rest)


@cache
def said() -> str:
    """All that the programs and scripts can say, without what they put into it (`%s` of a log line
    is an engine here)."""
    found = []
    for folder in ("launch", "router", "sharedfs_backend"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text())
            found += [
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
    for path in (ROOT / "launch").rglob("*.sh"):
        found.append(re.sub(r'"\s*\\\n\s*"', " ", path.read_text()))
    return "\n".join(found).replace("%s", "engine")


def test_every_setting_is_one() -> None:
    fleet = {variable_of(name) for name in (*Site.__dataclass_fields__, *SHELL_SETTINGS)}
    assert set(re.findall(r"FLEET_[A-Z0-9_]+", PAGE)) - {"FLEET_MODLE"} <= fleet
    images = (ROOT / "launch/apptainer/images.env.example").read_text()
    for name in set(re.findall(r"IMAGE_[A-Z]+", PAGE)):
        assert re.search(rf"^{name}=", images, re.MULTILINE), name


def test_every_setting_of_the_images_is_used_and_explained() -> None:
    scripts = "".join(
        (ROOT / "launch/apptainer" / name).read_text()
        for name in ("build.sh", "run.sh", "common.sh")
    )
    lines = (ROOT / "launch/apptainer/images.env.example").read_text().splitlines()
    for before, line in pairwise(lines):
        if re.match(r"IMAGE_\w+=", line):
            assert before.startswith("# "), line
            assert line.partition("=")[0] in scripts


def test_every_file_and_link_is_there() -> None:
    for path in set(re.findall(r"launch/[\w./-]*\w\.(?:sh|sbatch|def|yaml|env\.example)", PAGE)):
        assert (ROOT / path).exists(), path
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
    for module in set(re.findall(r"python3? -m ((?:launch|router)[\w.]*)", PAGE)):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module


def test_every_make_target_is_one() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make ([\w-]+)`", PAGE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_sharedfs_command_takes_these_options() -> None:
    group = typer.main.get_command(app)
    lines = [line for line in code() if re.match(r"(\$ )?(launch/\S+ \w+ )?sharedfs \w", line)]
    assert len(lines) > 5
    for line in lines:
        words = re.sub(r'"[^"]*"', "", line.partition("#")[0]).split()
        words = words[words.index("sharedfs") + 1 :]
        command = group.commands[words[0]]  # type: ignore[attr-defined]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_the_nfs_mount_it_advises_is_not_warned_about() -> None:
    (line,) = [line for line in code() if line.startswith("mount -t nfs")]
    pairs = (option.partition("=") for option in line.split()[4].split(","))
    options = {name: value for name, _, value in pairs} | {"proto": "tcp"}
    assert warnings_of(Mount("/kv", "nfs4", "SERVER:/EXPORT", options)) == []


def test_each_mount_option_that_is_warned_about_is_explained() -> None:
    section = PAGE.split("## NFS")[1].split("\n## ")[0]
    worst = {"lookupcache": "all", "noac": "", "nocto": "", "acdirmax": "600", "soft": ""}
    worst |= {"sync": "", "rsize": "65536"}
    remedies = ["lookupcache", "noac", "nocto", "acdirmax", "hard", "sync", "rsize", "nconnect"]
    told = warnings_of(Mount("/kv", "nfs4", "SERVER:/EXPORT", worst))
    assert len(told) == len(remedies)
    assert all(name in section for name in remedies)


def test_the_layout_it_names_is_the_one_that_is_set() -> None:
    (line,) = [line for line in code() if line.startswith("lfs setstripe")]
    assert line.split()[2:-2] == list(striping.PROGRESSIVE)
    assert f"`{' '.join(striping.PLAIN)}`" in PAGE


def messages() -> list[str]:
    """What the tables headed "instead you see" quote."""
    rows: list[str] = []
    for table in re.findall(r"^\| instead you see .*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE):
        rows += [row.split("|")[1] for row in table.splitlines()]
    return [span for row in rows for span in re.findall(r"`([^`]+)`", row)]


FOREIGN = {
    "invalid partition specified",
    "common.sh: No such file or directory",
    "fakeroot",
    "set it in .env",
    "bind source path does not exist",
    "port is already allocated",
    "address already in use",
    'could not select device driver "nvidia"',
    "no space left on device",
    "nconnect",
    "lookupcache=pos",
}
"""Said by other programs (Docker and its Compose, Slurm), or shown to be the operator's own."""


@pytest.mark.parametrize("message", [text for text in messages() if text not in FOREIGN])
def test_a_message_it_quotes_is_one_that_is_said(message: str) -> None:
    parts = re.split(r"\.\.\.|\(\.\.\.\)|\S*[\d/]\S*|\b[A-Z]{4,}\b(?! ENGINE| SHARES| NO)", message)
    fragment = max((part.strip(" ;(),") for part in parts), key=len)
    assert len(fragment) >= 8
    assert fragment in said()
