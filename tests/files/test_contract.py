"""Every implementation of `Files` in the package keeps the contract and leaks nothing.

On a file system named by SHAREDFS_TEST_ROOT the profile is the probed one: another's would promise
what is not there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sharedfs_backend.files import NAMED, CountingFiles, Files, LocalFiles, WatchedFiles, probe
from sharedfs_backend.runtime import ThreadRuntime
from tests.files.contract import CHECKS, Check

PLAIN = replace(NAMED["posix"], vectored=False)

IMPLEMENTATIONS: dict[str, Callable[[str], Files]] = {
    "unprobed": LocalFiles,
    "local": lambda root: LocalFiles(root, NAMED["local"]),
    "plain": lambda root: LocalFiles(root, PLAIN),
    "nfs": lambda root: LocalFiles(root, NAMED["nfs"]),
    "gekkofs": lambda root: LocalFiles(root, NAMED["gekkofs"]),
    "counting": lambda root: CountingFiles(LocalFiles(root)),
    "watched": lambda root: WatchedFiles(LocalFiles(root), ThreadRuntime()),
}

ANYWHERE = ("unprobed", "counting", "watched")
if os.environ.get("SHAREDFS_TEST_ROOT"):
    IMPLEMENTATIONS = {name: IMPLEMENTATIONS[name] for name in ANYWHERE} | {
        "probed": lambda root: LocalFiles(root, probe(root))
    }


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    fds, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    yield
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (fds, threads)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_contract(name: str, check: Check, tmp_path: Path) -> None:
    check(IMPLEMENTATIONS[name](str(tmp_path)))
