"""Other processes of a measurement: what they say is heard, how they fail is told, none is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.catalog.data import WRITER
from bench.core import namespaces
from bench.core.children import Child, ChildFailed
from sharedfs_backend.layout import SnapshotName


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("source", ["snapshot", "journals"])
def test_a_new_process_finds_the_last_chunk_of_a_made_up_namespace(
    tmp_path: Path, source: str
) -> None:
    root = tmp_path / "namespace"
    namespaces.create(root)
    namespaces.add_snapshot(root, 1600)
    if source == "journals":
        snapshot = root / SnapshotName(1, WRITER).path
        assert namespaces.add_journals(root, snapshot) == 1
        snapshot.unlink()
    arguments = {"adapter": "store", "root": str(root), "chunk": 1599}
    with Child("bench.core.cold", arguments) as child:
        heard = child.hear()
    assert child.started < heard["imported"] < heard["opened"] < heard["found"]
    assert heard["chunks"] == 1600


def test_a_writer_commits_when_it_is_told_and_ends_with_its_input(tmp_path: Path) -> None:
    arguments = {"adapter": "ours", "root": str(tmp_path / "ns"), "count": 2, "bytes": 4096}
    with Child("bench.core.writers", arguments) as child:
        assert child.hear() == {"ready": True}
        for number in (1, 2, 3):
            child.tell({"chunk": number})
            assert child.hear()["committed"] > child.started
    assert is_gone(child.pid)
    assert len(list((tmp_path / "ns" / "journals").iterdir())) == 2


def test_lines_that_come_together_are_heard_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chatter of a library is passed over, also where the answer came in the same read."""
    text = 'chatter\\n{\\"first\\": 1}\\n{\\"second\\": 2}\\n'
    (tmp_path / "says.py").write_text(
        f'import sys\nprint("{text}", end="", flush=True)\nsys.stdin.read()\n'
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Child("says", {}) as child:
        assert child.hear(10.0) == {"first": 1}
        assert child.hear(10.0) == {"second": 2}


def test_a_child_may_complain_as_much_as_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "complains.py").write_text(
        "import sys\nsys.stderr.write('a warning\\n' * 100_000)\n"
        "print('{}', flush=True)\nsys.exit('the end')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Child("complains", {}) as child:
        assert child.hear(10.0) == {}
        with pytest.raises(ChildFailed, match="ended: the end"):
            child.hear(10.0)


def test_a_child_that_dies_is_told_by_its_last_words_without_paths(tmp_path: Path) -> None:
    with (
        pytest.raises(ChildFailed, match="KeyError: 'chunk'") as caught,
        Child("bench.core.cold", {"adapter": "store", "root": str(tmp_path)}) as child,
    ):
        child.hear()
    assert str(tmp_path) not in str(caught.value)
    assert is_gone(child.pid)


def test_a_child_is_ended_at_once_where_its_block_is_left_by_an_error(tmp_path: Path) -> None:
    arguments = {"adapter": "ours", "root": str(tmp_path / "ns"), "count": 1, "bytes": 4096}
    with pytest.raises(KeyboardInterrupt), Child("bench.core.writers", arguments) as child:
        child.hear()
        raise KeyboardInterrupt
    assert is_gone(child.pid)
