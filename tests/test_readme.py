"""The README's configuration and commands are those that the tests load and the command knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sharedfs_backend.cli.commands import app

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize(
    ("language", "file"),
    [("json", "launch/config/mp-adapter.json"), ("yaml", "launch/config/inprocess.yaml")],
)
def test_the_configuration_shown_is_the_file(language: str, file: str) -> None:
    assert blocks(language) == [(ROOT / file).read_text()]


def test_three_lines_for_mp_mode_and_four_in_process() -> None:
    assert blocks("json")[0].count("\n") == 3
    assert blocks("yaml")[0].count("\n") == 4


def test_the_commands_shown_exist() -> None:
    shown = set(re.findall(r"`sharedfs (\w+) ROOT", README))
    known = {command.name or "" for command in app.registered_commands}
    known |= {c.callback.__name__ for c in app.registered_commands if c.callback is not None}
    assert shown == {"init", "ls", "verify", "reindex", "gc"} <= known


def test_a_namespace_is_made_and_listed_as_shown(tmp_path: Path) -> None:
    root = str(tmp_path / "kv")
    assert CliRunner().invoke(app, ["init", root, "--cap", "2TiB"]).exit_code == 0
    assert "2" in CliRunner().invoke(app, ["ls", root]).stdout


def test_the_python_example_runs(tmp_path: Path) -> None:
    (example,) = blocks("python")
    data = {bytes([number]) * 16: bytes([number]) * 1000 for number in range(4)}
    buffers = [bytearray(1000) for _ in data]
    names: dict[str, object] = {"chunks": data, "buffers": buffers}
    exec(example.replace("/mnt/shared/kv", str(tmp_path / "kv")), names)
    assert names["hits"] == [True] * 4
    assert [bytes(buffer) for buffer in buffers] == list(data.values())


def test_every_local_link_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_make_target_shown_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for words in re.findall(r"^make ([a-z0-9 -]+?)(?:  |$)", README, re.MULTILINE):
        for target in words.split():
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
