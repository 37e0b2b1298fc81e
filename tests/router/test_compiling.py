"""Compiling: its list names modules there are, and it says what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

import router
from router import compiling

PACKAGE = Path(router.__file__).parent


def test_what_is_compiled_is_there() -> None:
    wanted = [PACKAGE / f"{name}.py" for name in compiling.COMPILED]
    assert [path for path in wanted if not path.exists()] == []


def test_without_mypyc_it_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert compiling.main([str(tmp_path / "into")]) == 1
    assert "it needs mypy, gcc" in capsys.readouterr().err


def test_without_a_directory_it_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert compiling.main([]) == 2
    assert "make compile-router" in capsys.readouterr().out
