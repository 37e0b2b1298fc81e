"""A namespace through a client library: what sites build, on a library with GekkoFS' functions."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedfs_backend import tools
from sharedfs_backend.cli.output import Status
from sharedfs_backend.exceptions import NamespaceError
from sharedfs_backend.files import LibraryFiles
from sharedfs_backend.stage import stage
from sharedfs_backend.store import Store
from tests.cli.test_cli import answer, sharedfs
from tests.files.contract import CHECKS, Check
from tests.store.inline import chunks_of, items_of, layout_of, settings_for

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "launch" / "gekkofs" / "sharedfs_client.cpp"

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="g++ is missing: apt install g++"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("client") / "libsharedfs_client.so"
    headers = Path(__file__).parent / "userlib"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["g++", *flags, f"-I{headers}", "-o", made, SOURCE], check=True)
    return made


@pytest.fixture
def backing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory behind /gkfs, which exists for the library alone."""
    (tmp_path / "gkfs").mkdir()
    monkeypatch.setenv("USERLIB_BACKING", str(tmp_path))
    fds = len(os.listdir("/proc/self/fd"))
    yield tmp_path / "gkfs"
    assert len(os.listdir("/proc/self/fd")) <= fds


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_the_contract_of_files(check: Check, library: Path, backing: Path) -> None:
    check(LibraryFiles("/gkfs", str(library)))


def test_a_listing_longer_than_its_buffer_is_whole(
    library: Path, backing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharedfs_backend.files.library.LIST_BYTES", 16)
    for number in range(40):
        (backing / f"name{number}").touch()
    assert len(LibraryFiles("/gkfs", str(library)).list("")) == 40


def test_a_store_lives_behind_the_library_and_nowhere_else(library: Path, backing: Path) -> None:
    chunks = chunks_of(8)
    settings = settings_for(Path("/gkfs/kv"), client_library=str(library))
    for _ in range(2):
        with Store(settings=settings) as store:
            assert store.wait_current()
            assert store.parts.profile.orphans_offline_only
            assert store.put(items_of(chunks)).failed is None
            buffers = [bytearray(len(data)) for data in chunks.values()]
            assert store.load(list(chunks), buffers, layout=layout_of(chunks)) == [True] * 8
            assert [bytes(buffer) for buffer in buffers] == list(chunks.values())
    assert len(list((backing / "kv" / "packs").glob("*/*"))) == 1
    assert not Path("/gkfs").exists()


def test_the_commands_and_staging_see_it_too(library: Path, backing: Path, tmp_path: Path) -> None:
    settings = settings_for(Path("/gkfs/kv"), client_library=str(library))
    with Store(settings=settings) as store:
        store.put(items_of(chunks_of(8)))
    listed = answer("ls", "/gkfs/kv", "--set", f"client_library={library}")
    assert (listed["chunk_count"], listed["profile"]) == (8, "gekkofs")
    assert stage(settings, settings_for(tmp_path / "kept")).chunks_copied == 8
    assert tools.verify(settings_for(tmp_path / "kept")).counts == {}


def test_stage_sees_each_side_through_its_own_library_or_none(
    library: Path, backing: Path, tmp_path: Path
) -> None:
    kept, again = tmp_path / "kept", "/gkfs/again"
    with Store(settings=settings_for(Path("/gkfs/kv"), client_library=str(library))) as store:
        store.put(items_of(chunks_of(8)))
    out = answer("stage", "--from", "/gkfs/kv", "--to", kept, "--from-library", library)
    back = answer("stage", "--from", kept, "--to", again, "--to-library", library)
    both = ("--from-library", library, "--to-library", library)
    inside = answer("stage", "--from", "/gkfs/kv", "--to", again, *both)
    assert (out["chunks_copied"], back["chunks_copied"]) == (8, 8)
    assert (inside["chunks_copied"], inside["packs_present"]) == (0, 1)
    assert tools.verify(settings_for(kept)).counts == {}
    assert (kept / "packs").is_dir() and (backing / "again" / "packs").is_dir()


def test_stage_asks_whose_the_engines_library_is(library: Path, tmp_path: Path) -> None:
    words = ("--from", "/gkfs/kv", "--to", tmp_path / "kept", "--set", f"client_library={library}")
    result = sharedfs("stage", *words)
    assert result.exit_code == Status.USAGE
    assert "--from-library or --to-library" in result.stderr
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("name", ["/nowhere/libclient.so", "libc.so.6"])
def test_a_library_that_is_none_is_an_error_with_the_remedy(tmp_path: Path, name: str) -> None:
    with pytest.raises(NamespaceError, match=r"sharedfs_client\.cpp"):
        Store(settings=settings_for(tmp_path / "kv", client_library=name))
    assert not (tmp_path / "kv").exists()
