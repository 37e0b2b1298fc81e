"""Shared test configuration.

Kept small: fixtures belong beside the tests that use them. What is here concerns every test: a
skip for a missing system tool is a failure where the environment says that nothing may be missing.

SHAREDFS_TEST_ROOT=DIR puts every test's `tmp_path`, and so every namespace's root, below DIR: the
same tests on any mounted file system. tests/filesystems does that for all it can mount here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no timings", deadline=None)  # a busy machine is no failure
settings.load_profile("no timings")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With SHAREDFS_NO_SKIP=1 a skipped test counts as failed, with the reason of the skip."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("SHAREDFS_NO_SKIP"):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be skipped: {report.longrepr}"
    return report


TEST_ROOT = os.environ.get("SHAREDFS_TEST_ROOT", "")

if TEST_ROOT:

    @pytest.fixture
    def tmp_path() -> Iterator[Path]:
        """A new directory on the file system under test, under a name never used again."""
        path = Path(TEST_ROOT) / f"t.{os.urandom(8).hex()}"
        path.mkdir()
        yield path
        shutil.rmtree(path, ignore_errors=True)
