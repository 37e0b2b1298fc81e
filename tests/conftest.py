"""Shared test configuration.

Kept small: fixtures belong beside the tests that use them. What is here concerns every test: a
skip for a missing system tool is a failure where the environment says that nothing may be missing.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


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
