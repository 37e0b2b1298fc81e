"""A profile survives JSON, is bounded, and is found by trying: a probe that fails means cannot."""

from __future__ import annotations

import errno
import importlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharedfs_backend.files import (
    NAMED,
    CachedReads,
    FailureKind,
    FileFailure,
    FlushMethod,
    Profile,
    differences,
    effective,
    mount_warnings,
    probe,
    writeback,
)

probing = importlib.import_module("sharedfs_backend.files.probe")  # the package has the function


def refuse(number: int) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("profile", NAMED.values(), ids=lambda profile: profile.name)
def test_a_profile_survives_json(profile: Profile) -> None:
    assert Profile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile


def test_a_newer_profiles_unknown_keys_are_ignored() -> None:
    assert Profile.from_dict({"name": "nfs", "quantum": True}) == NAMED["nfs"]


@pytest.mark.parametrize(
    "values",
    [
        {"align_bytes": 1000},
        {"align_bytes": "4096"},
        {"piece_bytes": 0},
        {"request_bytes_max": 1000},
        {"pack_bytes_max": 1 << 40},
        {"read_depth_max": 0},
        {"packs_at_once": -1},
        {"rename": 1},
        {"flush": "sometimes"},
    ],
)
def test_a_profile_out_of_bounds_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Profile.from_dict(values)


def test_a_page_cache_gets_a_pack_for_each_core_and_a_mount_eight() -> None:
    assert [NAMED["local"].packs_for(cores) for cores in (0, 1, 2, 64)] == [1, 1, 2, 8]
    assert [NAMED["posix"].packs_for(cores) for cores in (1, 64)] == [8, 8]


def test_probing_finds_what_works_and_leaves_nothing_behind(tmp_path: Path) -> None:
    found = probe(str(tmp_path), name="posix")
    assert found.vectored and found.rename and found.fadvise and found.mtime and found.statvfs
    assert found.flush is FlushMethod.RANGE
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("call", "ability"),
    [
        ("rename", "rename"),
        ("preadv", "vectored"),
        ("pwritev", "vectored"),
        ("posix_fadvise", "fadvise"),
        ("statvfs", "statvfs"),
    ],
)
def test_an_ability_whose_call_fails_is_absent(
    call: str, ability: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, call, refuse(errno.EBADF))
    found = probe(str(tmp_path), name="posix")
    assert getattr(found, ability) is False
    assert os.listdir(tmp_path) == []


def test_times_that_are_always_zero_are_no_times(tmp_path: Path) -> None:
    assert probe(str(tmp_path), name="posix", wall_seconds=lambda: 9e9).mtime is False


def test_flushing_falls_back_to_the_next_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: int) -> int:
        return -1

    monkeypatch.setattr(writeback, "_sync_file_range", fail)
    assert probe(str(tmp_path), name="posix").flush is FlushMethod.DATASYNC
    monkeypatch.setattr(os, "fdatasync", refuse(errno.EINVAL))
    assert probe(str(tmp_path), name="posix").flush is FlushMethod.NONE


def test_a_kernel_that_cannot_read_without_waiting_is_not_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "statfs_type", lambda root: 0xEF53)
    monkeypatch.setattr(os, "preadv", refuse(errno.EOPNOTSUPP))
    assert probe(str(tmp_path), name="local").cached_reads is CachedReads.NONE
    monkeypatch.setattr(os, "preadv", refuse(errno.EAGAIN))  # understood: just not in memory
    assert probe(str(tmp_path), name="local").cached_reads is CachedReads.NOWAIT


def test_files_on_tmpfs_are_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "statfs_type", lambda root: 0x01021994)
    assert probe(str(tmp_path), name="local").cached_reads is CachedReads.MEMORY


def test_a_fuse_mount_is_asked_for_as_much_as_one_request_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel cuts what is longer into requests of 1 MiB, and waits for each."""
    monkeypatch.setattr(probing, "statfs_type", lambda root: 0x65735546)
    for name in ("posix", "gekkofs", "glusterfs"):
        found = probe(str(tmp_path), name=name)
        assert (found.read_bytes, found.piece_bytes) == (1 << 20, 4 << 20)
    monkeypatch.setattr(probing, "statfs_type", lambda root: 0x6969)
    assert probe(str(tmp_path), name="nfs").read_bytes == 4 << 20


def test_what_concerns_one_machine_alone_is_its_own_affair() -> None:
    there = replace(NAMED["local"], cached_reads=CachedReads.NOWAIT, request_bytes_max=1 << 16)
    assert differences(NAMED["local"], there) == []
    found = effective(NAMED["local"], there)
    assert found.cached_reads is CachedReads.NOWAIT and found.request_bytes_max == 1 << 16


def test_what_one_machine_cannot_see_comes_from_the_named_profile(tmp_path: Path) -> None:
    found = probe(str(tmp_path), name="nfs")
    assert (found.name, found.rename, found.mtime) == ("nfs", False, False)
    assert found.flush is FlushMethod.DATASYNC


def test_gekkofs_keeps_its_habits_where_vectored_calls_work(tmp_path: Path) -> None:
    found = probe(str(tmp_path), name="gekkofs")
    assert (found.vectored, found.unlink_needs_end, found.align_bytes) == (True, True, 524288)


def test_an_unknown_profile_name_is_refused_with_the_choice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose one of posix, local, nfs"):
        probe(str(tmp_path), name="zfs2")


def test_a_directory_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(FileFailure) as caught:
        probe(str(tmp_path / "missing"), name="posix")
    assert caught.value.kind is FailureKind.MISSING


def test_a_probe_that_breaks_in_the_middle_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharedfs_backend.files.local.pread_into", lambda *_: 0)
    with pytest.raises(FileFailure, match="not read back"):
        probe(str(tmp_path), name="posix")
    assert os.listdir(tmp_path) == []


def test_two_mounts_of_one_namespace_may_differ_and_the_careful_habit_wins() -> None:
    namespace = NAMED["posix"]
    mount = replace(NAMED["gekkofs"], align_bytes=4096)
    found = effective(namespace, mount)
    assert (found.vectored, found.unlink_needs_end) == (False, True)
    assert found.pack_bytes_max == namespace.pack_bytes_max
    assert "vectored is False on this mount, True in the namespace" in differences(namespace, mount)
    assert "flush is none on this mount, range in the namespace" in differences(namespace, mount)
    assert differences(namespace, namespace) == []


def test_warnings_are_about_the_mount_that_holds_the_root() -> None:
    assert all(text.startswith("/proc") for text in mount_warnings("/proc/self"))
