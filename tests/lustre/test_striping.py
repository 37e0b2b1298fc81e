"""Striping of packs on Lustre, against a stand-in for `lfs` that takes what the real one takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sharedfs_backend import tools
from sharedfs_backend.cli.commands import app
from sharedfs_backend.files import LUSTRE, striping
from sharedfs_backend.files.mounts import Mount
from sharedfs_backend.layout import pack_shard_dirs
from sharedfs_backend.settings import Settings

HERE = Path(__file__).parent


class Lfs:
    """The stand-in on PATH, and what it was asked."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = directory / "lfs.json"
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("LFS_STANDIN", str(self._file))
        monkeypatch.setenv("PATH", f"{HERE / 'bin'}:/usr/bin:/bin")

    def becomes(self, mode: str) -> None:
        self._monkeypatch.setenv("LFS_STANDIN_MODE", mode)

    def _read(self, key: str) -> Any:
        empty: dict[str, Any] = {"calls": [], "layouts": {}}
        return (json.loads(self._file.read_text()) if self._file.exists() else empty)[key]

    @property
    def calls(self) -> list[list[str]]:
        return list(self._read("calls"))

    @property
    def layouts(self) -> dict[str, list[str]]:
        return dict(self._read("layouts"))


@pytest.fixture
def lfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lfs:
    return Lfs(tmp_path, monkeypatch)


@pytest.fixture
def lustre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that looks as if it lay on Lustre."""
    mount = Mount(str(tmp_path), "lustre", "10.0.0.1@o2ib:/scratch", {"rw": ""})
    monkeypatch.setattr(sys.modules["sharedfs_backend.files.probe"], "_mount", lambda root: mount)
    yield tmp_path / "kv"


def packs_of(root: Path) -> set[str]:
    return {str(root / name) for name in ("packs", *pack_shard_dirs())}


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def test_a_new_namespace_on_lustre_is_striped_in_every_directory_of_packs(
    lfs: Lfs, lustre: Path
) -> None:
    tools.init(Settings(root=str(lustre)))
    assert set(lfs.layouts) == packs_of(lustre)
    assert set(map(tuple, lfs.layouts.values())) == {striping.PROGRESSIVE}
    assert len(lfs.calls) == 1


def test_a_namespace_that_is_there_keeps_its_layout(lfs: Lfs, lustre: Path) -> None:
    tools.init(Settings(root=str(lustre)))
    tools.init(Settings(root=str(lustre)), cap_bytes=1 << 40)
    assert len(lfs.calls) == 1


def test_other_file_systems_are_not_striped(lfs: Lfs, tmp_path: Path) -> None:
    tools.init(Settings(root=str(tmp_path / "kv")))
    assert lfs.calls == []


def test_a_lustre_without_progressive_layouts_gets_a_plain_one(lfs: Lfs, lustre: Path) -> None:
    lfs.becomes("old")
    tools.init(Settings(root=str(lustre)))
    assert set(map(tuple, lfs.layouts.values())) == {striping.PLAIN}


def test_without_lfs_the_namespace_works_and_the_command_is_named(
    lustre: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    listing = tools.init(Settings(root=str(lustre)))
    assert listing.profile == LUSTRE.name
    (record,) = caplog.records
    told = record.getMessage()
    assert "there is no command lfs here" in told
    assert told.endswith(
        f"lfs setstripe -E 32M -c 1 -S 4M -E -1 -c 4 -S 4M {lustre}/packs {lustre}/packs/*"
    )


def test_a_hanging_lfs_is_given_up(lfs: Lfs, monkeypatch: pytest.MonkeyPatch) -> None:
    lfs.becomes("hang")
    monkeypatch.setattr(striping, "LFS_SECONDS", 0.2)
    assert "did not answer within 0.2 s" in striping.stripe(["/scratch/kv/packs"])


def test_no_process_is_started_under_gekkofs_preload_client() -> None:
    def must_not_run(words: object) -> tuple[int, str]:
        raise AssertionError(words)

    environ = {"LD_PRELOAD": "/opt/gekkofs/lib/libgkfs_intercept.so"}
    problem = striping.stripe(["/scratch/kv/packs"], run=must_not_run, environ=environ)
    assert "/opt/gekkofs/lib/libgkfs_intercept.so" in problem


def test_an_operators_layout_is_set_also_later(lfs: Lfs, lustre: Path) -> None:
    assert run("init", str(lustre))[0] == 0
    assert run("init", str(lustre), "--stripe", "-c 8 -S 4M -p flash")[0] == 0
    assert lfs.layouts[f"{lustre}/packs/ff"] == ["-c", "8", "-S", "4M", "-p", "flash"]


def test_none_takes_the_layout_away(lfs: Lfs, lustre: Path) -> None:
    run("init", str(lustre), "--stripe", "none")
    assert set(map(tuple, lfs.layouts.values())) == {("-d", "")}


def test_a_refused_layout_ends_the_command_with_the_reason(lfs: Lfs, tmp_path: Path) -> None:
    lfs.becomes("foreign")
    status, said = run("init", str(tmp_path / "kv"), "--stripe", "-c 8")
    assert status == 3
    assert "is not on a mounted Lustre filesystem" in said


@pytest.mark.parametrize("text", ["", "8", "'", "-c '"])
def test_what_are_no_options_is_a_usage_error(text: str, tmp_path: Path) -> None:
    status, said = run("init", str(tmp_path / "kv"), "--stripe", text)
    assert status == 2
    assert "--stripe" in said
    assert not (tmp_path / "kv").exists()


@pytest.mark.parametrize("layout", [striping.PROGRESSIVE, striping.PLAIN])
def test_stripes_are_pieces(layout: tuple[str, ...]) -> None:
    """A piece of a load lies on one server, so that pieces in flight meet different ones."""
    sizes = [layout[at + 1] for at, word in enumerate(layout) if word == "-S"]
    assert {int(size.rstrip("M")) << 20 for size in sizes} == {LUSTRE.piece_bytes}


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ("-E 32M -c 1 -E 16M -c 4", "component end"),
        ("-E -1 -c 1 -E 16M", "may follow"),
        ("-S 5000", "multiple of 64KiB"),
        ("-E 6M -S 4M -E -1", "aligned"),
        ("-z 4M", "option -z"),
    ],
)
def test_the_stand_in_refuses_what_lfs_refuses(
    lfs: Lfs, tmp_path: Path, layout: str, reason: str
) -> None:
    status, said = striping.run_lfs(["lfs", "setstripe", *layout.split(), str(tmp_path)])
    assert status == 2
    assert reason in said
