"""The command line on real directories: results, exit statuses, and errors that say what to do."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sharedfs_backend import tools
from sharedfs_backend.cli.commands import app
from sharedfs_backend.cli.options import umask_like
from sharedfs_backend.cli.output import Status
from sharedfs_backend.layout import NAMESPACE_PATH, Seal, encode_namespace
from tests.store.inline import Client, chunks_of

QUICK = {
    "lease_seconds": 0.5,
    "buffer_ttl_seconds": 0.2,
    "refresh_seconds": 0.01,
    "load_deadline_seconds": 0.05,
    "drop_delay_seconds": 0.1,
}


def sharedfs(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def answer(*words: object) -> Any:
    """The one JSON object that a command prints."""
    return json.loads(sharedfs(*words, "--json").stdout)


def flip_payload(root: Path) -> Path:
    (pack,) = [path for path in (root / "packs").rglob("*") if path.is_file()]
    data = bytearray(pack.read_bytes())
    data[5000] ^= 1
    pack.write_bytes(data)
    return pack


def test_init_creates_a_namespace_and_shows_it(tmp_path: Path) -> None:
    result = sharedfs("init", tmp_path / "kv", "--cap", "2GiB")
    assert result.exit_code == Status.OK
    assert (tmp_path / "kv" / NAMESPACE_PATH).exists()
    assert "cap                  2.00 GiB" in result.stdout.splitlines()


def test_init_again_changes_the_cap_for_everyone(tmp_path: Path) -> None:
    sharedfs("init", tmp_path, "--cap", "2GiB")
    sharedfs("init", tmp_path, "--cap", "3TB")
    sharedfs("init", tmp_path)
    assert answer("ls", tmp_path)["cap_bytes"] == 3 * 10**12


def test_ls_counts_what_lies_there(tmp_path: Path) -> None:
    Client(tmp_path).put(chunks_of(8))
    seen = answer("ls", tmp_path)
    assert (seen["pack_count"], seen["chunk_count"]) == (1, 8)
    assert (seen["writers_known"], seen["writers_ended"]) == (1, 0)
    assert list(seen["realms"].values()) == [1]
    shown = sharedfs("ls", tmp_path).stdout
    assert "chunks               8" in shown and next(iter(seen["realms"])) in shown


def test_a_root_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer("init", "kv")["root"] == str(tmp_path / "kv")


@pytest.mark.parametrize("command", ["ls", "verify", "reindex", "gc"])
def test_a_root_that_is_not_there_is_an_error_and_not_created(tmp_path: Path, command: str) -> None:
    result = sharedfs(command, tmp_path / "kv")
    assert result.exit_code == Status.NAMESPACE and result.stdout == ""
    assert "the shared file system is mounted here" in result.stderr
    assert not (tmp_path / "kv").exists()


@pytest.mark.parametrize("there", [[], ["notes.txt"], [NAMESPACE_PATH]], ids=str)
@pytest.mark.parametrize("command", ["ls", "verify", "reindex", "gc"])
def test_a_directory_without_a_namespace_is_answered_with_how_to_make_one(
    tmp_path: Path, command: str, there: list[str]
) -> None:
    for name in there:
        (tmp_path / name).touch()
    result = sharedfs(command, tmp_path)
    assert result.exit_code == Status.NAMESPACE
    assert f"create one with `sharedfs init {tmp_path}`" in result.stderr
    assert os.listdir(tmp_path) == there


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_reindex_repairs_a_namespace_whose_file_is_lost_or_damaged(
    tmp_path: Path, content: bytes | None
) -> None:
    Client(tmp_path).put(chunks_of(8))
    (tmp_path / NAMESPACE_PATH).unlink()
    if content is not None:
        (tmp_path / NAMESPACE_PATH).write_bytes(content)
    assert sharedfs("reindex", tmp_path).exit_code == Status.OK
    assert (tmp_path / NAMESPACE_PATH).read_bytes().rstrip() == encode_namespace(Seal()).rstrip()
    assert answer("ls", tmp_path)["chunk_count"] == 8


@pytest.mark.parametrize("command", ["init", "ls", "verify", "reindex", "gc"])
def test_an_empty_root_is_not_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = sharedfs(command, "")
    assert result.exit_code == Status.USAGE and "is the variable" in result.stderr
    assert os.listdir(tmp_path) == []


def test_a_newer_namespace_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sharedfs("init", tmp_path)
    with monkeypatch.context() as later:
        later.setattr("sharedfs_backend.layout.jsonfile.FORMAT_MAJOR", 99)
        newer = encode_namespace(Seal())
    (tmp_path / NAMESPACE_PATH).write_bytes(newer)
    result = sharedfs("ls", tmp_path)
    assert result.exit_code == Status.NAMESPACE and "upgrade sharedfs-backend" in result.stderr
    assert answer("init", tmp_path)["error"]["kind"] == "NamespaceNewer"
    assert (tmp_path / NAMESPACE_PATH).read_bytes() == newer


def test_a_secret_that_is_not_the_namespaces_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    for name in ("right", "wrong"):
        (tmp_path / name).write_text(name * 10)
    root = tmp_path / "kv"
    assert sharedfs("init", root, "--secret-file", tmp_path / "right").exit_code == Status.OK
    assert answer("ls", root, "--secret-file", tmp_path / "wrong")["error"] == {
        "kind": "SecretMismatch",
        "message": f"{root}: it was made with another secret: use the same secret_file everywhere",
    }
    assert "set secret_file" in sharedfs("ls", root).stderr
    assert sharedfs("ls", root, "--secret-file", tmp_path / "right").exit_code == Status.OK


@pytest.mark.parametrize("has_secret", [True, False])
@pytest.mark.parametrize("left", [None, b"garbage"])
def test_a_lost_namespace_file_is_not_written_again_under_another_secret(
    tmp_path: Path, has_secret: bool, left: bytes | None
) -> None:
    # Whoever came first decided, and locked out all engines with the right one.
    (tmp_path / "secret").write_text("secret")
    root, secret = tmp_path / "kv", ["--secret-file", tmp_path / "secret"]
    right, wrong = (secret, []) if has_secret else ([], secret)
    assert sharedfs("init", root, *right).exit_code == Status.OK
    before = (root / NAMESPACE_PATH).read_bytes()
    (root / NAMESPACE_PATH).unlink()
    if left is not None:
        (root / NAMESPACE_PATH).write_bytes(left)
    error = answer("reindex", root, *wrong)["error"]
    assert error["kind"] == "SecretMismatch" and "NAMESPACE.json is lost" in error["message"]
    assert sharedfs("reindex", root, *right).exit_code == Status.OK
    assert (root / NAMESPACE_PATH).read_bytes().strip() == before.strip()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--cap", "3G"], "800GiB"),
        (["--cap", "3MiB"], "cap_bytes = 3145728: must be"),
        (["--set", "lease=1200"], "did you mean lease_seconds?"),
        (["--set", "lease_seconds"], "name=value"),
        (["--set", "root=/elsewhere"], "the command itself names the directory"),
        (["--set", "lease_seconds=soon"], "lease_seconds = 'soon': must be a number"),
        (["--set", "cap_bytes=" + "9" * 400], "cap_bytes = 999"),
        (["--set", "cap_bytes=" + "9" * 5000], "cap_bytes = '999"),
        (["--set", "cap_bytes=" + "[" * 100_000], "cap_bytes: its value is nested too deeply"),
        (["--config", "/nowhere.json"], "No such file"),
    ],
)
def test_a_wrong_option_does_nothing_and_says_what_is_right(
    tmp_path: Path, words: list[str], hint: str
) -> None:
    result = sharedfs("init", tmp_path, *words)
    assert result.exit_code == Status.USAGE and hint in result.stderr
    assert os.listdir(tmp_path) == []


def test_a_hostile_configuration_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "adapter.json"
    config.write_text('{"cap_bytes": ' + "[" * 100_000)
    result = sharedfs("init", tmp_path / "kv", "--config", config)
    assert result.exit_code == Status.USAGE and "nested too deeply" in result.stderr


def test_an_engines_configuration_is_understood(tmp_path: Path) -> None:
    config = tmp_path / "adapter.json"
    adapter = {"type": "plugin", "adapter_params": {"root": "/elsewhere", "cap_bytes": 1 << 30}}
    config.write_text(json.dumps(adapter))
    sharedfs("init", tmp_path / "kv")
    seen = answer("ls", tmp_path / "kv", "--config", config)
    assert (seen["root"], seen["cap_bytes"]) == (str(tmp_path / "kv"), 1 << 30)


def test_verify_of_whole_packs_is_content(tmp_path: Path) -> None:
    Client(tmp_path).put(chunks_of(8))
    result = sharedfs("verify", tmp_path)
    assert result.exit_code == Status.OK and result.stderr == ""
    assert answer("verify", tmp_path)["chunks"] == 8


def test_verify_names_the_damaged_pack(tmp_path: Path) -> None:
    Client(tmp_path).put(chunks_of(8))
    pack = flip_payload(tmp_path).relative_to(tmp_path)
    report = answer("verify", tmp_path)
    assert report["counts"] == {"damaged": 1}
    assert [path for path, _ in report["problems"]] == [str(pack)]
    result = sharedfs("verify", tmp_path)
    assert result.exit_code == Status.PROBLEMS
    assert str(pack) in result.stdout and "fail their checksum" in result.stdout


def test_a_pack_that_is_being_written_is_no_damage(tmp_path: Path) -> None:
    writing = Client(tmp_path)
    writing.put(chunks_of(8))
    (pack,) = [path for path in (tmp_path / "packs").rglob("*") if path.is_file()]
    begun = pack.with_name(f"{pack.name[:-1]}9")
    begun.write_bytes(pack.read_bytes()[:6000])
    result = sharedfs("verify", tmp_path, "--json")
    assert (result.exit_code, json.loads(result.stdout)["counts"]) == (Status.OK, {"unnamed": 1})


def test_verify_of_headers_alone_reads_no_payload(tmp_path: Path) -> None:
    Client(tmp_path).put(chunks_of(8))
    flip_payload(tmp_path)
    assert sharedfs("verify", tmp_path, "--headers-only").exit_code == Status.OK


def test_reindex_brings_back_what_lost_journals_held(tmp_path: Path) -> None:
    Client(tmp_path).put(chunks_of(8))
    for journal in (tmp_path / "journals").iterdir():
        journal.unlink()
    assert answer("ls", tmp_path)["chunk_count"] == 0
    report = answer("reindex", tmp_path)
    assert report["counts"] == {"adopted": 1}
    assert answer("ls", tmp_path)["chunk_count"] == 8


def test_reindex_brings_back_what_a_lost_directory_held(tmp_path: Path) -> None:
    chunks = chunks_of(8)
    Client(tmp_path).put(chunks)
    shutil.rmtree(tmp_path / "journals")
    shutil.rmtree(tmp_path / "snapshots")
    result = sharedfs("ls", tmp_path)
    assert result.exit_code == Status.NAMESPACE
    assert f"`sharedfs reindex {tmp_path}` makes what is missing again" in result.stderr
    result = sharedfs("reindex", tmp_path)
    assert result.exit_code == Status.OK and "adopted  1" in result.stdout
    reader = Client(tmp_path, 2)
    reader.refresh()
    assert reader.load(chunks) == [True] * 8


def test_gc_sweeps_down_to_the_size_asked_for(tmp_path: Path) -> None:
    Client(tmp_path).put(chunks_of(8))
    setters = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
    done = answer("gc", tmp_path, "--to", "0", "--watch", *setters)
    assert (done["packs_dropped"], done["packs_unlinked"]) == (1, 1)
    assert answer("ls", tmp_path)["pack_count"] == 0


def test_what_an_operator_writes_can_be_read_by_who_reads_the_namespace(tmp_path: Path) -> None:
    # Root's umask is often 077: `gc` then left a journal and a snapshot that the engines could not
    # read, so that none stored below the cap any more, and `init --cap` settings that kept them
    # from starting.
    before = os.umask(0o022)
    try:
        root = tmp_path / "kv"
        assert sharedfs("init", root).exit_code == Status.OK
        Client(root).put(chunks_of(8))
        setters = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
        for command in (["init", "--cap", "1GiB"], ["gc"], ["reindex"]):
            os.umask(0o077)
            assert sharedfs(command[0], root, *command[1:], *setters).exit_code == Status.OK
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in root.rglob("*")} == {0o644, 0o755}


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "umask"),
    [
        (0o700, 1000, 1000, 0o077),  # the owner's own
        (0o700, 0, 0, 0o022),  # root's in a private namespace: 0600 would be root's alone
        (0o750, 0, 0, 0o022),
        (0o750, 0, 1000, 0o027),
        (0o2770, 0, 0, 0o007),
        (0o755, 0, 0, 0o022),
        (0o777, 0, 0, 0),
    ],
)
def test_whoever_owns_the_directory_reads_what_another_user_makes_there(
    mode: int, uid: int, gid: int, umask: int
) -> None:
    directory = os.stat_result((0o040000 | mode, 1, 1, 2, 1000, 1000, 0, 0, 0, 0))
    assert umask_like(directory, uid, gid) == umask


def test_an_interrupted_command_says_so_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> tools.Listing:
        raise KeyboardInterrupt

    monkeypatch.setattr(tools, "listing", interrupted)
    result = sharedfs("ls", tmp_path)
    assert (result.exit_code, result.stderr) == (Status.INTERRUPTED, "sharedfs: interrupted\n")


def test_our_own_mistake_is_not_dressed_up_as_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> tools.Listing:
        raise ZeroDivisionError

    monkeypatch.setattr(tools, "listing", broken)
    assert isinstance(sharedfs("ls", tmp_path).exception, ZeroDivisionError)


@pytest.mark.parametrize("command", ["init", "ls", "verify", "reindex", "gc"])
def test_every_command_explains_itself(command: str) -> None:
    result = sharedfs(command, "--help")
    assert result.exit_code == 0 and "--json" in result.stdout and "ROOT" in result.stdout
