"""`sharedfs stage` as a person or a script calls it."""

from __future__ import annotations

from pathlib import Path

from sharedfs_backend.cli.output import Status
from sharedfs_backend.cli.staging import process_seconds
from tests.cli.test_cli import answer, flip_payload, sharedfs
from tests.store.inline import Client, chunks_of


def test_it_says_what_it_copied(tmp_path: Path) -> None:
    Client(tmp_path / "from").put(chunks_of(8))
    done = answer("stage", "--from", tmp_path / "from", "--to", tmp_path / "to")
    assert (done["stopped"], done["packs_copied"], done["chunks_copied"]) == ("done", 1, 8)
    assert answer("ls", tmp_path / "to")["chunk_count"] == 8
    shown = sharedfs("stage", "--from", tmp_path / "from", "--to", tmp_path / "to").stdout
    assert "there already  1 (64.0 KiB)" in shown


def test_a_chunk_that_could_not_be_copied_is_an_exit_status(tmp_path: Path) -> None:
    Client(tmp_path / "from").put(chunks_of(8))
    flip_payload(tmp_path / "from")
    result = sharedfs("stage", "--from", tmp_path / "from", "--to", tmp_path / "to")
    assert result.exit_code == Status.PROBLEMS and "checksum" in result.stdout


def test_a_deadline_of_nothing_is_refused(tmp_path: Path) -> None:
    result = sharedfs("stage", "--from", tmp_path, "--to", tmp_path / "to", "--deadline", "0")
    assert result.exit_code == Status.USAGE and not (tmp_path / "to").exists()


def test_a_source_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    result = sharedfs("stage", "--from", tmp_path / "from", "--to", tmp_path / "to")
    assert result.exit_code == Status.NAMESPACE and "does not exist" in result.stderr


def test_a_deadline_counts_from_the_start_of_the_process() -> None:
    assert 0.0 < process_seconds() < 86400.0
