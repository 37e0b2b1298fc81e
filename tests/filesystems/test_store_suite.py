"""The store's own tests on every file system that can be had here: one pytest run inside each.

The same run by hand, on any mounted directory:

    SHAREDFS_TEST_ROOT=/mnt/shared/scratch pytest tests/store tests/files/test_contract.py

One place alone: `pytest -m nightly -k fuse-negative tests/filesystems`. What came of each stands in
docs/filesystems.md.

What a file system cannot have run on it is named below, with the reason; nothing else is left out.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.filesystems.places import NAMES, lacking, place

ROOT = Path(__file__).resolve().parents[2]
SUITE = ("tests/store", "tests/files/test_contract.py")
SUITE_SECONDS = 3600.0
"""fuse-metadata-rate took half of it on a busy machine: a namespace is made of 300 directories."""

FORKS = (
    "tests/store/test_publisher.py::test_a_forked_child_opens_a_store_of_its_own",
    "tests/store/test_threads.py::test_threads_of_a_forked_child_open_one_store_between_them",
)
RENAMES = (
    "tests/store/test_faults.py::"
    "test_a_removed_root_is_misses_and_dropped_stores_and_no_directory_elsewhere",
)
LEFT_OUT: dict[str, tuple[str, ...]] = {
    # A forked child hangs in its first call there, and the second test itself renames a directory.
    "gekkofs": (*FORKS, *RENAMES),
    "fuse-gekkofs": RENAMES,
    "fuse-rename": RENAMES,
}


def run(name: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """pytest over the suite in that place."""
    left_out = [word for test in LEFT_OUT.get(name, ()) for word in ("--deselect", test)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    with place(name, folder) as environ:
        return subprocess.run(
            [*command, *left_out, *words, *SUITE],
            cwd=ROOT,
            env=environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SUITE_SECONDS,
            check=False,
        )


BY_DAY = ("tmpfs", "gekkofs")
"""Those that take a minute or two. The others, minutes each and GlusterFS's packages, run at night:
`pytest -m nightly tests/filesystems`."""


def params() -> list[object]:
    return [
        pytest.param(name, marks=pytest.mark.slow if name in BY_DAY else pytest.mark.nightly)
        for name in NAMES
    ]


@pytest.mark.alone
@pytest.mark.parametrize("name", params())
def test_the_store_suite_passes_on(name: str, tmp_path: Path) -> None:
    if reason := lacking(name):
        pytest.skip(reason)
    done = run(name, tmp_path / "place")
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout.splitlines()[-1]


def test_what_is_left_out_exists() -> None:
    """A renamed test must not go on being left out under its old name, nor run unnoticed."""
    for test in {test for tests in LEFT_OUT.values() for test in tests}:
        path, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text()
    assert set(LEFT_OUT) <= set(NAMES)
